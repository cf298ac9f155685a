"""What is to be thought of findings: the definition of the values, and the other engine."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from ..compare import gap
from .findings import Findings

#: How far two engines may be apart in float32, relative to a value's largest magnitude.
CLOSE = 2e-5

#: How far the sum of a block's parts may be from the difference it makes.
ROUNDING = 1e-6

#: What an edit has to change the logits by, to be an edit.
EFFECT = 1e-4


@dataclass(frozen=True)
class Line:
    """One thing held against another.

    Attributes:
        kind: ``value``, ``decoded``, ``edit``, ``effect``, ``identity``, ``stream``,
            ``projection``, ``support`` or ``overwritten``.
        key: What, as in `Findings`.
        size: How far apart; for an effect, how large.
        limit: How far it may be; for an effect, how large it must be.
        passed: Whether it is.
        note: In words, where there is no size.
    """

    kind: str
    key: str
    size: float
    limit: float
    passed: bool
    note: str = ""


def on_its_own(found: Findings, rounding: float = ROUNDING) -> Iterator[Line]:
    """What findings must be whatever another engine says."""
    for block in range(found.num_layers):
        values = found.values
        entering, leaving = f"{block}.layer_input", f"{block}.layer_output"
        following = f"{block + 1}.layer_input"
        if leaving in values and following in values:
            size = gap(values[leaving], values[following])
            yield Line("stream", str(block), size, 0.0, size == 0.0)
        if block in found.unsummed:
            continue
        needed = [entering, leaving] + [
            f"{block}.{name}"
            for host, name in (("self_attn", "attention_output"), ("mlp", "mlp_output"))
            if (block, host) not in found.absent
        ]
        lacking = [key.rpartition(".")[2] for key in needed if key not in values]
        if lacking:
            note = f"{' and '.join(lacking)} not served, so what the block adds is not known"
            yield Line("identity", str(block), float("inf"), rounding, False, note)
            continue
        before, after, *parts = [values[key] for key in needed]
        size = gap(sum(parts, before), after)
        moved = gap(before, after)
        yield Line("identity", str(block), size, rounding, size < rounding and moved > rounding)
    if "projected" in found.values:
        size = gap(found.values["projected"], found.values["logits"])
        yield Line("projection", "logits", size, rounding, size < rounding)
    for key, logits in found.edits.items():
        if key != "clean":
            effect = gap(logits, found.edits["clean"])
            yield Line("effect", key, effect, EFFECT, effect > EFFECT)
    for wrong in found.misreported:
        yield Line("support", wrong.split()[0], float("inf"), 0.0, False, wrong)
    for key in found.overwritten:
        yield Line("overwritten", key, float("inf"), 0.0, False, "changed after it was read")


def between(found: Findings, expected: Findings, close: float = CLOSE) -> Iterator[Line]:
    """What ``found`` must be according to another engine's findings."""
    pairs = (
        ("value", found.values, expected.values),
        ("edit", found.edits, expected.edits),
        ("decoded", found.decoded, expected.decoded),
    )
    for kind, own, others in pairs:
        for key in own.keys() & others.keys() - {"projected"}:
            size = gap(own[key], others[key])
            yield Line(kind, key, size, close, size < close)
