"""The caller's end of an engine that streams its outputs."""

from __future__ import annotations

from typing import Any

from vllm.v1.engine.async_llm import AsyncLLM

from .engine import salted
from .payload import has_block


class StandardizedAsyncEngine(AsyncLLM):
    """vLLM's streaming engine, which keeps edited requests out of the shared cache.

    Attributes:
        edits: The edits installed on the engine; while there are any, they run on every request.
    """

    edits: list[Any]

    @classmethod
    def adopt(cls, engine: AsyncLLM, edits: list[Any]) -> None:
        """Turn an engine vLLM built into one of these."""
        engine.__class__ = cls
        engine.edits = edits

    async def add_request(
        self, request_id: str, prompt: Any, params: Any, *args: Any, **kw: Any
    ) -> Any:
        if has_block(params) or self.edits:
            prompt = salted(prompt)
        return await super().add_request(request_id, prompt, params, *args, **kw)
