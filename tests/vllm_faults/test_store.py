"""Rows that leave a GPU while the forward goes on, on streams imitated by threads.

The imitation's copies wait until they are let go, as a GPU's do behind whatever else is on
their stream; what they then copy is what is there then.
"""

from __future__ import annotations

import contextlib
import queue
import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from nnterp.engines.vllm.worker import store
from nnterp.engines.vllm.worker.device_copier import DeviceToHostCopier


class Stream:
    """Runs what is put on it in order, on a thread, once ``Stream.moving`` is set."""

    moving = threading.Event()
    current: Stream | None = None

    def __init__(self) -> None:
        self._work: queue.Queue[Callable[[], Any]] = queue.Queue()
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        while True:
            work = self._work.get()
            Stream.moving.wait()
            work()

    def put(self, work: Callable[[], Any]) -> None:
        self._work.put(work)

    def wait_event(self, event: Event) -> None:
        self.put(event.synchronize)


class Event:
    def __init__(self) -> None:
        self._set = threading.Event()

    def record(self) -> None:
        if Stream.current is None:
            self._set.set()
        else:
            Stream.current.put(self._set.set)

    def synchronize(self) -> None:
        self._set.wait()


@contextlib.contextmanager
def stream(one: Stream) -> Iterator[None]:
    Stream.current = one
    try:
        yield
    finally:
        Stream.current = None


@pytest.fixture(autouse=True)
def imitated(monkeypatch: pytest.MonkeyPatch) -> None:
    copy, empty = torch.Tensor.copy_, torch.empty

    def copy_(into: torch.Tensor, rows: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
        if Stream.current is None:
            return copy(into, rows)
        Stream.current.put(lambda: copy(into, rows))
        return into

    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "stream", stream)
    monkeypatch.setattr(torch.Tensor, "copy_", copy_)
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda rows, stream: None)
    monkeypatch.setattr(torch, "empty", lambda *s, pin_memory=False, **kw: empty(*s, **kw))
    monkeypatch.setattr(store, "_PIECE", 256)
    Stream.moving.clear()


def test_rows_arrive_as_they_were_when_they_were_sent() -> None:
    buffer = torch.randn(12, 8)
    then = buffer.clone()
    into = torch.zeros(20, 8)
    copier = DeviceToHostCopier()
    copier.send(buffer[2:7], into, slice(0, 5))
    copier.send(buffer.narrow(1, 2, 8 - 2).narrow(0, 0, 2), into[:, :6], torch.tensor([9, 7]))
    buffer.fill_(float("nan"))
    Stream.moving.set()
    copier.close()
    assert torch.equal(into[:5], then[2:7])
    assert torch.equal(into[[9, 7], :6], then[:2, 2:])


def test_more_rows_than_there_is_memory_on_the_way_wait_for_room(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(store, "_PIECES", 2)
    rows = torch.randn(200, 8)
    into = torch.zeros(200, 8)
    copier = DeviceToHostCopier()
    Stream.moving.set()
    copier.send(rows, into, slice(0, 200))
    copier.close()
    assert torch.equal(into, rows)


def test_what_goes_wrong_on_the_way_is_said_in_the_end() -> None:
    copier = DeviceToHostCopier()
    Stream.moving.set()
    copier.send(torch.randn(2, 8), torch.zeros(2, 8), torch.tensor([0, 5]))
    with pytest.raises(IndexError):
        copier.close()
