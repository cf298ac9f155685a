"""Serves the gradients of standard values in a backward pass.

Where gradients are kept, a block is given a tensor of its own from which the model computes on,
so that autograd gives it the gradient of the value. The engine adapter puts it there without
changing a number. nnsight serves ``.grad`` inside ``with loss.backward():`` in the order in which
autograd computes gradients, and knows tensors by their ids alone. This module keeps the gradients
of served values as they are computed, so that they can be read in any order, and refuses, with an
explanation, a gradient that is never computed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from nnsight.intervention import backward
from nnsight.intervention.interleaver import Interleaver, OutOfOrderError
from torch import Tensor
from torch.utils.weak import WeakTensorKeyDictionary

from nnterp.errors import Unavailable
from nnterp.lifetime import copied


class Served(NamedTuple):
    """`Served` says which value a served tensor is.

    Attributes:
        path: The path of the value.
        no_gradient: Why the model computes nothing from it, or None where it does.
    """

    path: str
    no_gradient: str | None


_served = WeakTensorKeyDictionary()


def serve(tensor: Tensor, path: str, no_gradient: str | None) -> Tensor:
    """Return ``tensor``, after recording that it is the value at ``path``.

    Args:
        tensor: A tensor handed to a block, in the layout of its value.
        path: The path of the value.
        no_gradient: Why the model computes nothing from the value, or None where it does.
    """
    _served[tensor] = Served(path, no_gradient)
    return tensor


class _Session:
    """`_Session` keeps the gradients of one backward pass.

    Attributes:
        interleaver: nnsight's interleaver, which runs the pass.
        passed: The gradients computed so far, by the id of the served value.
        handed: Copies of them that a block was given afterwards: path, copy, and the copy's
            version.
        values: The served values, kept alive so that their ids are not reused.
    """

    def __init__(self, interleaver: Interleaver, seen: set[int], hooks: list[Any]) -> None:
        self.interleaver = interleaver
        self.passed: dict[int, Tensor] = {}
        self.handed: list[tuple[str, Tensor, int]] = []
        self.values = [value for value in _served if value.requires_grad]
        # nnsight registers hooks on other tensors when they are asked for, and removes all hooks
        # in the end.
        seen.update(map(id, self.values))
        hooks.extend(value.register_hook(self._hook(id(value))) for value in self.values)
        hooks.append(self)

    def _hook(self, value: int) -> Callable[[Tensor], Tensor]:
        """Return the autograd hook that keeps the gradient of the tensor with the id ``value``."""
        location = f"{value}.grad"

        def hook(gradient: Tensor) -> Tensor:
            if location in self.interleaver.parked:
                # A copy, because autograd may give the same tensor to another branch.
                copy = copied(gradient)
                version = copy._version
                flowing = self.interleaver.handle(location, copy)
                if flowing is not copy or copy._version != version:
                    gradient = flowing
            self.passed[value] = gradient
            return gradient

        return hook

    def late(self, value: Tensor) -> Tensor | None:
        """Return a copy of the gradient of ``value`` if it has been computed already, or None."""
        gradient = self.passed.get(id(value))
        if gradient is None:
            return None
        copy = copied(gradient)
        self.handed.append((_served[value].path, copy, copy._version))
        return copy

    def remove(self) -> None:
        """Refuse edits of gradients that came too late; nnsight calls this when a pass is over."""
        for path, copy, version in self.handed:
            if copy._version != version:
                raise _too_late(path)


def _too_late(path: str) -> OutOfOrderError:
    """Return the error for an edit of the gradient of ``path`` that was made too late."""
    return OutOfOrderError(
        f"the gradient of {path} had passed when it was edited, so that the edit reaches nothing: "
        "a backward pass goes through the forward in reverse, and of values that are one another's "
        "neighbours through that read last first"
    )


_nnsights = backward._grad_property


def _grad_property(interleaver: Interleaver, seen: set[int], hooks: list[Any]) -> property:
    """Return the property that replaces ``Tensor.grad`` during one backward pass."""
    theirs = _nnsights(interleaver, seen, hooks)
    session = _Session(interleaver, seen, hooks)

    def getter(tensor: Tensor) -> Any:
        served = _known(tensor)
        if served is None:
            return theirs.__get__(tensor)
        late = session.late(tensor)
        if late is not None:
            return late
        try:
            return theirs.__get__(tensor)
        except OutOfOrderError:
            raise _no_gradient(served) from None

    def setter(tensor: Tensor, gradient: Any) -> None:
        served = _known(tensor)
        if served is not None:
            if id(tensor) in session.passed:
                raise _too_late(served.path)
            gradient = _fitting(gradient, tensor, served.path)
        try:
            theirs.__set__(tensor, gradient)
        except OutOfOrderError:
            if served is None:
                raise
            raise _no_gradient(served) from None

    return property(getter, setter)


def _known(tensor: Tensor) -> Served | None:
    """Return what ``tensor`` was served as, or None; refuse one served without gradients."""
    served = _served.get(tensor)
    if served is None or tensor.requires_grad:
        return served
    if not tensor.is_floating_point():
        raise Unavailable(f"{served.path} holds whole numbers, which have no gradient")
    raise Unavailable(
        f"{served.path} was computed without gradients: under torch.no_grad(), or of weights and "
        "inputs none of which requires one"
    )


def _no_gradient(served: Served) -> Unavailable:
    """Return the error for a gradient of ``served`` that this backward pass does not compute."""
    why = served.no_gradient or "its loss is not made of it"
    return Unavailable(f"no gradient reaches {served.path} in this backward pass: {why}")


def _fitting(gradient: Any, value: Tensor, path: str) -> Tensor:
    """Return ``gradient`` on the device and in the dtype of ``value``, whose shape it must have."""
    if not isinstance(gradient, Tensor):
        raise TypeError(f"the gradient of {path} is a tensor and cannot become {gradient!r}")
    if gradient.shape != value.shape:
        raise ValueError(
            f"the gradient of {path} has shape {tuple(value.shape)}, and one of shape "
            f"{tuple(gradient.shape)} cannot take its place"
        )
    return gradient.to(value.device, value.dtype)


def install() -> None:
    """Replace the property that nnsight installs as ``Tensor.grad`` in a backward pass."""
    backward._grad_property = _grad_property
