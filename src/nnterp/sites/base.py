"""Defines `Site`, the base class of every description of where a value is.

nnsight hands every module's input and output to a block as the forward reaches them, each
under a *location* such as ``model.model.layers.3.output``. What arrives there is whatever the
architecture passes around: a bare tensor, a tuple, a pair whose sum is the residual stream, an
``(args, kwargs)`` call. A `Site` says at which location a value is, how to take it out of what
arrives, and how to put it back.
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
    """A site says where a value is, and how it is read and replaced there.

    Sites are frozen dataclasses: data that a family chooses from, independent of the engine.
    """

    #: Why the value cannot be written here, for an error message; None where it can.
    read_only: str | None = None

    #: Why the model computes nothing from the value, for an error message; the only gradient that
    #: then reaches it is that of a loss computed from it. None where the model computes with it.
    no_gradient: str | None = None

    #: Whether an edit has to be in the memory of what arrived, because others hold it as well.
    writes_in_place: bool = False

    #: Whether reading already gives the rows of one request, whichever others share the step.
    holds_own_rows: bool = False

    def location(self, host: Envoy) -> str:
        """Return the nnsight location at which the value is read."""
        raise NotImplementedError

    def missing(self, host: Envoy) -> str | None:
        """Return why ``host`` has no such place, or None where it has one."""
        return None

    def read(self, host: Envoy, raw: Any) -> Reading:
        """Return the value, taken out of what arrived at the location (``raw``)."""
        raise NotImplementedError

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        """Return ``raw`` with ``tensor`` in place of the value and everything else unchanged."""
        raise NotImplementedError(f"{host.path}: {self.read_only}")


def module_at(host: Envoy, path: str) -> Envoy:
    """Return the envoy at ``path`` from ``host``: ``"."`` is it, ``"..x"`` its parent's ``x``.

    Raises:
        ValueError: ``path`` leads above the root of the tree.
    """
    names = path.lstrip(".")
    envoy = host
    for _ in range(len(path) - len(names) - 1):
        parent = envoy.parent
        if parent is None:
            raise ValueError(f"{path!r} leads above the root from {host.path!r}")
        envoy = parent
    return envoy.get(names) if names else envoy


def find_module(host: Envoy, path: str) -> Envoy | None:
    """Return the envoy at ``path`` from ``host``, or None where there is no module."""
    try:
        envoy = module_at(host, path)
    except AttributeError:
        return None
    return envoy if isinstance(envoy, Envoy) else None


@cache
def parameters(forward: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names of the parameters of a module's ``forward``, without ``self``."""
    return tuple(inspect.signature(forward).parameters)[1:]  # without self
