"""What a site is.

nnsight hands every module's input and output to a block as the forward reaches them, each
under a *location* such as ``model.model.layers.3.output``. What arrives there is whatever the
architecture passes around: a bare tensor, a tuple, a pair whose sum is the residual stream, an
``(args, kwargs)`` call. A `Site` says at which location a value is and how to take it out of,
and put it back into, what arrives.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from functools import cache
from typing import Any

from nnsight.intervention.envoy import Envoy
from torch import Tensor

from nnterp.lifetime import Reading


class Site:
    """Where a value is, and how it is read and replaced there.

    Sites are frozen dataclasses: data that a family chooses from, which know no engine.
    """

    #: Why the value is not written here, in words; None where it is.
    read_only: str | None = None

    #: Why the model computes nothing from the value, in words, so that no gradient reaches it
    #: but that of a loss made of it; None where it does.
    no_gradient: str | None = None

    #: Whether what is read are rows of one request already, whatever the step holds.
    holds_own_rows: bool = False

    def location(self, host: Envoy) -> str:
        """The nnsight location that the value is read at."""
        raise NotImplementedError

    def missing(self, host: Envoy) -> str | None:
        """Why ``host`` has no such place, or None where it has."""
        return None

    def read(self, host: Envoy, raw: Any) -> Reading:
        """The value, out of what arrived at the location."""
        raise NotImplementedError

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        """What arrived, with ``tensor`` in the value's place; the rest is left as it is."""
        raise NotImplementedError(f"{host.path}: {self.read_only}")


def module_at(host: Envoy, path: str) -> Envoy:
    """The envoy at ``path`` from ``host``: ``"."`` is itself, ``"..x"`` its parent's ``x``."""
    names = path.lstrip(".")
    envoy = host
    for _ in range(len(path) - len(names) - 1):
        parent = envoy.parent
        if parent is None:
            raise ValueError(f"{path!r} leads above the root from {host.path!r}")
        envoy = parent
    return envoy.get(names) if names else envoy


def find_module(host: Envoy, path: str) -> Envoy | None:
    """The envoy at ``path`` from ``host``; None where there is no module."""
    try:
        envoy = module_at(host, path)
    except AttributeError:
        return None
    return envoy if isinstance(envoy, Envoy) else None


@cache
def parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    """The names of what a module's ``forward`` takes."""
    return tuple(inspect.signature(forward).parameters)[1:]  # without self
