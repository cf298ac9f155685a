"""Keeps the requests that the worker has blocks or collectors for.

nnsight keeps the blocks of the requests in flight, starts them, points each at its request's rows,
and hands back what they saved. Here each becomes a `RequestBlock`, its errors and warnings are put
in the user's terms before they are sent to the client, and what cannot be sent is that request's
error and no other's.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from nnsight.intervention.errors import capture_exception
from nnsight.intervention.interleaver import Mediator
from nnsight.modeling.vllm.model_runners.GPUModelRunner import Requests

from nnterp.collecting.selections import Span
from nnterp.engines.vllm.transport.keys import COLLECT_KEY, WARNINGS_KEY, has_block
from nnterp.engines.vllm.worker.answers import (
    _able_to_travel,
    _entry,
    _saves,
)
from nnterp.engines.vllm.worker.blocks import BlockEnded, RequestBlock
from nnterp.engines.vllm.worker.collector import Collector
from nnterp.engines.vllm.worker.tracebacks import own_frames
from nnterp.lifetime import outside_inference_mode
from nnterp.tracing.block_state import BlockState


class Preempted(Exception):
    """Raised in a block that has edited its request, which vLLM preempted and cannot rebuild."""


class _InStep(NamedTuple):
    """Describes a collected prompt in a step.

    Attributes:
        tokens: The rows of the prompt's tokens.
        row: The prompt's row in tensors with one row a request.
    """

    tokens: Span
    row: int

    @property
    def logits(self) -> Span:
        """Return the row of the logits of the prompt's last token in the step."""
        return Span(self.tokens.prompt, self.row, self.tokens.first + self.tokens.length - 1, 1)


