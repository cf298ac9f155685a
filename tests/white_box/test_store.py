"""Rows that leave a GPU while the forward goes on: each arrives as it was when it was sent.

The programs are drawn from seeds and run on the imitation of a device, `imitated_device`. Their
forwards have one buffer, which every step, or block, overwrites; what was to arrive is kept
beside it on the host.
"""

from __future__ import annotations

import pickle
import random
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

import imitated_device
from imitated_device import DEVICE, DeviceTensor, imitated
from nnterp.collecting.selections import Span, selection
from nnterp.engines.vllm.transport.address import Address
from nnterp.engines.vllm.worker import device_copier, store
from nnterp.engines.vllm.worker.batcher import RowBatcher
from nnterp.engines.vllm.worker.collector import Collector
from nnterp.engines.vllm.worker.device_copier import DeviceToHostCopier
from nnterp.engines.vllm.worker.store import CallersStore
from nnterp.lifetime import Reading
from nnterp.records.positions import Length
from nnterp.sites.primitive import Output
from nnterp.vocabulary.names import Place
from nnterp.vocabulary.values import LAYER_OUTPUT

WIDTH = 8
PROGRAMS = range(12)

#: What a program got, and what it was to get.
Outcome = tuple[Mapping[str, Tensor], Mapping[str, Tensor]]


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pinned memory of few rows, so that it is used again and again."""
    monkeypatch.setattr(device_copier, "_PIECE", 4 * WIDTH * 4)
    monkeypatch.setattr(device_copier, "_PIECES", 3)


class Buffer:
    """The device's memory that a forward writes its values to, and what is in it."""

    def __init__(self, rows: int, seed: int) -> None:
        self.on_device = torch.empty(rows, WIDTH, device=DEVICE)
        self.on_host = torch.empty(rows, WIDTH)
        self._numbers = torch.Generator().manual_seed(seed)

    def overwrite(self) -> None:
        """Launch a kernel that writes other numbers."""
        self.on_host = torch.randn(self.on_host.shape, generator=self._numbers)
        self.on_device.copy_(self.on_host)

    def read(self, first: int, count: int, way: str) -> tuple[Reading, Tensor]:
        """Some rows, or what is computed of them, and the numbers that those are."""
        live, held = (rows[first : first + count] for rows in (self.on_device, self.on_host))
        if way == "computed":
            return Reading(live * 2, is_new_tensor=True), held * 2
        if way == "turned":
            return Reading((live.T + 1).T, is_new_tensor=True), held + 1
        return Reading(live), held


def sent(seed: int) -> Outcome:
    """Rows of a buffer by way of a copier alone."""
    drawn = random.Random(seed)
    counts = [drawn.randint(1, 9) for _ in range(drawn.randint(2, 8))]
    order = torch.randperm(sum(counts), generator=torch.Generator().manual_seed(seed))
    into, expected = (torch.zeros(2 * sum(counts), WIDTH) for _ in range(2))
    with imitated(seed):
        buffer, copier = Buffer(12, seed), DeviceToHostCopier()
        for start, count in zip(
            torch.tensor([0, *counts]).cumsum(0).tolist(), counts, strict=False
        ):
            buffer.overwrite()
            rows, held = buffer.read(
                drawn.randint(0, 3), count, drawn.choice(["live", "computed", "turned"])
            )
            targets: Tensor | slice = slice(start, start + count)
            if drawn.random() < 0.5:
                targets = sum(counts) + order[targets]
            copier.send(rows, into, targets)
            expected[targets] = held
            del rows
        buffer.overwrite()
        copier.close()
    return {"rows": into}, {"rows": expected}


def stored(seed: int) -> Outcome:
    """Results of which some stay on the device to the end and the others leave it as they come."""
    drawn = random.Random(seed)
    count = drawn.randint(4, 20)
    names = {"leaves": 1 << 30, "stays": 0}
    with imitated(seed):
        buffer, callers = Buffer(count, seed), CallersStore(Address.own(), sees_gpu=True)
        results, expected = {}, {}
        for name, moderate in names.items():
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(store, "MODERATE", moderate)
                results[name] = callers.make(count, buffer.on_device)
            expected[name] = torch.zeros(count, WIDTH)
        assert [results[name].is_cuda for name in names] == [False, True]
        order = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        for targets in order.split(drawn.randint(1, 5)):
            buffer.overwrite()
            way = drawn.choice(["live", "computed", "turned"])
            rows, held = buffer.read(drawn.randint(0, count - len(targets)), len(targets), way)
            for name in names:
                callers.put(rows, results[name], targets)
                expected[name][targets] = held
            del rows
        buffer.overwrite()
        callers.flush()
        # Opening the answer waits for the device, which a caller of the first alone need not.
        at_once = results["leaves"].clone()
        found = pickle.loads(pickle.dumps(callers.deliver(results)))
    return found | {"at once": at_once}, expected | {"at once": expected["leaves"]}


class Block:
    """A block of a model, as far as a `Collector` looks at one."""

    layer_output = SimpleNamespace(site=Output())

    def __init__(self, index: int) -> None:
        self.path = f"layers.{index}"


def steps(drawn: random.Random, lengths: list[int], whole: bool) -> list[list[Span]]:
    """The prompts' tokens dealt out over steps, each of one prompt or several, ``whole`` or not."""
    done, dealt = [0] * len(lengths), []
    while done != lengths:
        spans, start = [], 0
        for prompt, length in enumerate(lengths):
            count = min(drawn.choice([0, 99] if whole else [0, 1, 3, 8]), length - done[prompt])
            if count:
                spans.append(Span(prompt, start, done[prompt], count))
                done[prompt] += count
                start += count
        if spans:
            dealt.append(spans)
    return dealt


