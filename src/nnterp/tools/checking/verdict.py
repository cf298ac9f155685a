"""Compares findings with the definition of the values, and with another engine's findings."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from nnterp.tools.checking.compare import relative_error
from nnterp.tools.checking.findings import Findings
from nnterp.vocabulary.values import LAYER_OUTPUT, MLP_OUTPUT, ROUTING

#: How far two engines may be apart in float32, relative to a value's largest magnitude.
CLOSE = 2e-5

#: How many times further apart two engines may be than rounding alone moves a value: each of them
#: rounds, so they differ by up to twice that, and the rounding of the other engine may be half as
#: large again as the rounding that was measured.
BEYOND_ROUNDING = 3

#: How far, in float32, the sum of a block's parts may be from the difference it makes.
ROUNDING = 1e-6

#: The values of a block that hold what its MLP computes.
_FROM_MLP = frozenset({MLP_OUTPUT.name, LAYER_OUTPUT.name})

#: The relative change of the logits above which an edit counts as having an effect.
EFFECT = 1e-4


@dataclass(frozen=True)
class Line:
    """A `Line` is one comparison and its outcome.

    Attributes:
        kind: ``value``, ``decoded``, ``edit``, ``effect``, ``identity``, ``stream``,
            ``projection``, ``support``, ``overwritten``, ``untouched`` or ``neighbours``.
        key: What is compared, as in `Findings`.
        size: How far the two are apart; for an effect, how large it is.
        limit: How far apart they may be; for an effect, how large it must be.
        passed: Whether the size is within the limit.
        note: What is wrong, where the size does not say it.
        rounding: How far apart rounding alone makes them, where that was measured.
        told: Whether the outcome can be told from rounding; if not, the line has not passed.
    """

    kind: str
    key: str
    size: float
    limit: float
    passed: bool
    note: str = ""
    rounding: float | None = None
    told: bool = True


def on_its_own(found: Findings, rounding: float = ROUNDING) -> Iterator[Line]:
    """Yield the comparisons of one engine's findings with the definition of the values.

    Args:
        found: The findings.
        rounding: How far the sum of a block's parts may be from the difference the block makes.
    """
    for block in range(found.num_layers):
        values = found.values
        entering, leaving = f"{block}.layer_input", f"{block}.layer_output"
        following = f"{block + 1}.layer_input"
        if leaving in values and following in values:
            size = relative_error(values[leaving], values[following])
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
        size = relative_error(sum(parts, before), after)
        moved = relative_error(before, after)
        passed = size < rounding < moved
        told = not (size < rounding and 0.0 < moved <= rounding)
        note = "" if told else f"the block changes the stream by {moved:.0e}, which is rounding"
        yield Line("identity", str(block), size, rounding, passed, note, told=told)
    if "projected" in found.values:
        size = relative_error(found.values["projected"][:, -1:], found.values["logits"])
        yield Line("projection", "logits", size, rounding, size < rounding)
    for key, logits in found.edits.items():
        if key != "clean":
            effect = relative_error(logits, found.edits["clean"])
            yield Line("effect", key, effect, EFFECT, effect > EFFECT)
    for wrong in found.misreported:
        yield Line("support", wrong.split()[0], float("inf"), 0.0, False, wrong)
    for key in found.overwritten:
        yield Line("overwritten", key, float("inf"), 0.0, False, "changed after it was read")
    for key, size in found.moved.items():
        limit = rounding if _is_grouped(key, found) else 0.0
        yield Line("untouched", key, size, limit, size <= limit)
    if not found.moved:
        yield Line("untouched", "all", 0.0, 0.0, True)
    for key in found.disturbed:
        yield Line("neighbours", key, float("inf"), 0.0, False, "served otherwise")
    if found.engine == "vllm" and not found.disturbed:
        yield Line("neighbours", "all", 0.0, 0.0, True)


def _is_grouped(key: str, found: Findings) -> bool:
    """Return whether other rows decide how ``key``, a value under an edit, is rounded.

    On transformers an expert computes the rows that chose it in one product, and on some CPUs the
    rounding of a product depends on the number of its rows. An edited row may choose other experts.
    """
    edit, _, value = key.partition(".")
    mixtures = [
        int(own.partition(".")[0]) for own in found.values if own.rpartition(".")[2] in ROUTING
    ]
    if found.engine != "transformers" or edit == "equal" or not mixtures:
        return False
    block, _, name = value.partition(".")
    first = min(mixtures)
    return int(block) > first or (int(block) == first and name in _FROM_MLP)


def between(
    found: Findings,
    expected: Findings,
    rounding: Mapping[tuple[str, str], float] | None = None,
    telling: float = float("inf"),
) -> Iterator[Line]:
    """Yield the comparisons of ``found`` with another engine's findings.

    Args:
        found: The findings that are checked.
        expected: The findings they are compared with.
        rounding: How far rounding alone moves what a line compares, by kind and key, where it
            was measured.
        telling: How far rounding alone may move it, for the comparison to be informative.
    """
    pairs = (
        ("value", found.values, expected.values),
        ("edit", found.edits, expected.edits),
        ("decoded", found.decoded, expected.decoded),
    )
    for kind, own, others in pairs:
        for key in sorted(own.keys() & others.keys()):
            size = relative_error(own[key], others[key])
            alone = (rounding or {}).get((kind, key))
            limit = max(CLOSE, BEYOND_ROUNDING * (alone or 0.0))
            if alone is None or alone <= telling:
                yield Line(kind, key, size, limit, size < limit, rounding=alone)
            else:
                note = f"{size:.1e}, and rounding alone makes {alone:.1e}"
                yield Line(kind, key, size, limit, False, note, alone, told=False)
