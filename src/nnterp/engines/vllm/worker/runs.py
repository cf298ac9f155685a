"""Keeps the runs of prompts with reads and edits as data that are under way in the worker.

A run is begun once, with all that it reads and edits. Each of its requests then carries the run's
id and the prompt's index.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from nnterp.collecting.selections import Span
from nnterp.engines.vllm.transport.keys import RUN_KEY
from nnterp.engines.vllm.worker.collector import Collector
from nnterp.engines.vllm.worker.editor import Editor
from nnterp.engines.vllm.worker.in_graph import GraphEditor
from nnterp.engines.vllm.worker.interleaver import RowConsumer


class _InStep(NamedTuple):
    """Describes what a step runs of a run.

    Attributes:
        run: The run.
        tokens: The rows of each prompt's tokens.
        rows: The row of each of these prompts in tensors with one row a request.
    """

    run: Run
    tokens: list[Span]
    rows: list[int]

    @property
    def logits(self) -> list[Span]:
        """Return the row of the logits of each prompt's last token in the step."""
        pairs = zip(self.tokens, self.rows, strict=True)
        return [Span(own.prompt, row, own.first + own.length - 1, 1) for own, row in pairs]


class Run(NamedTuple):
    """A `Run` is prompts with what is edited and read in them.

    Attributes:
        id: The id that its requests name it by.
        lengths: The number of tokens that steps run at most, of each prompt's sequence.
        editor: Makes the edits beside the forward.
        in_graph: Makes those in a compiled forward, if the engine has one.
        collector: Keeps what is read.
    """

    id: str
    lengths: Sequence[int]
    editor: Editor
    in_graph: GraphEditor | None
    collector: Collector

    def edits(self, prompt: int) -> bool:
        """Return whether anything of ``prompt`` is edited."""
        return self.editor.edits(prompt) or (
            self.in_graph is not None and self.in_graph.edits(prompt)
        )

    def is_tame(self, prompt: int) -> bool:
        """Return whether what the step edited of ``prompt`` is known to be left tame."""
        beside = self.in_graph is None or not self.in_graph.edits(prompt)
        return beside and self.editor.tame

    @property
    def consumers(self) -> tuple[RowConsumer, ...]:
        """Return what takes rows out of a step, in the order in which it is given them."""
        return self.editor, self.collector

    def finish(self, keep: bool) -> bytes | None:
        """Return what was read and the first error, pickled, as `Collector.finish` does."""
        if self.in_graph is not None:
            self.in_graph.release()
        self.collector.error = self.editor.error or self.collector.error
        return self.collector.finish(keep)


class Runs:
    """`Runs` holds the runs under way, and which requests in flight are of which.

    Attributes:
        under_way: The runs, by id.
        slots: The ranges of the step's rows that are edited in a compiled forward, each as its
            start, its end and its slot.
    """

    def __init__(self) -> None:
        self.under_way: dict[str, Run] = {}
        self.slots: list[tuple[int, int, int]] = []
        self._requests: dict[str, tuple[Run, int]] = {}
        self._in_step: list[_InStep] = []

    def __bool__(self) -> bool:
        """Return whether a request in flight is of a run."""
        return bool(self._requests)

    def told_of(self, params: Any) -> Iterator[tuple[str, bytes]]:
        """Yield the id and the plan of a run that a new request brings, unless it is under way.

        Args:
            params: The request's sampling params.
        """
        named = (getattr(params, "extra_args", None) or {}).get(RUN_KEY, ())
        if len(named) > 2 and named[0] not in self.under_way:
            yield named[0], named[2]

    def take(self, request_id: str, extra: Mapping[str, Any]) -> None:
        """Take note of a new request, if its ``extra_args`` name a run."""
        named = extra.get(RUN_KEY)
        if named is not None and named[0] in self.under_way:
            self._requests[request_id] = (self.under_way[named[0]], named[1])

    def forget(self, request_ids: Iterable[str]) -> None:
        """Forget requests that are finished."""
        for request_id in request_ids:
            self._requests.pop(request_id, None)

    def end(self, run_id: str, keep: bool) -> bytes | None:
        """End a run, and return what it read, as `Run.finish` does; None if it never began."""
        run = self.under_way.pop(run_id, None)
        if run is None:  # none of its requests came to be run
            return None
        self.forget([name for name, (other, _) in self._requests.items() if other is run])
        self._in_step.clear()  # which would keep its results and vectors until the next step
        return run.finish(keep)

    def edited(self, finite: bool) -> Iterator[str]:
        """Yield the ids of requests that are edited, and may have kept what is not finite.

        Args:
            finite: Whether the step ended in finite hidden states.
        """
        for request_id, (run, prompt) in self._requests.items():
            if run.edits(prompt) and not (finite and run.is_tame(prompt)):
                yield request_id

    def enter(
        self, spans: Iterable[tuple[str, int]], states: Mapping[str, Any]
    ) -> Mapping[str, Sequence[RowConsumer]]:
        """Tell every run which tokens of its prompts a step runs.

        Args:
            spans: The id of each request of the step, in order, and its number of tokens.
            states: The runner's own state of each request, by id.

        Returns:
            What takes rows at each location.
        """
        by_run: dict[str, _InStep] = {}
        start = 0
        for row, (request_id, tokens) in enumerate(spans if self._requests else ()):
            named = self._requests.get(request_id)
            if named is not None:
                run, prompt = named
                first = states[request_id].num_computed_tokens
                count = min(tokens, run.lengths[prompt] - first)
                if count > 0:
                    if run.id not in by_run:
                        by_run[run.id] = _InStep(run, [], [])
                    within = by_run[run.id]
                    within.tokens.append(Span(prompt, start, first, count))
                    within.rows.append(row)
            start += tokens
        self._in_step = list(by_run.values())
        found: dict[str, list[RowConsumer]] = {}
        self.slots = []
        for run, own, _ in self._in_step:
            run.editor.enter(own)
            run.collector.enter(own)
            if run.in_graph is not None:
                self.slots += run.in_graph.slots_of(own)
            for consumer in run.consumers:
                for location in consumer.locations:
                    found.setdefault(location, []).append(consumer)
        return found

    def enter_logits(self) -> None:
        """Tell every run of the step that tensors have a row a request from here on."""
        for within in self._in_step:
            within.run.collector.take_kept()
            logits = within.logits
            within.run.editor.enter(logits, a_row_each=True)
            within.run.collector.enter(logits, a_row_each=True)
