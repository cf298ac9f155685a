"""Finds out what a loaded checkpoint serves, for ``model.support()``.

It is read from the module tree, without running the model: a block serves a value if the block's
envoy has it and names no reason against it.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Protocol

from nnterp.tracing.envoy import StandardEnvoy
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary.support import Served, Support
from nnterp.vocabulary.values import VALUES, Engine, Host, Value


class SurveyedModel(Protocol):
    """`SurveyedModel` is what the survey needs of a model, of either class."""

    engine_adapter: Any
    layers: Any

    @property
    def num_layers(self) -> int:
        """Return the number of decoder blocks."""


def survey(model: SurveyedModel) -> Support:
    """Return what ``model`` serves, and why it does not serve the rest."""
    engine: Engine = model.engine_adapter.engine
    rows = {}
    for value in VALUES.values():
        hosts: dict[int, Any] = {-1: model} if value.host == "model" else dict(_hosts(model, value))
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
    """Return why ``host`` does not serve ``value``, or None where it does.

    Args:
        host: The envoy that would host it, or None where a block has no such part.
        value: The vocabulary row.
    """
    if host is None:
        return f"this block has no {value.host} module"
    if not isinstance(getattr(type(host), value.name, None), StandardValue):
        return f"{type(host).__name__}, the envoy of this family's {value.host}, has no such value"
    return host.unavailable(value.name)


def _writable(hosts: Iterable[StandardEnvoy | None], value: Value) -> bool:
    """Return whether ``value`` can be edited wherever ``hosts`` have it."""
    found = [(host, getattr(type(host), value.name, None)) for host in hosts]
    return all(
        prop.why_read_only(host) is None
        for host, prop in found
        if host is not None and isinstance(prop, StandardValue)
    )


def part(block: Any, host: Host) -> Any:
    """Return the part of ``block`` that hosts values of ``host``, or None where it has none.

    A recurrent mixer takes the place of attention: what it adds to the stream is served there.

    Args:
        block: The envoy of the block.
        host: The name of the part, ``self_attn`` or ``mlp``.
    """
    found = getattr(block, host, None)
    if found is None and host == "self_attn":
        return getattr(block, "linear_attn", None)
    return found


def _hosts(model: SurveyedModel, value: Value) -> Iterator[tuple[int, StandardEnvoy | None]]:
    """Yield each block's index and its envoy that would host ``value``."""
    for index, layer in enumerate(model.layers):
        yield index, layer if value.host == "layer" else part(layer, value.host)
