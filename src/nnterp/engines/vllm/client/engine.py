"""The caller's end of the engine.

nnsight's engine asks the worker for saved values after each step in which a request ends, and
sends along what every one of them returned. Most requests have no block, and few blocks read
``tracer.result``: so only for requests with a block is the worker asked, and a result is
sent to the blocks that turn out to wait for it.
"""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Mapping
from typing import Any

from nnsight.modeling.vllm.engines.engine import NNsightLLMEngine, attach, merge_collected
from vllm.v1.engine import EngineCoreRequest
from vllm.v1.engine.llm_engine import LLMEngine

from nnterp.engines.vllm.transport.keys import has_block


def salted(prompt: Any) -> Any:
    """``prompt`` with a salt of its own, so that its request shares no cached keys and values.

    Those of an edited request are not what its tokens alone would make.
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
    """vLLM's engine, which puts on a finished request's output what its block saved.

    Attributes:
        with_block: The requests in flight that carry a block or name edits.
        edits: The edits installed on the engine; while there are any, they run on every request.
        advance: Who wants to be told how many requests each step has finished.
    """

    with_block: set[str]
    edits: list[Any]
    advance: Callable[[int], Any] | None

    @classmethod
    def convert(cls, engine: LLMEngine, edits: list[Any]) -> None:
        """Turn an engine vLLM built into one of these."""
        engine.__class__ = cls
        engine.with_block = set()
        engine.edits = edits
        engine.advance = None

    def add_request(self, request_id: str, prompt: Any, params: Any, *args: Any, **kw: Any) -> str:
        ours = has_block(params)
        if ours or self.edits:
            prompt = salted(prompt)
        added = super().add_request(request_id, prompt, params, *args, **kw)
        if ours:
            self.with_block.add(request_id)
        return added

    def abort_request(self, request_ids: list[str], internal: bool = False) -> None:
        super().abort_request(request_ids, internal)
        # vLLM's internal ids are the caller's with a suffix.
        given = {id.rpartition("-")[0] if internal else id for id in request_ids}
        ended = list(given & self.with_block)
        self.with_block.difference_update(ended)
        if ended:
            self._ask("collect_nnsight", ended, ended)

    def step(self) -> Any:
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
            # As bytes: vLLM's messages to the worker carry no objects of its own.
            collected |= self._ask("collect_nnsight", ids, ids, pickle.dumps(waiting))
        for request_id, entry in collected.items():
            attach(finished[request_id], entry)
        return outputs

    def _ask(self, method: str, *args: Any) -> dict[str, dict[str, Any]]:
        return merge_collected(self.engine_core.collective_rpc(method, args=args))
