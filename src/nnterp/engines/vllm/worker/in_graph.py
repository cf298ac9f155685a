"""Holds what is edited and read in a compiled forward, and sets it for each step.

Each different edit of a run has a slot, and every place a table with a row for each slot. Before a
step the slots of its tokens are written where the recorded forward finds them; after it, the rows
that it kept of each value that is read are where it left them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from nnterp.collecting.request import in_order
from nnterp.collecting.selections import Rows, Span
from nnterp.editing.composed import Composed, unpacked
from nnterp.engines.vllm.envoys.adapter import batched
from nnterp.engines.vllm.ports import port
from nnterp.engines.vllm.transport.in_graph import Declared, GraphEdits
from nnterp.engines.vllm.worker.graph_steps import (
    EditTable,
    GraphStep,
    ReadBuffer,
    add_steps,
)
from nnterp.lifetime import Reading, copied
from nnterp.vocabulary.names import Place, places


class KeptRows:
    """A `KeptRows` takes rows of a value out of what the last step's forward kept of it.

    Args:
        host: The envoy that hosts the value.
        place: The value, and the block.
        kept: What the forward keeps.
    """

    def __init__(self, host: Any, place: Place, kept: ReadBuffer) -> None:
        self._host = host
        self._place = place
        self._kept = kept

    def read(self, rows: Rows) -> Reading:
        """Return some rows of the value, ``[rows, *row]``."""
        own = rows.take(self._kept.rows, 0)
        return Reading(own).mapped(own.view(-1, *self._kept.port.row))

    def of_prompt(self, span: Span) -> Tensor:
        """Return a copy of a prompt's value, in the layout of a trace with batch 1."""
        own = copied(self._kept.rows.narrow(0, span.start, span.length))
        return batched(own, self._place.value, self._host)


class InGraph:
    """An `InGraph` is the edits and reads that are part of a model's compiled forward.

    Args:
        model: The worker's tree.
        declared: What is read and edited.
        room: The most tokens of a step, with any that pad it.
        like: An empty tensor with the type and device of the model's values.

    Attributes:
        reads: Takes the rows of each place that is read.
    """

    def __init__(self, model: Any, declared: Declared, room: int, like: Tensor) -> None:
        self._device = like.device
        self._slots = torch.zeros(room, dtype=torch.int64, device=like.device)
        self._set: list[int] = []
        self._free = list(range(declared.slots, 0, -1))
        self._tables: dict[str, EditTable] = {}
        self.reads: dict[Place, KeptRows] = {}
        steps: dict[nn.Module, tuple[list[GraphStep], list[GraphStep]]] = defaultdict(
            lambda: ([], [])
        )

        def at(names: Iterable[str]) -> set[Place]:
            return {place for name in names for place in places(name, model.num_layers)}

        edited, read = at(declared.edits), at(declared.reads)
        for place in in_order(edited | read, model.num_layers):
            where = port(model, place)
            name = str(place).replace(".", "_")
            own = steps[where.module][0 if where.entering else 1]
            if place in edited:
                table = EditTable(where, name, self._slots, declared.slots, declared.directions)
                self._tables[str(place)] = table
                own.append(table)
            if place in read:
                kept = ReadBuffer(where, name, like, room)
                host = model.host_of(place.value, place.layer or 0)
                self.reads[place] = KeptRows(host, place, kept)
                own.append(kept)
        for module, (entering, leaving) in steps.items():
            add_steps(module, entering, leaving)

    @property
    def free(self) -> int:
        """Return the number of slots that are free."""
        return len(self._free)

    def install(self, edits: GraphEdits, needed: Iterable[int]) -> dict[int, int]:
        """Install edits of a run in free slots.

        Args:
            edits: The run's edits.
            needed: Which of its slots are needed; there are as many free ones.

        Returns:
            The slot that each was given.
        """
        given = {slot: self._free.pop() for slot in needed}
        at: dict[str, list[tuple[int, int]]] = defaultdict(list)
        for slot, here in given.items():
            for name, index in edits.slots[slot].items():
                at[name].append((here, index))
        # Places with the same edits in the same slots, as of an edit of every block, share them.
        made: dict[tuple[Any, ...], tuple[Tensor, Composed]] = {}
        for name, pairs in at.items():
            row = self._tables[name].port.row
            key = row, tuple(pairs)
            if key not in made:
                slots, indices = torch.tensor(pairs).unbind(1)
                own = self._to_device(torch.from_numpy(edits.composed[row])[indices])
                made[key] = self._to_device(slots), unpacked(own, row[-1])
            self._tables[name].install(*made[key])
        return given

    def _to_device(self, tensor: Tensor) -> Tensor:
        """Return ``tensor``, of the host, on the device, without waiting for it."""
        if self._device.type != "cuda":
            return tensor
        return tensor.pin_memory().to(self._device, non_blocking=True)

    def release(self, slots: Sequence[int]) -> None:
        """Make ``slots`` change nothing, and free them."""
        if slots:
            index = self._to_device(torch.tensor(slots))
            for table in self._tables.values():
                table.release(index)
            self._free += slots

    def begin_step(self, slots: Iterable[tuple[int, int, int]]) -> None:
        """Write the slots of the tokens of the step that begins.

        Args:
            slots: The ranges of the step's rows that are edited: the start, the end and the slot.
        """
        wanted: list[int] = []
        for start, stop, slot in sorted(slots):
            wanted += [0] * (start - len(wanted)) + [slot] * (stop - start)
        if wanted == self._set:
            return
        room = max(len(wanted), len(self._set))
        # A step that is still running reads its own first, in the order of the stream.
        padded = wanted + [0] * (room - len(wanted))
        self._slots[:room].copy_(self._to_device(torch.tensor(padded)))
        self._set = wanted


class GraphEditor:
    """A `GraphEditor` makes the edits of one run in the compiled forward, some prompts at a time.

    Args:
        in_graph: The edits that are part of the forward.
        edits: The run's edits.
    """

    def __init__(self, in_graph: InGraph, edits: GraphEdits) -> None:
        self._in_graph = in_graph
        self._edits = edits
        self._given: dict[int, int] = {}

    def edits(self, prompt: int) -> bool:
        """Return whether anything of ``prompt`` is edited."""
        return prompt in self._edits.ranges

    def arm(self, prompts: Sequence[int]) -> int:
        """Install the edits of prompts that are to be run next, in place of those of the last ones.

        Args:
            prompts: The prompts, in the order in which they will be run.

        Returns:
            How many of them, from the first, there were slots for.
        """
        self.release()
        needed: dict[int, None] = {}
        count = 0
        for prompt in prompts:
            more = needed | dict.fromkeys(self._edits.needed([prompt]))
            if len(more) > self._in_graph.free:
                break
            needed, count = more, count + 1
        self._given = self._in_graph.install(self._edits, needed)
        return count

    def release(self) -> None:
        """Release the slots of the prompts that were run last."""
        self._in_graph.release(list(self._given.values()))
        self._given = {}

    def slots_of(self, spans: Iterable[Span]) -> list[tuple[int, int, int]]:
        """Return the ranges of a step's rows that are edited: the start, the end and the slot.

        Args:
            spans: The rows of each prompt in the step.
        """
        found = []
        for prompt, row, first, length in spans:
            for (start, stop), slot in self._edits.ranges.get(prompt, ()):
                begin, end = max(start, first), min(stop, first + length)
                if begin < end:
                    found.append((row + begin - first, row + end - first, self._given[slot]))
        return found
