"""Every value of a model, and what editing each does to its logits, on either engine.

The blocks below are the whole point: they are written once and run unchanged on
transformers and on vLLM, and the tests compare what comes back.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import nnsight
import torch
from torch import Tensor

from nnterp.values import VALUES

#: Values an edit of which the two engines can be compared on.
EDITABLE = tuple(
    value.name
    for value in VALUES.values()
    if value.writable_on == {"transformers", "vllm"} and value.name != "logits"
)

BLOCK_VALUES = tuple(value for value in VALUES.values() if value.host != "model")


def one_step(model: Any, prompt: Sequence[int]) -> tuple[Any, dict[str, Any]]:
    """The trace arguments for one deterministic step over ``prompt`` on ``model``'s engine."""
    if model.serving.engine == "vllm":
        return list(prompt), {"temperature": 0.0, "max_tokens": 1}
    return torch.tensor([list(prompt)]), {}


def values(model: Any, prompt: Sequence[int]) -> dict[str, Tensor]:
    """Every value of every block that the model serves, by ``name`` or ``block.name``."""
    tokens, arguments = one_step(model, prompt)
    served = [value for value in BLOCK_VALUES if model.support()[value.name]]
    with torch.no_grad(), model.trace(tokens, **arguments):
        seen = nnsight.save({})
        seen["input_ids"] = model.input_ids
        seen["token_embeddings"] = model.token_embeddings
        for index in range(model.num_layers):
            for value in served:
                seen[f"{index}.{value.name}"] = getattr(model.host_of(value, index), value.name)
        seen["projected"] = model.project_on_vocab(seen[f"{index}.layer_output"][:, -1:])
        seen["logits"] = model.logits[:, -1:]
        seen["next_token_probs"] = model.next_token_probs
    return {name: tensor.cpu() for name, tensor in seen.items()}


def overwritten(model: Any, prompt: Sequence[int]) -> list[str]:
    """The values that, kept as they were read, are not what they were when they were read."""
    tokens, arguments = one_step(model, prompt)
    with torch.no_grad(), model.trace(tokens, **arguments):
        kept, copies = nnsight.save({}), nnsight.save({})
        kept["token_embeddings"] = model.token_embeddings
        copies["token_embeddings"] = kept["token_embeddings"].clone()
        for index in range(model.num_layers):
            for value in BLOCK_VALUES:
                tensor = getattr(model.host_of(value, index), value.name)
                kept[f"{index}.{value.name}"] = tensor
                copies[f"{index}.{value.name}"] = tensor.clone()
        kept["logits"] = model.logits
        copies["logits"] = kept["logits"].clone()
    return [name for name, tensor in kept.items() if not torch.equal(tensor, copies[name])]


def clean_logits(model: Any, prompt: Sequence[int]) -> Tensor:
    tokens, arguments = one_step(model, prompt)
    with torch.no_grad(), model.trace(tokens, **arguments):
        logits = model.logits[:, -1:].save()
    return logits.cpu()


def edited_in_place(model: Any, prompt: Sequence[int], name: str, layer: int) -> Tensor:
    """The logits after doubling, in place, half the features at every other position.

    Half of them, because the norms that follow would undo a change of scale.
    """
    tokens, arguments = one_step(model, prompt)
    host = model.host_of(VALUES[name], layer)
    seq = VALUES[name].axes.index("seq")
    with torch.no_grad(), model.trace(tokens, **arguments):
        tensor = getattr(host, name)
        tensor.movedim(seq, 0)[1::2, ..., ::2] *= 2
        logits = model.logits[:, -1:].save()
    return logits.cpu()


def assigned(model: Any, prompt: Sequence[int], name: str, layer: int) -> Tensor:
    """The logits after replacing the value by its mirror image along the last axis."""
    tokens, arguments = one_step(model, prompt)
    host = model.host_of(VALUES[name], layer)
    with torch.no_grad(), model.trace(tokens, **arguments):
        setattr(host, name, getattr(host, name).flip(-1))
        logits = model.logits[:, -1:].save()
    return logits.cpu()


def edits(model: Any, prompt: Sequence[int]) -> dict[str, Tensor]:
    """The logits after each edit, by ``way.layer.name``, and unedited, by ``clean``."""
    found = {"clean": clean_logits(model, prompt)}
    for name in EDITABLE:
        for layer in range(model.num_layers if VALUES[name].host != "model" else 1):
            found[f"in_place.{layer}.{name}"] = edited_in_place(model, prompt, name, layer)
            found[f"assigned.{layer}.{name}"] = assigned(model, prompt, name, layer)
    return found
