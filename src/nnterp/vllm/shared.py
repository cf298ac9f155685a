"""Modules that every request of a step runs through.

All requests' blocks reach the one tree in the worker, so a block must neither leave
anything on it nor keep a module from running for the others.
"""

from __future__ import annotations

import inspect
from typing import Any

from greenlet import getcurrent
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.interleaver import Mediator
from torch import Tensor

from ..eproperty import StandardValue
from ..errors import did_you_mean


class SharedModule(Envoy):
    """An envoy that a block can read and write the values of, and nothing else."""

    def __setattr__(self, name: str, value: Any) -> None:
        if in_block() and not inspect.isdatadescriptor(getattr(type(self), name, None)):
            names = [n for n in dir(type(self)) if _is_value(getattr(type(self), n, None))]
            raise AttributeError(
                f"{self.path} has no value {name!r} to set{did_you_mean(name, names)}. Every "
                "request of the engine shares its modules, so a block can keep nothing on them; "
                "use a variable"
            )
        super().__setattr__(name, value)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """What the module makes of ``args``, beside the forward; in a block of its rows alone."""
        adapters = self.interleaver.adapters if in_block() else None
        if adapters is None:
            return super().__call__(*args, **kwargs)
        with adapters.on_rows(_rows(args, kwargs), Mediator.current(self.path).adapter):
            return super().__call__(*args, **kwargs)

    def skip(self, replacement: Any) -> None:
        """Have ``replacement`` for this module's output.

        The module runs all the same: other requests are in the step with this one, and a
        forward cannot leave out some of its rows.
        """
        Mediator.swap(f"{self.path}.output", replacement)


def in_block() -> bool:
    """Whether the code running now is a block's."""
    return getattr(getcurrent(), "mediator", None) is not None


def _rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """The rows of the first tensor among what a module is called with."""
    tensor = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    return tensor.shape[:-1].numel() if tensor.is_floating_point() else tensor.numel()


def _is_value(attribute: Any) -> bool:
    return isinstance(attribute, StandardValue) or inspect.isdatadescriptor(attribute)


def share(tree: Envoy) -> None:
    """Make every envoy of ``tree`` a `SharedModule`, in place."""
    for envoy in tree.modules():
        if not isinstance(envoy, SharedModule):
            envoy.__class__ = _shared(type(envoy))


_SHARED: dict[type[Envoy], type[Envoy]] = {}


def _shared(envoy_class: type[Envoy]) -> type[Envoy]:
    if envoy_class not in _SHARED:
        _SHARED[envoy_class] = type(envoy_class.__name__, (SharedModule, envoy_class), {})
    return _SHARED[envoy_class]
