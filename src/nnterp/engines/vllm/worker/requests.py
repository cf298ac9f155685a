"""Keeps the requests that the worker has blocks or runs for.

nnsight keeps the blocks of the requests in flight, starts them, points each at its request's rows,
and hands back what they saved. Here each becomes a `RequestBlock`, its errors and warnings are put
in the user's terms before they are sent to the client, and what cannot be sent is that request's
error and no other's.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from nnsight.intervention.errors import capture_exception
from nnsight.intervention.interleaver import Mediator
from nnsight.modeling.vllm.model_runners.GPUModelRunner import Requests

from nnterp.engines.vllm.transport.keys import RUN_KEY, WARNINGS_KEY, has_block
from nnterp.engines.vllm.worker.answers import (
    _able_to_travel,
    _entry,
    _saves,
)
from nnterp.engines.vllm.worker.blocks import BlockEnded, RequestBlock
from nnterp.engines.vllm.worker.runs import Runs
from nnterp.engines.vllm.worker.tracebacks import own_frames
from nnterp.lifetime import outside_inference_mode
from nnterp.tracing.block_state import BlockState


class Preempted(Exception):
    """Raised in a block that has edited its request, which vLLM preempted and cannot rebuild."""


class RowRequests(Requests):
    """Keeps the requests in flight, with each one's block isolated in it.

    Attributes:
        runs: The runs under way, and their requests.
        spans: The id of each request of the step, in order, and its number of tokens.
    """

    def __init__(self) -> None:
        super().__init__()
        self.runs = Runs()
        self.spans: list[tuple[str, int]] = []

    @property
    def have_blocks(self) -> bool:
        """Return whether a request in flight has a block, or a new one might be given one."""
        return bool(self.requests or self.templates)

    def concern(self, new_requests: Iterable[Any]) -> bool:
        """Return whether a step needs nnsight: a request has a block or is one of a run.

        Args:
            new_requests: The requests that are new in the step.
        """
        if self.have_blocks or self.runs:
            return True
        return any(
            has_block(data.sampling_params) or RUN_KEY in _extra(data.sampling_params)
            for data in new_requests
        )

    def add(self, new_requests: list[Any], persistent_objects: dict[str, Any]) -> None:
        """Keep the new requests that have blocks, run installed edits or belong to a run."""
        # A request that runs no block is another tenant's and costs nothing here.
        for data in new_requests:
            self.runs.take(data.req_id, _extra(data.sampling_params))
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
        self.runs.enter_logits()

    def enter_runs(self, model: Any, states: Mapping[str, Any]) -> None:
        """Tell every run which tokens of its prompts this step runs.

        Args:
            model: The worker's tree.
            states: The runner's own state of each request, by id.
        """
        interleaver = model.interleaver
        interleaver.row_consumers = self.runs.enter(self.spans, states)
        interleaver.busy |= bool(interleaver.row_consumers)

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

    def edited(self, finite: bool) -> Iterator[str]:
        """Yield the ids of requests whose KV cache may hold what is not finite, by an edit.

        Args:
            finite: Whether the step ended in finite hidden states.
        """
        for request_id, request in self.requests.items():
            if any(block.state.edited for block in request.workers()):
                yield request_id
        yield from self.runs.edited(finite)

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
