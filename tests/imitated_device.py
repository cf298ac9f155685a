"""A device that is asynchronous as a GPU is, imitated by threads.

An operation on one of its tensors returns at once and runs later, on the thread of the stream
that it was launched on, in that stream's order and after a delay drawn from a seed; those of a
forward are no exception. Two streams are ordered by events and by nothing else. Memory is
another tensor's as soon as its own last tensor is gone: the stream that it was made on writes
over it, and waits for another stream only if `record_stream` has named that.
"""

from __future__ import annotations

import contextlib
import queue
import random
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten, tree_leaves, tree_map_only

#: What the device's tensors say they are on: every build of torch knows it, none computes on it.
DEVICE = torch.device("meta")

#: What memory holds that nothing was written to: in every floating type a NaN.
_GARBAGE = 0xFF

#: The mean delays, in seconds, of which each stream has one for its operations.
_PACES = (0.0, 0.0001, 0.001)

#: How long anything is waited for, in seconds.
_PATIENCE = 8.0


def _wait(reached: threading.Event) -> None:
    if not reached.wait(_PATIENCE):
        raise TimeoutError("a stream never got there")


class Stream:
    """Runs what is launched on it, in order, on a thread."""

    def __init__(self, device: Device, pace: float, delays: random.Random) -> None:
        self._device, self._pace, self._delays = device, pace, delays
        self._work: queue.SimpleQueue[Callable[[], Any] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while (work := self._work.get()) is not None:
            if self._pace:
                time.sleep(2 * self._pace * self._delays.random())
            try:
                work()
            except BaseException as error:  # raised where the imitation ends
                self._device.failures.append(error)

    def launch(self, work: Callable[[], Any]) -> None:
        self._work.put(work)

    def wait_event(self, event: Event) -> None:
        self.launch(partial(_wait, event.reached))

    def wait_stream(self, other: Stream) -> None:
        self.wait_event(other.record_event())

    def record_event(self) -> Event:
        event = Event(self._device)
        event.record(self)
        return event

    def synchronize(self) -> None:
        self.record_event().synchronize()

    def end(self) -> None:
        self._work.put(None)
        self._thread.join(_PATIENCE)


class Event:
    """A point in the work of the stream that it was recorded on last."""

    def __init__(self, device: Device) -> None:
        self._device = device
        self.reached = threading.Event()
        # As CUDA has it, nothing waits for an event that was never recorded.
        self.reached.set()

    def record(self, stream: Stream | None = None) -> None:
        self.reached = threading.Event()
        (stream or self._device.current_stream()).launch(self.reached.set)

    def synchronize(self) -> None:
        _wait(self.reached)


class _Allocation:
    """Memory of the device, as long as a tensor lies in it.

    Args:
        memory: Its bytes.
        stream: The stream that it is made on.

    Attributes:
        users: The other streams that were said to use it.
    """

    def __init__(self, memory: Tensor, stream: Stream) -> None:
        self._memory, self._stream = memory, stream
        self.users: list[Stream] = []

    def __del__(self) -> None:
        _reuse(self._memory, self._stream, self.users)


def _reuse(memory: Tensor, stream: Stream, users: list[Stream]) -> None:
    """Have ``stream`` write over ``memory``, once the ``users`` are done with it."""
    if users:
        users[0].launch(partial(_reuse, memory, stream, users[1:]))
    else:
        stream.launch(partial(memory.fill_, _GARBAGE))


class DeviceTensor(torch.Tensor):
    """A tensor of the device.

    Attributes:
        numbers: The same memory as a tensor of the host, for the streams alone.
        allocation: What keeps that memory its own.
    """

    numbers: Tensor
    allocation: _Allocation

    is_cuda = property(lambda self: True)
    device = property(lambda self: DEVICE)

    def record_stream(self, stream: Stream) -> None:
        self.allocation.users.append(stream)

    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, *_: Any) -> Any:
        raise AssertionError(f"{func} outside of the imitation")


def _numbers(tensor: Tensor) -> Tensor:
    return tensor.numbers if isinstance(tensor, DeviceTensor) else tensor


