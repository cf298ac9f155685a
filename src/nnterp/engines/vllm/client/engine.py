"""Runs traced requests on vLLM's synchronous engine and collects what their blocks saved.

nnsight's engine asks the worker for saved values after each step in which a request ends, and sends
along the output of every request that ended. Most requests have no block, and few blocks read
``tracer.result``. So here the worker is asked only about requests with a block, or about all while
edits are installed, and an output is sent only for a request that the worker's first answer leaves
out, as it does one whose block waits for the output.
"""

from __future__ import annotations

import contextlib
import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from nnsight.modeling.vllm.engines.engine import NNsightLLMEngine, attach, merge_collected
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.llm_engine import LLMEngine

from nnterp.engines.vllm.transport.keys import has_block


def salted(prompt: Any) -> Any:
    """Return ``prompt`` with a salt of its own, so that its request shares no KV cache blocks.

    The keys and values of an edited request are not what its tokens alone would make. An
    `EngineCoreRequest` is salted in place.

    Args:
        prompt: Text, token ids, a mapping as vLLM takes it, or an `EngineCoreRequest`.
    """
    salt = uuid.uuid4().hex
    if isinstance(prompt, EngineCoreRequest):
        prompt.cache_salt = salt
        return prompt
    if isinstance(prompt, str):
        return {"prompt": prompt, "cache_salt": salt}
    if not isinstance(prompt, Mapping):
        return {"prompt_token_ids": prompt, "cache_salt": salt}
    return {**prompt, "cache_salt": salt}


class StandardizedEngine(NNsightLLMEngine):
    """Attaches what a block saved to its request's finished output, on vLLM's synchronous engine.

    Attributes:
        with_block: The ids of the requests in flight that carry a block or name edits.
        edits: The edits installed on the engine; while there are any, they run on every request.
        advance: A function that is told after each step how many requests it finished, or None.
        added: The ids of the requests that were added within `aborting`.
    """

    with_block: set[str]
    edits: list[Any]
    advance: Callable[[int], Any] | None
    added: list[str]

    @classmethod
    def convert(cls, engine: LLMEngine, edits: list[Any]) -> None:
        """Turn an engine that vLLM built into a `StandardizedEngine`, in place.

        Args:
            engine: The engine.
            edits: The list of edits installed on it.
        """
        engine.__class__ = cls
        engine.with_block = set()
        engine.edits = edits
        engine.advance = None
        engine.added = []

    @contextlib.contextmanager
    def aborting(self, advance: Callable[[int], Any] | None = None) -> Iterator[None]:
        """Abort the requests added within that an error or an interrupt leaves unfinished.

        Otherwise whoever steps the engine next runs them on, and is given their outputs.

        Args:
            advance: A function to tell after each step within how many requests it finished.
        """
        self.added, self.advance = [], advance
        try:
            yield
        except BaseException:
            self.abort_request(self.added)
            # A step that ended half-way has filled none of the blocks that count as cached.
            self.reset_prefix_cache()
            raise
        finally:
            self.added, self.advance = [], None

    def add_request(self, request_id: str, prompt: Any, params: Any, *args: Any, **kw: Any) -> str:
        ours = has_block(params)
        if ours or self.edits:
            prompt = salted(prompt)
        self.added.append(request_id)
        added = super().add_request(request_id, prompt, params, *args, **kw)
        if ours:
            self.with_block.add(request_id)
        return added

    def abort_request(self, request_ids: list[str], internal: bool = False) -> None:
        """Abort requests, and have the workers forget the blocks of those that had one."""
        super().abort_request(request_ids, internal)
        # vLLM's internal ids are the caller's ids with a suffix.
        given = {id.rpartition("-")[0] if internal else id for id in request_ids}
        ended = list(given & self.with_block)
        self.with_block.difference_update(ended)
        if ended:
            self._ask("collect_nnsight", ended, ended)

    def step(self) -> Any:
        """Run a step of the engine, and attach what was saved to the outputs that it finished."""
        outputs = LLMEngine.step(self)
        if self.advance is not None:
            self.advance(sum(output.finished for output in outputs))
        finished = {
            output.request_id: output
            for output in outputs
            if output.finished and (self.edits or output.request_id in self.with_block)
        }
        if not finished:
            return outputs
        self.with_block.difference_update(finished)
        collected = self._ask("collect_finished", list(finished))
        waiting = {name: finished[name] for name in finished.keys() - collected.keys()}
        if waiting:
            ids = list(waiting)
            # Pickled here, because vLLM's messages to the worker cannot carry its own output
            # objects.
            collected |= self._ask("collect_nnsight", ids, ids, pickle.dumps(waiting))
        for request_id, entry in collected.items():
            attach(finished[request_id], entry)
        return outputs

    def _ask(self, method: str, *args: Any) -> dict[str, dict[str, Any]]:
        """Call ``method`` on the workers, and merge their answers by request id."""
        return merge_collected(self.engine_core.collective_rpc(method, args=args))
