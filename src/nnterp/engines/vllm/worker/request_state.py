"""What the worker keeps of one request's block: one object on nnsight's mediator."""

from __future__ import annotations

import torch

from nnterp.engines.vllm.worker.captured import CapturedObjects
from nnterp.engines.vllm.worker.saved import Saved
from nnterp.engines.vllm.worker.thread_state import Turn
from nnterp.tracing.block_state import BlockState


class RequestState(BlockState):
    """The state of one request's block.

    Args:
        file: Where the user wrote the block.
        captured: The objects around it, as they arrived; none for an installed edit, whose
            requests share them.

    Attributes:
        cached_tokens: How many of the request's tokens this step does not run.
        steps: How many steps the request has been in.
        edited: Whether the block has changed anything the cache may hold.
        lora_number: The LoRA adapter its request is for, by vLLM's number, or 0.
        saved: What it has saved.
        turn: Its own thread state.
        own_random: The states of the generators it draws from, where they are kept apart.
    """

    def __init__(self, file: str, captured: CapturedObjects) -> None:
        super().__init__()
        self.file = file
        self.captured = captured
        self.cached_tokens = 0
        self.steps = 0
        self.edited = False
        self.lora_number = 0
        self.saved = Saved()
        self.turn = Turn()
        self.own_random: list[torch.Tensor] | None = None
