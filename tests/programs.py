"""Random programs of reads, edits and assignments, that run unchanged on either engine.

A program visits values of two blocks in forward order and does a few things to each. What
it saw, and the logits it ended with, must not depend on the engine it ran on.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from typing import Any

import nnsight
import torch
from torch import Tensor

from nnterp.tools.checking.compare import relative_error
from nnterp.vocabulary.values import VALUES

#: What a program can touch in a block, in forward order.
TOUCHED = (
    "layer_input",
    "attention_queries",
    "attention_keys",
    "attention_values",
    "attention_head_outputs",
    "attention_output",
    "mlp_output",
    "layer_output",
)

Action = tuple[str, float]
Program = list[tuple[int, str, list[Action]]]

ACTIONS: dict[str, Callable[[Any, str, float], None]] = {}


def action(act: Callable[[Any, str, float], None]) -> Callable[[Any, str, float], None]:
    ACTIONS[act.__name__] = act
    return act


def rows(host: Any, name: str) -> Tensor:
    """The value as a view with positions first."""
    return getattr(host, name).movedim(VALUES[name].axes.index("seq"), 0)


@action
def scale_rows(host: Any, name: str, by: float) -> None:
    rows(host, name)[1::2] *= by


@action
def scale_features_through_two_views(host: Any, name: str, by: float) -> None:
    rows(host, name)[2:].transpose(0, -1)[::3] *= by


@action
def add_under_a_mask(host: Any, name: str, by: float) -> None:
    tensor = getattr(host, name)
    features = torch.arange(tensor.shape[-1], device=tensor.device)
    tensor[features.expand_as(tensor) % 5 == 0] += by


@action
def multiply_into_itself(host: Any, name: str, by: float) -> None:
    tensor = getattr(host, name)
    torch.mul(tensor, by, out=tensor)


@action
def add_through_the_attribute(host: Any, name: str, by: float) -> None:
    setattr(host, name, getattr(host, name).add_(by))


@action
def read_twice_in_one_edit(host: Any, name: str, by: float) -> None:
    getattr(host, name)[..., 0] += by * getattr(host, name)[..., 1]


@action
def copy_a_position(host: Any, name: str, by: float) -> None:
    view = rows(host, name)
    view[-1].copy_(view[0] * by)


@action
def fill_a_feature(host: Any, name: str, by: float) -> None:
    getattr(host, name).select(-1, 3).fill_(by)


@action
def lerp_with_foreach(host: Any, name: str, by: float) -> None:
    torch._foreach_mul_([getattr(host, name)], by)


@action
def scatter(host: Any, name: str, by: float) -> None:
    tensor = getattr(host, name)
    tensor.index_fill_(-1, torch.tensor([1, 4], device=tensor.device), by)


@action
def assign_scaled(host: Any, name: str, by: float) -> None:
    setattr(host, name, getattr(host, name) * by)


@action
def assign_reversed(host: Any, name: str, by: float) -> None:
    setattr(host, name, getattr(host, name).flip(-1))


@action
def assign_in_another_dtype(host: Any, name: str, by: float) -> None:
    setattr(host, name, getattr(host, name).double() + by)


@action
def assign_not_contiguous(host: Any, name: str, by: float) -> None:
    tensor = getattr(host, name)
    setattr(host, name, torch.stack([tensor * by, tensor], dim=-1)[..., 0])


@action
def edit_then_assign(host: Any, name: str, by: float) -> None:
    getattr(host, name)[..., ::2] = by
    setattr(host, name, getattr(host, name) * 0.5)


@action
def assign_then_edit(host: Any, name: str, by: float) -> None:
    setattr(host, name, getattr(host, name) * by)
    getattr(host, name)[..., 1::4] -= by


#: By what programs scale and shift, and what none survives.
FINITE = (0.5, 0.8, -0.7, 1.3)
NOT_FINITE = (float("nan"), float("inf"), float("-inf"))


def draw(random: Random, numbers: Sequence[float] = FINITE) -> Program:
    """A program over two blocks, with ``numbers`` to edit by."""
    program: Program = []
    for layer in range(2):
        for name in TOUCHED:
            if random.random() < 0.35:
                kinds = random.choices([*ACTIONS, "read", "read", "read"], k=random.randint(1, 3))
                actions = [(kind, random.choice(numbers)) for kind in kinds]
                program.append((layer, name, actions))
    return program


def draw_batch(random: Random, size: int) -> list[Program]:
    """A program for each of ``size`` prompts; some do the same thing to the same places."""
    drawn = [draw(random) for _ in range(size)]
    return [random.choice(drawn) for _ in range(size)] if random.random() < 0.4 else drawn


def perform(model: Any, program: Program) -> dict[str, Tensor]:
    """Run a program, inside a trace; what it read, each as it was when it was read."""
    seen: dict[str, Tensor] = {}
    for index, (layer, name, actions) in enumerate(program):
        host = model.host_of(VALUES[name], layer)
        for turn, (kind, by) in enumerate(actions):
            if kind == "read":
                seen[f"{index}.{turn}.{layer}.{name}"] = getattr(host, name).clone()
            else:
                ACTIONS[kind](host, name, by)
    seen["logits"] = model.logits[:, -1:].clone()
    return seen


def on_transformers(
    model: Any, prompts: Sequence[list[int]], programs: Sequence[Program]
) -> list[dict[str, Tensor]]:
    """Each program on its prompt, one after the other."""
    found = []
    for prompt, program in zip(prompts, programs, strict=True):
        with torch.no_grad(), model.trace(torch.tensor([prompt])):
            seen = nnsight.save(perform(model, program))
        found.append(seen)
    return found


def on_vllm(
    model: Any, prompts: Sequence[list[int]], programs: Sequence[Program]
) -> list[dict[str, Tensor]]:
    """Each program on its prompt, all in one batch."""
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        found = nnsight.save([None] * len(prompts))
        for index, (prompt, program) in enumerate(zip(prompts, programs, strict=True)):
            with tracer.invoke(prompt):
                found[index] = perform(model, program)
    return found


def worst_gap(found: list[dict[str, Tensor]], expected: list[dict[str, Tensor]]) -> float:
    """The largest gap over everything the programs saw."""
    gaps = [0.0]
    for one, other in zip(found, expected, strict=True):
        if one.keys() != other.keys():
            return float("inf")
        gaps += [relative_error(one[key].cpu(), other[key].cpu()) for key in other]
    return max(gaps)
