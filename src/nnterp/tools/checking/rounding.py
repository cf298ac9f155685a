"""Measures how far rounding alone moves a checkpoint's values.

Two engines add up the same sums in different orders, and round every result. How far that carries
depends on the checkpoint: a large bias on its keys leaves few digits for what is small in them. So
it is measured, on transformers alone, against a wider dtype: how far off the results are, and how
far off they become in the wider dtype when every operation's result is changed at random by up to
its rounding. One random draw may be lucky, so the largest of several counts.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from nnterp.tools.checking import readings
from nnterp.tools.checking.compare import relative_error
from nnterp.tools.checking.findings import Findings
from nnterp.tools.checking.verdict import Line

#: The dtype that counts as exact beside each dtype.
WIDER = {
    torch.float32: torch.float64,
    torch.bfloat16: torch.float32,
    torch.float16: torch.float32,
}

#: The largest relative error by rounding at which a comparison is still informative.
TELLING = {torch.float32: 1e-3, torch.bfloat16: 1e-1, torch.float16: 1e-1}

#: How often the results are changed at random.
_DRAWS = 3


class _Rounding(TorchDispatchMode):
    """Changes each number of every new tensor at random, by up to ``unit`` times the number."""

    def __init__(self, unit: float) -> None:
        super().__init__()
        self.unit = unit

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Any = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        made = func(*args, **(kwargs or {}))
        returns = func._schema.returns
        if len(returns) == 1:
            return self._changed(made, returns[0])
        return tuple(map(self._changed, made, returns)) if returns else made

    def _changed(self, made: Any, returned: Any) -> Any:
        # A view of an argument, or an argument that was written to, has been changed before.
        new = isinstance(made, Tensor) and returned.alias_info is None
        if not new or not made.is_floating_point():
            return made
        return made * torch.empty_like(made).uniform_(1 - self.unit, 1 + self.unit)


def alone(
    model: Any, prompt: Sequence[int], found: Findings, lines: Iterable[Line], dtype: torch.dtype
) -> dict[tuple[str, str], float]:
    """Return how far rounding alone moves what ``lines`` compare, by their kind and key.

    Args:
        model: The checkpoint on transformers, in the wider dtype.
        prompt: Token ids.
        found: What transformers served in the narrower dtype.
        lines: Comparisons of the kinds ``value``, ``edit`` and ``decoded``.
        dtype: The narrower dtype.
    """
    keys = [(line.kind, line.key) for line in lines]
    rounded = {"value": found.values, "edit": found.edits, "decoded": found.decoded}
    following = int(found.values["logits"].argmax())
    exact = _served(model, prompt, following, keys)
    sizes = {
        (kind, key): relative_error(rounded[kind][key], exact[kind, key]) for kind, key in keys
    }
    for draw in range(_DRAWS):
        with torch.random.fork_rng(), _Rounding(torch.finfo(dtype).eps / 2):
            torch.manual_seed(draw)
            drawn = _served(model, prompt, following, keys)
        sizes = {at: max(size, relative_error(drawn[at], exact[at])) for at, size in sizes.items()}
    return sizes


def _served(
    model: Any, prompt: Sequence[int], following: int, keys: Sequence[tuple[str, str]]
) -> dict[tuple[str, str], Tensor]:
    """Return what a model serves of ``keys``, pairs of a kind and a key."""
    by_kind: dict[str, list[str]] = {}
    for kind, key in keys:
        by_kind.setdefault(kind, []).append(key)
    served = {("edit", key): readings.edited(model, prompt, key) for key in by_kind.get("edit", ())}
    if "value" in by_kind:
        values = readings.values(model, prompt)
        served |= {("value", key): values[key] for key in by_kind["value"]}
    if "decoded" in by_kind:
        decoded = readings.decoded(model, prompt, following)
        served |= {("decoded", key): decoded[key] for key in by_kind["decoded"]}
    return served
