"""Reads every value of a model, and what editing each does to its logits, on either engine.

The check rests on the blocks below being written once and run unchanged on transformers and on
vLLM; the tests compare what they return.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import nnsight
import torch
from torch import Tensor

from nnterp.tools.checking.compare import relative_error
from nnterp.vocabulary.values import ATTENTION_PROBABILITIES, VALUES, Value

#: The names of the values whose edits can be compared between the two engines.
EDITABLE = tuple(
    value.name
    for value in VALUES.values()
    if value.writable_on == {"transformers", "vllm"} and value.name != "logits"
)

BLOCK_VALUES = tuple(value for value in VALUES.values() if value.host != "model")


def one_step(model: Any, prompt: Sequence[int], tokens: int = 1) -> tuple[Any, dict[str, Any]]:
    """Return the prompt and the trace arguments for ``tokens`` greedy steps on ``model``'s engine.

    Args:
        model: A loaded model, of either engine.
        prompt: Token ids.
        tokens: The number of steps; a trace on transformers always makes one.
    """
    if model.engine_adapter.engine == "vllm":
        settings = {"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True}
        return list(prompt), settings
    return torch.tensor([list(prompt)], device=model.device), {}


def served(model: Any) -> list[tuple[int, Value]]:
    """Return every value a block serves, with the block, in the order the forward reaches them."""
    support = model.support()
    return [
        (block, value)
        for block in range(model.num_layers)
        for value in BLOCK_VALUES
        if block in support[value.name].blocks
    ]


def values(model: Any, prompt: Sequence[int]) -> dict[str, Tensor]:
    """Return every value that the model serves, by ``name`` or ``block.name``, and ``projected``.

    ``projected`` is the last block's output projected on the vocabulary, ``[batch, seq, vocab]``.
    """
    tokens, arguments = one_step(model, prompt)
    places = served(model)
    with torch.no_grad(), model.trace(tokens, **arguments):
        seen = nnsight.save({})
        seen["input_ids"] = model.input_ids
        seen["token_embeddings"] = model.token_embeddings
        for index, value in places:
            seen[f"{index}.{value.name}"] = getattr(model.host_of(value, index), value.name)
        if f"{model.num_layers - 1}.layer_output" in seen:
            last = seen[f"{model.num_layers - 1}.layer_output"]
            seen["projected"] = model.project_on_vocab(last)
        seen["logits"] = model.logits[:, -1:]
        seen["next_token_probs"] = model.next_token_probs
    return {name: tensor.detach().cpu() for name, tensor in seen.items()}


def decoded(model: Any, prompt: Sequence[int], following: int) -> dict[str, Tensor]:
    """Return what the step after the prompt serves of its one token, ``following``."""
    if model.engine_adapter.engine == "transformers":
        # The whole sequence is run without a cache, because each family has its own cache layout.
        last: dict[str, Tensor] = {}
        for key, tensor in values(model, [*prompt, following]).items():
            name = key.rpartition(".")[2]
            if _one_row_a_token(name):
                last[key] = tensor.narrow(VALUES[name].token_axis or 0, -1, 1)
        return last
    places = [(index, value) for index, value in served(model) if _one_row_a_token(value.name)]
    tokens, arguments = one_step(model, prompt, tokens=2)
    with torch.no_grad(), model.trace(tokens, **arguments) as tracer:
        seen = nnsight.save({})
        for _ in tracer.iter[1]:
            for index, value in places:
                seen[f"{index}.{value.name}"] = getattr(model.host_of(value, index), value.name)
            seen["logits"] = model.logits
    return {name: tensor.cpu() for name, tensor in seen.items()}


def _one_row_a_token(name: str) -> bool:
    """Return whether the value ``name`` has one row per token and no axis of keys."""
    value = VALUES.get(name)
    return value is not None and value.token_axis is not None and "key" not in value.axes


def refusals(model: Any, prompt: Sequence[int]) -> list[str]:
    """Return where `support()` names a reason, and the value is served or refused for another."""
    tokens, arguments = one_step(model, prompt)
    wrong: list[str] = []
    for name, row in model.support().items():
        seen: set[str] = set()
        for block, reason in row.reasons.items():
            try:
                host = model.host_of(VALUES[name], block) if block >= 0 else model
            except AttributeError:
                host = None
            if host is None or reason in seen or not hasattr(type(host), name):
                continue
            seen.add(reason)
            try:
                with torch.no_grad(), model.trace(tokens, **arguments):
                    nothing = getattr(host, name).save()
            except Exception as error:
                if reason not in str(error) or "Unavailable" not in f"{type(error)}{error}":
                    wrong.append(f"{block}.{name} fails otherwise than it says: {error}")
            else:
                assert nothing is not None
                wrong.append(f"{block}.{name} is served, and said not to be: {reason}")
    return wrong


def overwritten(model: Any, prompt: Sequence[int]) -> list[str]:
    """Return the values that, kept as they were read, changed afterwards."""
    tokens, arguments = one_step(model, prompt)
    places = served(model)
    with torch.no_grad(), model.trace(tokens, **arguments):
        kept, copies = nnsight.save({}), nnsight.save({})
        kept["token_embeddings"] = model.token_embeddings
        copies["token_embeddings"] = kept["token_embeddings"].clone()
        for index, value in places:
            tensor = getattr(model.host_of(value, index), value.name)
            kept[f"{index}.{value.name}"] = tensor
            copies[f"{index}.{value.name}"] = tensor.clone()
        kept["logits"] = model.logits
        copies["logits"] = kept["logits"].clone()
    return [name for name, tensor in kept.items() if not torch.equal(tensor, copies[name])]


def moved(model: Any, prompt: Sequence[int]) -> dict[str, float]:
    """Return how far values move that must not change by one bit, by ``edit.block.name``.

    No value may change where each is replaced by its equal. Where each value is changed at the last
    position alone, nothing before that position may change, unless tokens attend to later ones.
    """
    found: dict[str, float] = {}
    clean = _through(model, prompt, "nothing")
    at_the_last = () if any(map(_sees_later, clean.items())) else ("in_place", "assigned")
    for edit in ("equal", *at_the_last):
        for key, tensor in _through(model, prompt, edit).items():
            axis = VALUES[key.rpartition(".")[2]].token_axis
            before = clean[key]
            if edit != "equal":
                if axis is None:
                    continue
                earlier = tensor.shape[axis] - 1
                tensor, before = (one.narrow(axis, 0, earlier) for one in (tensor, before))
            if not _same(tensor, before):
                found[f"{edit}.{key}"] = relative_error(tensor, before)
    return found


def _sees_later(found: tuple[str, Tensor]) -> bool:
    """Return whether ``found``, a key and its value, shows a token that attends to a later one."""
    key, tensor = found
    if key.rpartition(".")[2] != ATTENTION_PROBABILITIES.name:
        return False
    queries, keys = tensor.shape[-2:]
    return bool(tensor.triu(keys - queries + 1).any())


def _through(model: Any, prompt: Sequence[int], edit: str) -> dict[str, Tensor]:
    """Return every value of a forward in which each writable value is edited in one way."""
    tokens, arguments = one_step(model, prompt)
    support = model.support()
    places = [
        (index, value, value.name in EDITABLE and support[value.name].writable)
        for index, value in served(model)
    ]
    with torch.no_grad(), model.trace(tokens, **arguments):
        seen = nnsight.save({})
        for index, value, written in places:
            host = model.host_of(value, index)
            if written and edit == "equal":
                setattr(host, value.name, getattr(host, value.name).clone())
            elif written and edit == "in_place":
                getattr(host, value.name).movedim(value.token_axis, 0)[-1] *= 1.25
            elif written and edit == "assigned":
                changed = getattr(host, value.name).clone()
                changed.movedim(value.token_axis, 0)[-1] *= 1.25
                setattr(host, value.name, changed)
            seen[f"{index}.{value.name}"] = getattr(host, value.name).clone()
        if edit in ("nothing", "equal"):
            seen["logits"] = model.logits[:, -1:].clone()
    return {name: tensor.cpu() for name, tensor in seen.items()}


def disturbed(model: Any, prompt: Sequence[int]) -> list[str]:
    """Return which requests are served otherwise beside or after one full of NaN or infinity.

    This is for vLLM, whose requests share a step, and reuse blocks of a cache one after another.
    """
    found = []
    alone = _beside(model, prompt, None)
    for number in (float("nan"), float("inf")):
        for when, rows in (
            ("beside", _beside(model, prompt, number)),
            ("after", _beside(model, prompt, None)),
        ):
            for row, expected in alone.items():
                if when == "after" or row != "middle":
                    same = all(map(_same, rows[row], expected))
                    found += [] if same else [f"{row} {when} {number}"]
                elif all(torch.isfinite(tensor).all() for tensor in rows[row]):
                    found.append(f"the middle did not take {number}")
    return found


def _beside(
    model: Any, prompt: Sequence[int], number: float | None
) -> dict[str, tuple[Tensor, ...]]:
    """Return the logits of three requests of two steps each, by ``first``, ``middle``, ``last``.

    The embeddings of the middle one are set to ``number``, unless that is None.
    """
    half = len(prompt) // 2
    prompts = {"first": prompt[:half], "middle": prompt, "last": prompt[half // 2 :]}
    with model.trace(temperature=0.0, max_tokens=2, ignore_eos=True) as tracer:
        seen = nnsight.save({})
        for name, tokens in prompts.items():
            with tracer.invoke(list(tokens)):
                steps = []
                for _ in tracer.iter[:2]:
                    if name == "middle" and number is not None:
                        model.token_embeddings[:] = number
                    steps.append(model.logits)
                seen[name] = tuple(steps)
    return {name: tuple(own.cpu() for own in steps) for name, steps in seen.items()}


def _same(one: Tensor, other: Tensor) -> bool:
    """Return whether two tensors are equal, with NaNs equal to each other."""
    return torch.equal(one.nan_to_num(nan=0.5), other.nan_to_num(nan=0.5)) and torch.equal(
        one.isnan(), other.isnan()
    )


def clean_logits(model: Any, prompt: Sequence[int]) -> Tensor:
    """Return the logits of the last position without an edit, ``[1, 1, vocab]``."""
    tokens, arguments = one_step(model, prompt)
    with torch.no_grad(), model.trace(tokens, **arguments):
        logits = model.logits[:, -1:].save()
    return logits.cpu()


def edited_in_place(model: Any, prompt: Sequence[int], name: str, layer: int) -> Tensor:
    """Return the logits after doubling, in place, half the features at every other position.

    Only half of the features, because the norms that follow would undo a change of scale. The last
    position, whose logits these are, is among the positions.

    Returns:
        ``[1, 1, vocab]``.
    """
    tokens, arguments = one_step(model, prompt)
    host = model.host_of(VALUES[name], layer)
    seq = VALUES[name].axes.index("seq")
    with torch.no_grad(), model.trace(tokens, **arguments):
        tensor = getattr(host, name)
        tensor.movedim(seq, 0)[(tensor.shape[seq] - 1) % 2 :: 2, ..., ::2] *= 2
        logits = model.logits[:, -1:].save()
    return logits.cpu()


def assigned(model: Any, prompt: Sequence[int], name: str, layer: int) -> Tensor:
    """Return the logits after moving the value a quarter of the way to its mirror image.

    No further, because an edit that wrecks the model also magnifies the rounding of what precedes
    it.

    Returns:
        ``[1, 1, vocab]``.
    """
    tokens, arguments = one_step(model, prompt)
    host = model.host_of(VALUES[name], layer)
    with torch.no_grad(), model.trace(tokens, **arguments):
        value = getattr(host, name)
        setattr(host, name, value.lerp(value.flip(-1), 0.25))
        logits = model.logits[:, -1:].save()
    return logits.cpu()


def edits(
    model: Any, prompt: Sequence[int], both_ways: bool = True, advance: Callable[[], Any] = int
) -> dict[str, Tensor]:
    """Return the logits after each edit, by ``way.layer.name``, and without an edit, by ``clean``.

    Args:
        model: The model.
        prompt: Token ids.
        both_ways: Whether every value is both edited in place and replaced; otherwise the
            way alternates from block to block.
        advance: Called after each edited value.

    Returns:
        ``[1, 1, vocab]`` each.
    """
    found = {"clean": clean_logits(model, prompt)}
    places = [(0, VALUES["token_embeddings"])]
    support = model.support()
    places += [
        (index, value)
        for index, value in served(model)
        if value.name in EDITABLE and support[value.name].writable
    ]
    for number, (layer, value) in enumerate(places):
        if both_ways or (number + layer) % 2 == 0:
            key = f"in_place.{layer}.{value.name}"
            found[key] = edited(model, prompt, key)
        if both_ways or (number + layer) % 2:
            key = f"assigned.{layer}.{value.name}"
            found[key] = edited(model, prompt, key)
        advance()
    return found


def edited(model: Any, prompt: Sequence[int], key: str) -> Tensor:
    """Return the logits after the edit that ``key`` names, as in `edits`: ``[1, 1, vocab]``."""
    if key == "clean":
        return clean_logits(model, prompt)
    way, layer, name = key.split(".")
    edit = {"in_place": edited_in_place, "assigned": assigned}[way]
    return edit(model, prompt, name, int(layer))
