"""Protects the modules that every request of a step runs through.

The blocks of all requests use the one envoy tree in the worker, so a block must neither leave
anything on it nor keep a module from running for the others.
"""

from __future__ import annotations

import contextlib
import inspect
from typing import Any

from nnsight.intervention.envoy import Envoy
from nnsight.intervention.interleaver import Mediator
from torch import Tensor

from nnterp.engines.vllm.envoys.calls import checked
from nnterp.errors import Unavailable, did_you_mean
from nnterp.tracing.running_block import in_block, require_outside_blocks
from nnterp.tracing.standard_value import StandardValue


class ProtectedEnvoy(Envoy):
    """Lets a block read and write the values of a module, and set nothing else on its envoy."""

    def __setattr__(self, name: str, value: Any) -> None:
        if in_block() and not inspect.isdatadescriptor(getattr(type(self), name, None)):
            names = [n for n in dir(type(self)) if _is_value(getattr(type(self), n, None))]
            raise AttributeError(
                f"{self.path} has no value {name!r} to set{did_you_mean(name, names)}. Every "
                "request of the engine shares its modules, so a block can keep nothing on them; "
                "use a variable"
            )
        super().__setattr__(name, value)

    def __getattr__(self, name: str) -> Any:
        found = super().__getattr__(name)
        if isinstance(found, Tensor) and found.is_meta:
            raise Unavailable(
                f"{self.path}.{name}, {tuple(found.shape)} of {found.dtype}, is in the engine, and "
                "this process has its shape alone: read it in a trace and save what you need, or "
                "call the module there"
            )
        if isinstance(found, Tensor) and not found.numel():
            raise Unavailable(
                f"{self.path}.{name} is packed for vLLM's kernels and cannot be read: call the "
                "module on rows of your own, which vLLM's linear layers answer with their output "
                "and a bias, as in `output, _ = module(rows)`"
            )
        return found

    def __call__(self, *args: Any, hook: bool = False, **kwargs: Any) -> Any:
        """Run the module on rows of the block's own, apart from its part in the forward.

        Returns:
            What the module returns.

        Raises:
            Unavailable: The call is not made in a trace's block, vLLM does not let the module be
                called, or the request's LoRA adapter is not loaded yet.
            ValueError: The rows are of another width or dtype than the module takes, or too many
                for an engine with LoRA adapters.
        """
        if not in_block():
            raise Unavailable(f"{self.path} is in the engine: call it in a trace")
        with checked(self.path, self._module), self._own_adapter(args, kwargs):
            return super().__call__(*args, hook=hook, **kwargs)

    def _own_adapter(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> contextlib.AbstractContextManager[None]:
        """Apply the LoRA adapter of the running block's request while entered, if there are any."""
        adapters = self.interleaver.adapters
        if adapters is None:
            return contextlib.nullcontext()
        return adapters.on_rows(_rows(args, kwargs), Mediator.current(self.path).state.lora_number)

    def trace(self, *args: Any, **kwargs: Any) -> Any:
        # Leaving such a trace would take the blocks of the step off the tree.
        require_outside_blocks(f"{self.path}.trace")
        return super().trace(*args, **kwargs)

    def skip(self, replacement: Any) -> None:
        """Replace this module's output with ``replacement``.

        The module runs all the same: other requests are in the step with this one, and a forward
        cannot leave out some of its rows.

        Args:
            replacement: The output to go on with, of the same structure and shapes.
        """
        Mediator.swap(f"{self.path}.output", replacement)


def _rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> int:
    """Return the number of rows in the first tensor that a module is called with."""
    tensor = next(value for value in (*args, *kwargs.values()) if isinstance(value, Tensor))
    return tensor.shape[:-1].numel() if tensor.is_floating_point() else tensor.numel()


def _is_value(attribute: Any) -> bool:
    """Return whether ``attribute`` of a class is a standard value or another data descriptor."""
    return isinstance(attribute, StandardValue) or inspect.isdatadescriptor(attribute)


def protect(tree: Envoy) -> None:
    """Make every envoy of ``tree`` a `ProtectedEnvoy`, in place."""
    for envoy in tree.modules():
        if not isinstance(envoy, ProtectedEnvoy):
            envoy.__class__ = _protected(type(envoy))


_PROTECTED: dict[type[Envoy], type[Envoy]] = {}


def _protected(envoy_class: type[Envoy]) -> type[Envoy]:
    """Return the subclass of ``envoy_class`` that is also a `ProtectedEnvoy`, made once."""
    if envoy_class not in _PROTECTED:
        _PROTECTED[envoy_class] = type(envoy_class.__name__, (ProtectedEnvoy, envoy_class), {})
    return _PROTECTED[envoy_class]