class Device(TorchDispatchMode):
    """The device: what it is given to do by the thread that it is imitated in.

    Args:
        seed: What the paces of its streams and their delays are drawn from.
        paces: The mean delays of its first streams, of which the first is a forward's, instead.

    Attributes:
        failures: What the streams' operations raised.
    """

    def __init__(self, seed: int, paces: tuple[float, ...] = ()) -> None:
        super().__init__()
        self.failures: list[BaseException] = []
        self._random = random.Random(seed)
        self._paces = list(paces)
        self._streams: list[Stream] = []
        self._pinned: dict[int, Tensor] = {}
        self._current = threading.local()
        self._default = self.stream()

    def stream(self) -> Stream:
        """Another stream."""
        pace = self._paces.pop(0) if self._paces else self._random.choice(_PACES)
        stream = Stream(self, pace, random.Random(self._random.random()))
        self._streams.append(stream)
        return stream

    def current_stream(self, device: Any = None) -> Stream:
        """The stream that the calling thread launches on."""
        return getattr(self._current, "stream", self._default)

    @contextlib.contextmanager
    def launching_on(self, stream: Stream) -> Iterator[None]:
        """Have the calling thread launch on ``stream``."""
        before = self.current_stream()
        self._current.stream = stream
        try:
            yield
        finally:
            self._current.stream = before

    def synchronize(self, device: Any = None) -> None:
        """Wait for every stream."""
        for stream in self._streams:
            stream.synchronize()

    def end(self) -> None:
        """End the streams, once they have done what they were given."""
        for stream in self._streams:
            stream.end()

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = dict(kwargs or {})
        pinned = kwargs.pop("pin_memory", False)
        tensors = [leaf for leaf in tree_leaves((args, kwargs)) if isinstance(leaf, Tensor)]
        ours = [tensor for tensor in tensors if isinstance(tensor, DeviceTensor)]
        if not ours and kwargs.get("device") != DEVICE:
            made = func(*args, **kwargs)
            if pinned:
                self._pinned[made.untyped_storage().data_ptr()] = made
            return made
        if func.is_view:
            view = func(*tree_map_only(Tensor, _numbers, args), **kwargs)
            return tree_map_only(Tensor, partial(_wrapped, allocation=ours[0].allocation), view)
        named = dict(
            zip((argument.name for argument in func._schema.arguments), args, strict=False)
        )
        named |= kwargs
        written = [
            named[argument.name]
            for argument in func._schema.arguments
            if argument.alias_info is not None and argument.alias_info.is_write
        ]
        if not written:
            return self._compute(func, args, kwargs)
        (into,) = written
        self._launch(func, args, kwargs, into)
        waits = not (self._is_pinned(into) and named.get("non_blocking"))
        if not isinstance(into, DeviceTensor) and waits:
            self.current_stream().synchronize()
        return into

    def _is_pinned(self, tensor: Tensor) -> bool:
        return tensor.untyped_storage().data_ptr() in self._pinned

    def _launch(
        self,
        func: Any,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        into: Tensor | None = None,
        then: Callable[[Any], Any] = lambda made: None,
    ) -> None:
        """Have the current stream run ``func``, which writes to ``into``, and ``then``."""

        def operand(tensor: Tensor) -> Tensor:
            if isinstance(tensor, DeviceTensor) or tensor is into or self._is_pinned(tensor):
                return _numbers(tensor)
            return tensor.clone()  # the host's memory is read as the operation is launched

        if "device" in kwargs:
            kwargs = {**kwargs, "device": torch.device("cpu")}
        args, kwargs = tree_map_only(Tensor, operand, (args, kwargs))
        self.current_stream().launch(lambda: then(func(*args, **kwargs)))

    def _compute(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """What ``func`` makes: at once on the host, and later on the device."""
        to_host = kwargs.get("device", DEVICE) != DEVICE
        if to_host or not isinstance(func._schema.returns[0].type, torch.TensorType):
            made: list[Any] = []
            self._launch(func, args, kwargs, then=made.append)
            self.current_stream().synchronize()
            return made[0]
        outlines = func(
            *tree_map_only(Tensor, _outline, args),
            **{**kwargs, "device": DEVICE} if "device" in kwargs else kwargs,
        )
        flat, structure = tree_flatten(outlines)
        results = [self._allocate(outline) for outline in flat]
        memory = [result.numbers for result in results]

        def keep(made: Any) -> None:
            for into, one in zip(memory, tree_leaves(made), strict=True):
                into.copy_(one)

        if "empty" not in func._schema.name:
            self._launch(func, args, kwargs, then=keep)
        return structure.unflatten(results)

    def _allocate(self, outline: Tensor) -> DeviceTensor:
        memory = torch.full((outline.untyped_storage().nbytes(),), _GARBAGE, dtype=torch.uint8)
        numbers = memory.view(outline.dtype).as_strided(outline.shape, outline.stride())
        return _wrapped(numbers, _Allocation(memory, self.current_stream()))


def _wrapped(numbers: Tensor, allocation: _Allocation) -> DeviceTensor:
    tensor = torch.Tensor._make_subclass(DeviceTensor, numbers)
    tensor.numbers, tensor.allocation = numbers, allocation
    return tensor


def _outline(tensor: Tensor) -> Tensor:
    """A tensor of that size and type without numbers."""
    numbers = _numbers(tensor)
    return torch.empty_strided(numbers.shape, numbers.stride(), dtype=numbers.dtype, device=DEVICE)


@contextlib.contextmanager
def imitated(seed: int = 0, *paces: float) -> Iterator[Device]:
    """Have the device in the place of CUDA, for what this thread launches.

    Args:
        seed: What its streams' paces are drawn from.
        paces: The mean delays of its first streams, of which the first is a forward's, instead.
    """
    device = Device(seed, paces)
    names = {
        "Stream": device.stream,
        "Event": partial(Event, device),
        "stream": device.launching_on,
        "current_stream": device.current_stream,
        "synchronize": device.synchronize,
        "mem_get_info": lambda: (1 << 40, 1 << 40),
    }
    with pytest.MonkeyPatch.context() as patch:
        for name, imitation in names.items():
            patch.setattr(torch.cuda, name, imitation)
        try:
            with device, torch.no_grad():
                yield device
        finally:
            device.end()
    if device.failures:
        raise device.failures[0]