class RowRequests(Requests):
    """Keeps the requests in flight, with each one's block isolated in it.

    Attributes:
        collectors: The `collect` calls under way, by id.
        collecting: For each of their requests, by id, the collector and the prompt's index.
        spans: The id of each request of the step, in order, and its number of tokens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.collectors: dict[str, Collector] = {}
        self.collecting: dict[str, tuple[Collector, int]] = {}
        self.spans: list[tuple[str, int]] = []
        self._in_step: dict[Collector, list[_InStep]] = {}

    def concern(self, new_requests: Iterable[Any]) -> bool:
        """Return whether a step needs nnsight: a request has a block or is one of a `collect`.

        Args:
            new_requests: The requests that are new in the step.
        """
        if self.requests or self.templates or self.collecting:
            return True
        return any(
            has_block(data.sampling_params) or COLLECT_KEY in _extra(data.sampling_params)
            for data in new_requests
        )

    def add(self, new_requests: list[Any], persistent_objects: dict[str, Any]) -> None:
        """Keep the new requests that have blocks, run installed edits or belong to a `collect`."""
        # A request that runs no block is another tenant's and costs nothing here.
        for data in new_requests:
            collect = _extra(data.sampling_params).get(COLLECT_KEY)
            if collect is not None and collect[0] in self.collectors:
                self.collecting[data.req_id] = (self.collectors[collect[0]], collect[1])
        ours = [data for data in new_requests if self.templates or has_block(data.sampling_params)]
        # A tensor made in inference mode has no version counter to tell that a block has changed
        # it.
        with outside_inference_mode():
            super().add(ours, persistent_objects)
        for data in ours:
            request = self.requests[data.req_id]
            for mediator in request.copies.values():
                if not isinstance(mediator, RequestBlock):
                    RequestBlock.convert(mediator, "<installed edit>")
            if data.lora_request is not None:
                for mediator in request.workers():
                    mediator.state.lora_number = data.lora_request.lora_int_id

    def scope(self, model: Any, spans: list[tuple[str, int]]) -> None:
        self.spans = spans
        model.interleaver.batcher.lengths = [tokens for _, tokens in spans]
        super().scope(model, spans)

    def unflatten(self, model: Any) -> None:
        super().unflatten(model)
        model.interleaver.batcher.lengths = [1] * self.nrows
        for collector, spans in self._in_step.items():
            collector.enter([s.logits for s in spans], a_row_each=True)

    def end_collecting(self, request_ids: Iterable[str]) -> None:
        """Forget finished requests of a `collect`."""
        for request_id in request_ids:
            self.collecting.pop(request_id, None)

    def enter_collectors(self, model: Any, states: Mapping[str, Any]) -> None:
        """Tell every `collect` which tokens of its prompts this step runs.

        Args:
            model: The worker's tree.
            states: The runner's own state of each request, by id.
        """
        self._in_step = {}
        start = 0
        for row, (request_id, tokens) in enumerate(self.spans if self.collecting else ()):
            collector, prompt = self.collecting.get(request_id, (None, 0))
            if collector is not None:
                first = states[request_id].num_computed_tokens
                count = min(tokens, collector.lengths[prompt] - first)
                span = _InStep(Span(prompt, start, first, count), row)
                self._in_step.setdefault(collector, []).append(span)
            start += tokens
        for collector, spans in self._in_step.items():
            collector.enter([s.tokens for s in spans])
        row_consumers: dict[str, list[Collector]] = {}
        for collector in self._in_step:
            for location in collector.locations:
                row_consumers.setdefault(location, []).append(collector)
        model.interleaver.row_consumers = row_consumers
        model.interleaver.busy |= bool(row_consumers)

    def enter_step(self, states: Mapping[str, Any]) -> None:
        """Tell every scheduled block how much of its sequence this step runs.

        Args:
            states: The runner's own state of each request, by id.
        """
        for request_id, request in self.requests.items():
            for block in request.workers():
                if block.batch_group is None:
                    continue
                start, tokens = block.batch_group
                state = block.state
                state.cached_tokens = states[request_id].num_computed_tokens
                if state.steps and not state.cached_tokens and tokens > 1:
                    self._resume(block, start, tokens)
                state.steps += 1

    def edited(self) -> Iterator[str]:
        """Yield the ids of requests whose KV cache is not what their tokens alone would make."""
        for request_id, request in self.requests.items():
            if any(block.state.edited for block in request.workers()):
                yield request_id

    def _resume(self, block: RequestBlock, start: int, tokens: int) -> None:
        """Resume a block whose request was preempted and is recomputed.

        The step runs every token the request has had; the block has seen all but the last.
        """
        block.batch_group = [start + tokens - 1, 1]
        block.state.cached_tokens = tokens - 1
        if block.state.edited and block.alive:
            block.end(
                Preempted(
                    "vLLM ran out of cache and evicted this request; computing it over again "
                    "does not repeat the edits its block made, so what follows would be another "
                    "model's. Give the engine more cache (kv_cache_memory_bytes or "
                    "gpu_memory_utilization), or trace fewer requests at once"
                )
            )

    def record(self, mediator: Any) -> None:
        saved = mediator.state.saved
        mediator.nnsight_saved = mediator.presaved | {
            name for name, value in mediator.lcls.items() if id(value) in saved
        }
        if mediator.exception is not None and getattr(mediator, "nnsight_error", None) is None:
            mediator.nnsight_error = capture_exception(mediator.exception)
        self._put_in_users_terms(mediator)

    def serve_result(self, mediator: Any, output: Any) -> None:
        try:
            super().serve_result(mediator, output)
        except Exception as error:  # of the block, below where it read its result
            self._fail(mediator, error)

    def _end_loop(self, block: RequestBlock) -> None:
        """End the loop over steps that a finished request's block waits in, if it does."""
        try:
            block.end_loop()
        except Exception as error:  # of the block, below the loop
            self._fail(block, error)
        else:
            self.record(block)

    def _fail(self, block: Any, error: Exception) -> None:
        """Record ``error`` as what ended ``block``."""
        block.exception, block.pending = error, None
        self.record(block)

    def finish_dangling(
        self, mediator: Mediator, taps: frozenset[str] = frozenset(), quiet: bool = False
    ) -> None:
        """End a block that still waits after its request, and keep the warnings for the client."""
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            super().finish_dangling(mediator, taps, quiet)
        if mediator is None:
            return
        self._put_in_users_terms(mediator)
        messages = [*BlockState.of(mediator).messages, *(str(warning.message) for warning in said)]
        if messages and getattr(mediator, "nnsight_error", None) is None:
            mediator.nnsight_error = {
                "type_name": "Warning",
                "message": "",
                "is_control_flow": True,
                WARNINGS_KEY: messages,
            }

    def collect(
        self,
        wanted: set[str],
        finished: set[str],
        results: Mapping[str, Any] | None,
        reports: bool,
        taps: frozenset[str],
    ) -> dict[str, dict[str, Any]]:
        """Return what the blocks of some requests have saved, and their errors.

        Args:
            wanted: The engine's ids of the requests.
            finished: Those of them that are over, whose blocks are ended and which are then
                forgotten.
            results: The output of each finished request, by the engine's id. None leaves a request
                whose block waits for its own in place, and out of the answer.
            reports: Whether this rank answers for traced blocks.
            taps: The locations that an engine on CUDA graphs serves.

        Returns:
            For each request, by the engine's id, its saved values and its error.
        """
        self.harvest(finished)
        collected: dict[str, dict[str, Any]] = {}
        asked = [request for request in self.requests.values() if request.named(wanted)]
        for request in asked:
            if isinstance(request.mediator, RequestBlock) and request.named(finished):
                self._end_loop(request.mediator)
        # All sequences of a request wait if one does, to be sent together.
        waiting = {
            request.key(wanted)[0]
            for request in asked
            if results is None and _waits_for_result(request.mediator)
        }
        for request in asked:
            engine_id, index = request.key(wanted)
            done = request.named(finished)
            block = request.mediator
            if engine_id in waiting:
                continue
            entry = collected.setdefault(engine_id, _entry())
            sequence = entry["sequences"].setdefault(index, {"saves": {}, "registered": {}})
            for taken in request.harvested.values():
                values, refusal = _able_to_travel(taken["saves"])
                sequence["registered"].update(values)
                entry["error"] = entry["error"] or taken["error"] or refusal
            request.harvested = {}
            if block is not None and done:
                if results is not None and engine_id in results:
                    # The block is handed what the installed edits saved, on its result.
                    results[engine_id].saves = dict(sequence["registered"])
                    self.serve_result(block, results[engine_id])
                self.finish_dangling(block, taps)
            if reports:
                sequence["saves"], refusal = _saves(request)
                entry["error"] = entry["error"] or request.deferred() or refusal
            if done:
                del self.requests[request.id]
        for entry in collected.values():
            first = entry["sequences"].get(0)
            if first is not None:
                entry.update(saves=first["saves"], registered=first["registered"])
        return collected

    def _put_in_users_terms(self, mediator: Any) -> None:
        """Reduce the error of ``mediator``, if any, to the user's own exception and lines."""
        error: dict[str, Any] | None = getattr(mediator, "nnsight_error", None)
        if error is None or error.get("in_users_terms"):
            return
        if error["type_name"] == BlockEnded.__name__:
            error["type_name"], _, error["message"] = error["message"].partition(": ")
        error["traceback"] = own_frames(error.get("traceback") or "", mediator.state.file)
        error["in_users_terms"] = True


def _extra(params: Any) -> dict[str, Any]:
    """Return the ``extra_args`` of sampling ``params``."""
    return getattr(params, "extra_args", None) or {}


def _waits_for_result(block: Mediator | None) -> bool:
    """Return whether ``block`` waits for ``tracer.result``."""
    pending = block.pending if block is not None and block.alive else None
    return pending is not None and pending.provider == "result"