def middle(value: Tensor) -> Tensor:
    """A view of a prompt's value, as a caller's function may return it."""
    return value[0, value.shape[1] // 2]


def kept(values: list[Tensor], positions: Any) -> Tensor:
    """What ``positions`` keep of the prompts' ``values``."""
    if positions is middle:
        return torch.stack([middle(value[None]) for value in values])
    if positions == "mean":
        return torch.stack([value.mean(0) for value in values])
    if positions == "all":
        return torch.cat(values)
    if positions == "last":
        return torch.stack([value[-1] for value in values])
    return torch.cat([value[mask] for value, mask in zip(values, positions, strict=True)])


def collected(seed: int) -> Outcome:
    """What a collector keeps of a model whose blocks all write to one buffer."""
    drawn = random.Random(seed)
    lengths = [drawn.randint(1, 12) for _ in range(drawn.randint(1, 4))]
    blocks = [Block(index) for index in range(3)]
    batcher = RowBatcher()
    model = SimpleNamespace(
        interleaver=SimpleNamespace(batcher=batcher, adapters=None),
        host_of=lambda value, layer: blocks[layer],
    )
    masks = [[bool(drawn.getrandbits(1)) for _ in range(length)] for length in lengths]
    whole = drawn.random() < 0.5
    choices = ["all", "last", "mean", masks, *([middle] if whole else [])]
    chosen = [drawn.choice(choices) for _ in blocks]
    every = [Length(length, length) for length in lengths]
    wanted = {
        Place(LAYER_OUTPUT, index): selection(positions, every)
        for index, positions in enumerate(chosen)
    }
    moderate = drawn.choice([0, 1 << 30])
    seen: dict[Place, list[list[Tensor]]] = {place: [[] for _ in lengths] for place in wanted}
    with imitated(seed), pytest.MonkeyPatch.context() as patch:
        patch.setattr(store, "MODERATE", moderate)
        collector = Collector(model, wanted, CallersStore(Address.own(), sees_gpu=True), {})
        for spans in steps(drawn, lengths, whole):
            batcher.total = sum(span.length for span in spans)
            buffer = Buffer(batcher.total, drawn.getrandbits(30))
            collector.enter(spans)
            for place, block in zip(wanted, blocks, strict=True):
                buffer.overwrite()
                collector.arrive(f"{block.path}.output", buffer.on_device)
                for span in spans:
                    rows = buffer.on_host[span.start : span.start + span.length]
                    seen[place][span.prompt].append(rows)
            buffer.overwrite()
        answer = collector.finish(keep=True)
        assert answer is not None
        found, error = pickle.loads(answer)
        assert error is None
        found = {name: tensor.clone() for name, tensor in found.items()}
    expected = {
        str(place): kept([torch.cat(rows) for rows in seen[place]], positions)
        for place, positions in zip(wanted, chosen, strict=True)
    }
    return found, {name: rows for name, rows in expected.items() if len(rows)}


WAYS: list[Callable[[int], Outcome]] = [sent, stored, collected]


def wrong(outcome: Outcome) -> list[str]:
    found, expected = outcome
    assert found.keys() == expected.keys()
    return [
        name
        for name, rows in expected.items()
        if not torch.allclose(found[name], rows, rtol=0, atol=1e-6)
    ]


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("seed", PROGRAMS)
def test_rows_arrive_as_they_were_when_they_were_sent(
    way: Callable[[int], Outcome], seed: int
) -> None:
    assert wrong(way(seed)) == []


def test_more_rows_than_there_is_memory_on_the_way_wait_for_room() -> None:
    with imitated():
        rows = torch.randn(200, WIDTH)
        into = torch.zeros(200, WIDTH)
        copier = DeviceToHostCopier()
        copier.send(Reading(rows.to(DEVICE)), into, slice(0, 200))
        copier.close()
    assert torch.equal(into, rows)


def test_what_goes_wrong_on_the_way_is_said_in_the_end() -> None:
    with imitated():
        rows = torch.randn(2, WIDTH).to(DEVICE)
        copier = DeviceToHostCopier()
        copier.send(Reading(rows), torch.zeros(2, WIDTH), torch.tensor([0, 5]))
        with pytest.raises(IndexError):
            copier.close()


def nothing(*_: Any) -> None:
    """In the place of a call that is forgotten."""


#: What can be forgotten, as what is put in its place.
FORGOTTEN = {
    "to record the stream that memory is used on": (DeviceTensor, "record_stream", nothing),
    "to wait for the forward's stream": (imitated_device.Stream, "wait_stream", nothing),
    "to copy what is live": (Reading, "packed", lambda reading: reading.tensor),
    "to wait for the copy": (imitated_device.Event, "synchronize", nothing),
}


@pytest.mark.parametrize("what", FORGOTTEN)
def test_what_is_forgotten_is_seen_in_some_program(
    what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(*FORGOTTEN[what])
    assert any(wrong(way(seed)) for seed in PROGRAMS for way in WAYS)


@pytest.mark.parametrize("way", [stored, collected])
def test_what_is_delivered_before_it_is_there_is_seen_in_some_program(
    way: Callable[[int], Outcome], monkeypatch: pytest.MonkeyPatch
) -> None:
    flush, early = CallersStore.flush, []
    monkeypatch.setattr(CallersStore, "flush", lambda callers: early.append(callers))
    assert any(wrong(way(seed)) for seed in PROGRAMS)
    for callers in early:
        flush(callers)
