"""The caller's end of an engine that streams its outputs.

nnsight puts what a request's block saved on the request's last output. Here it comes by before
that, and what the block did to the objects around it is done to the caller's own.
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
    """vLLM's streaming engine, which keeps edited requests out of the shared cache.

    Attributes:
        edits: The edits installed on the engine; while there are any, they run on every request.
        packed: The blocks that have no request yet, by the id of their payload.
        blocks: The block of each request in flight.
    """

    edits: list[Any]
    packed: dict[int, PackedBlock]
    blocks: dict[str, PackedBlock]

    @classmethod
    def convert(cls, engine: AsyncLLM, edits: list[Any]) -> None:
        """Turn an engine vLLM built into one of these."""
        engine.__class__ = cls
        engine.edits = edits
        engine.packed = {}
        engine.blocks = {}

    def expect(self, block: PackedBlock) -> None:
        """A request with this ``block`` is about to be added."""
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
