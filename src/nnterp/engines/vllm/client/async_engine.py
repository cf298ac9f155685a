"""Runs traced requests on vLLM's asynchronous engine and merges what their blocks saved.

nnsight attaches what a request's block saved to the request's last output.
`StandardizedAsyncEngine` sees it before that, and applies what the block did to copies of the
objects around it to the caller's own objects.
"""

from __future__ import annotations

from typing import Any

from nnsight.modeling.vllm.engines.engine import merge_collected
from vllm.v1.engine.async_llm import AsyncLLM

from nnterp.engines.vllm.client import merge_saves
from nnterp.engines.vllm.client.engine import salted
from nnterp.engines.vllm.client.payload import PackedBlock
from nnterp.engines.vllm.transport.keys import BLOCK_KEY, has_block
from nnterp.engines.vllm.transport.packing import hold


class StandardizedAsyncEngine(AsyncLLM):
    """Serves traced requests on vLLM's streaming engine, and keeps them from sharing cached blocks.

    A request with a block, and every request while edits are installed, gets a cache salt of its
    own.

    Attributes:
        edits: The edits installed on the engine; while there are any, they run on every request.
        packed: The blocks whose request has not been added yet, by the ``id`` of their payload.
        blocks: The block of each request in flight, by request id.
    """

    edits: list[Any]
    packed: dict[int, PackedBlock]
    blocks: dict[str, PackedBlock]

    @classmethod
    def convert(cls, engine: AsyncLLM, edits: list[Any]) -> None:
        """Turn an engine that vLLM built into a `StandardizedAsyncEngine`, in place.

        Args:
            engine: The engine.
            edits: The list of edits installed on it.
        """
        engine.__class__ = cls
        engine.edits = edits
        engine.packed = {}
        engine.blocks = {}

    def expect(self, block: PackedBlock) -> None:
        """Register ``block``, whose request is about to be added."""
        self.packed[id(block.payload)] = block

    async def add_request(
        self, request_id: str, prompt: Any, params: Any, *args: Any, **kw: Any
    ) -> Any:
        if has_block(params) or self.edits:
            prompt = salted(prompt)
            payload = (params.extra_args or {}).get(BLOCK_KEY)
            block = self.packed.pop(id(payload), None)
            if block is not None:
                self.blocks[request_id] = block
        return await super().add_request(request_id, prompt, params, *args, **kw)

    async def collective_rpc(
        self, method: str, timeout: float | None = None, args: Any = (), kwargs: Any = None
    ) -> Any:
        answers = await super().collective_rpc(method, timeout, args, kwargs)
        if method != "collect_nnsight":
            return answers
        collected = merge_collected(answers)
        for request_id, entry in collected.items():
            block = self.blocks.pop(request_id, None)
            if block is not None:
                merge_saves.say(block, entry["error"] or {})
                runs = [run["saves"] for run in entry["sequences"].values()]
                merge_saves.merge([block], [runs])
                entry["saves"] = runs[0] if runs else {}
        return [hold(collected)]
