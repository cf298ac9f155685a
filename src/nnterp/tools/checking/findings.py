"""Collects what one engine serves of one checkpoint, and what editing it does."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from torch import Tensor

from nnterp.engines.survey import part
from nnterp.tools.checking import readings


@dataclass
class Findings:
    """`Findings` is what was read from one engine.

    Attributes:
        engine: The engine.
        family: The module of the family in use.
        architecture: The engine's class of the model.
        stream: How its blocks pass the residual stream on.
        num_layers: The number of blocks.
        values: Every value served, by ``name`` or ``block.name``.
        edits: The logits after each edit, by ``way.block.name``, and without an edit, by ``clean``;
            ``[1, 1, vocab]``.
        decoded: The values of the step that decodes the next token, by ``name`` or ``block.name``.
        missing: Why a value is not served, by ``block.name``; block -1 is the model itself.
        absent: The parts that blocks do not have: ``(block, "self_attn" or "mlp")``.
        unsummed: The blocks whose output is not the sum of their input and what they add.
        misreported: Where what happens is not what `support()` says.
        overwritten: The values that changed after they were read.
        moved: How far values moved that an edit must not change, by the edit and the value.
        disturbed: Which other requests, beside or after an edited one, were served different
            values.
    """

    engine: str
    family: str
    architecture: str
    stream: str
    num_layers: int
    values: dict[str, Tensor]
    edits: dict[str, Tensor] = field(default_factory=dict)
    decoded: dict[str, Tensor] = field(default_factory=dict)
    missing: dict[str, str] = field(default_factory=dict)
    absent: set[tuple[int, str]] = field(default_factory=set)
    unsummed: set[int] = field(default_factory=set)
    misreported: list[str] = field(default_factory=list)
    overwritten: list[str] = field(default_factory=list)
    moved: dict[str, float] = field(default_factory=dict)
    disturbed: list[str] = field(default_factory=list)


def examine(
    model: Any,
    prompt: Sequence[int],
    both_ways: bool = True,
    advance: Callable[[], Any] = int,
) -> Findings:
    """Return everything that ``model`` serves of ``prompt``.

    Args:
        model: A loaded model, of either engine.
        prompt: Token ids.
        both_ways: Whether each value is edited in both ways, in place and by assignment;
            otherwise in one.
        advance: Called after each edit.
    """
    found = readings.values(model, prompt)
    following = int(found["logits"].argmax())
    support = model.support()
    return Findings(
        engine=model.engine_adapter.engine,
        family=getattr(model.family, "__name__", repr(model.family)),
        architecture=type(model._module).__name__,
        stream=model.layers[0].stream,
        num_layers=model.num_layers,
        values=found,
        edits=readings.edits(model, prompt, both_ways, advance),
        decoded=readings.decoded(model, prompt, following),
        missing={
            f"{block}.{name}": reason
            for name, row in support.items()
            for block, reason in row.reasons.items()
        },
        absent={
            (index, host)
            for index, block in enumerate(model.layers)
            for host in ("self_attn", "mlp")
            if part(block, host) is None
        },
        unsummed={index for index, block in enumerate(model.layers) if not block.is_residual_sum},
        misreported=readings.refusals(model, prompt),
        overwritten=readings.overwritten(model, prompt) if not model.engine_adapter.live else [],
        moved=readings.moved(model, prompt),
        disturbed=readings.disturbed(model, prompt) if not model.engine_adapter.live else [],
    )
