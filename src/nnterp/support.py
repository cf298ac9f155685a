"""What a loaded checkpoint serves: the answer of ``model.support()``.

Read off the module tree, without running it: a value is served by a block when the
block's envoy has it and names no reason against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from .eproperty import StandardValue
from .serving import StandardEnvoy
from .values import VALUES, Engine, Host, Value

if TYPE_CHECKING:
    from .standardized import Standardized


@dataclass(frozen=True)
class Served:
    """Whether, where and how one value is served.

    Attributes:
        value: The vocabulary row.
        layout: The axes it is served in here.
        writable: Whether it can be edited or replaced here.
        steps: The steps of a generation that serve it.
        blocks: The blocks that serve it; empty for a value of the model itself.
        reasons: Why the others do not, a block's reason by its index; a value of the
            model itself has its reason under -1.
    """

    value: Value
    layout: str
    writable: bool
    steps: str
    blocks: tuple[int, ...]
    reasons: Mapping[int, str]

    @property
    def available(self) -> bool:
        """Whether at least one block, or the model itself, serves it."""
        return bool(self.blocks) or (self.value.host == "model" and not self.reasons)

    def __bool__(self) -> bool:
        return self.available


class Support(Mapping[str, Served]):
    """What a checkpoint serves, by value name; printed as a table."""

    def __init__(self, rows: Mapping[str, Served], num_layers: int) -> None:
        self._rows = dict(rows)
        self._num_layers = num_layers

    def __getitem__(self, name: str) -> Served:
        return self._rows[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._rows)

    def __len__(self) -> int:
        return len(self._rows)

    def __repr__(self) -> str:
        lines = []
        for row in self._rows.values():
            access = "read, write" if row.writable else "read"
            note = self._note(row)
            lines.append(f"{row.value.name:24} [{row.layout}]".ljust(60) + f"{access:12} {note}")
        return "\n".join(line.rstrip() for line in lines)

    def _note(self, row: Served) -> str:
        if not row.available:
            return "unavailable: " + "; ".join(sorted(set(row.reasons.values())))
        note = "" if row.steps == "every step" else row.steps
        if row.reasons:
            note += f" on {len(row.blocks)} of {self._num_layers} blocks"
        return note


def support(model: Standardized) -> Support:
    """What ``model`` serves, and why it does not serve the rest."""
    engine: Engine = model.serving.engine
    rows = {}
    for value in VALUES.values():
        hosts = {-1: model} if value.host == "model" else dict(_hosts(model, value))
        reasons = {}
        for index, host in hosts.items():
            reason = reason_against(host, value)
            if reason is not None:
                reasons[index] = reason
        rows[value.name] = Served(
            value=value,
            layout=value.layout_on(engine),
            writable=engine in value.writable_on and _writable(hosts.values(), value),
            steps="the prefill step" if engine in value.prefill_only_on else "every step",
            blocks=tuple(i for i in hosts if i >= 0 and i not in reasons),
            reasons=reasons,
        )
    return Support(rows, model.num_layers)


def reason_against(host: StandardEnvoy | None, value: Value) -> str | None:
    """Why ``host`` does not serve ``value``, or None where it does."""
    if host is None:
        return f"this block has no {value.host} module"
    if not isinstance(getattr(type(host), value.name, None), StandardValue):
        return f"{type(host).__name__}, the envoy of this family's {value.host}, has no such value"
    return host.unavailable(value.name)


def _writable(hosts: Iterable[StandardEnvoy | None], value: Value) -> bool:
    """Whether ``value`` can be edited wherever ``hosts`` have it."""
    found = [(host, getattr(type(host), value.name, None)) for host in hosts]
    return all(
        prop.why_read_only(host) is None
        for host, prop in found
        if host is not None and isinstance(prop, StandardValue)
    )


def part(block: Any, host: Host) -> Any:
    """The part of ``block`` that hosts values of ``host``; None where it has none.

    A recurrent mixer stands in for attention: what it adds to the stream is served there.
    """
    found = getattr(block, host, None)
    if found is None and host == "self_attn":
        return getattr(block, "linear_attn", None)
    return found


def _hosts(model: Standardized, value: Value) -> Iterator[tuple[int, StandardEnvoy | None]]:
    for index, layer in enumerate(model.layers):
        yield index, layer if value.host == "layer" else part(layer, value.host)
