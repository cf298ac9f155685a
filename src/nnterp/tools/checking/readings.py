"""Every value of a model, and what editing each does to its logits, on either engine.

The blocks below are the whole point: they are written once and run unchanged on
transformers and on vLLM, and the tests compare what comes back.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import nnsight
import torch
from torch import Tensor

from nnterp.tools.checking.compare import relative_error
from nnterp.vocabulary.values import ATTENTION_PROBABILITIES, VALUES, Value

#: Values an edit of which the two engines can be compared on.
EDITABLE = tuple(
    value.name
    for value in VALUES.values()
    if value.writable_on == {"transformers", "vllm"} and value.name != "logits"
)

BLOCK_VALUES = tuple(value for value in VALUES.values() if value.host != "model")


def one_step(model: Any, prompt: Sequence[int], tokens: int = 1) -> tuple[Any, dict[str, Any]]:
    """The trace arguments for ``tokens`` deterministic steps on ``model``'s engine."""
    if model.engine_adapter.engine == "vllm":
        settings = {"temperature": 0.0, "max_tokens": tokens, "ignore_eos": True}
        return list(prompt), settings
    return torch.tensor([list(prompt)], device=model.device), {}


def served(model: Any) -> list[tuple[int, Value]]:
    """Every value a block serves, with the block, in the order the forward reaches them."""
    support = model.support()
    return [
        (block, value)
        for block in range(model.num_layers)
        for value in BLOCK_VALUES
        if block in support[value.name].blocks
    ]


def values(model: Any, prompt: Sequence[int]) -> dict[str, Tensor]:
    """Every value that the model serves, by ``name`` or ``block.name``, and ``projected``.

    That is the last stream, of every position, on the vocabulary.
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
    """What the step after the prompt serves of its one token, ``following``."""
    if model.engine_adapter.engine == "transformers":
        # Without a cache, whose layout is a family's own affair.
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
    value = VALUES.get(name)
    return value is not None and value.token_axis is not None and "key" not in value.axes


def refusals(model: Any, prompt: Sequence[int]) -> list[str]:
    """What `support()` refuses that is served all the same, or refused in other words."""
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
    """The values that, kept as they were read, are not what they were when they were read."""
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
    """How far values move that must not by one bit, by ``edit.block.name``.

    None may where each value is replaced by its equal. Nor may anything before the last position
    where each value is changed at the last position alone, if tokens see none that follow them.
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
    """Whether what was ``found`` is a pattern in which a token attends to a later one."""
    key, tensor = found
    if key.rpartition(".")[2] != ATTENTION_PROBABILITIES.name:
        return False
    queries, keys = tensor.shape[-2:]
    return bool(tensor.triu(keys - queries + 1).any())


def _through(model: Any, prompt: Sequence[int], edit: str) -> dict[str, Tensor]:
    """Every value of a forward in which all that can be written were edited in one way."""
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
    """What requests beside and after one full of what is not a number were served otherwise.

    On vLLM, whose requests share a step, and blocks of a cache one after another.
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
    """What three requests of two steps make, of which the middle one may be given ``number``."""
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
    return torch.equal(one.nan_to_num(nan=0.5), other.nan_to_num(nan=0.5)) and torch.equal(
        one.isnan(), other.isnan()
    )


def clean_logits(model: Any, prompt: Sequence[int]) -> Tensor:
    tokens, arguments = one_step(model, prompt)
    with torch.no_grad(), model.trace(tokens, **arguments):
        logits = model.logits[:, -1:].save()
    return logits.cpu()


def edited_in_place(model: Any, prompt: Sequence[int], name: str, layer: int) -> Tensor:
    """The logits after doubling, in place, half the features at every other position.

    Half of them, because the norms that follow would undo a change of scale; the last position
    among them, whose logits these are.
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
    """The logits after replacing the value by one a quarter of the way to its mirror image.

    No further, for what wrecks a model also magnifies the rounding of what precedes it.
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
    """The logits after each edit, by ``way.layer.name``, and unedited, by ``clean``.

    Args:
        model: The model.
        prompt: Token ids.
        both_ways: Whether every value is both edited in place and replaced; otherwise the
            way alternates from block to block.
        advance: Called after each.
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
    """The logits after the edit that ``key`` names, as in `edits`."""
    if key == "clean":
        return clean_logits(model, prompt)
    way, layer, name = key.split(".")
    edit = {"in_place": edited_in_place, "assigned": assigned}[way]
    return edit(model, prompt, name, int(layer))
