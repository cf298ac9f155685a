"""Holds what the worker keeps of one request's block, in one object on nnsight's mediator."""

from __future__ import annotations

import torch

from nnterp.engines.vllm.worker.captured import CapturedObjects
from nnterp.engines.vllm.worker.saved import Saved
from nnterp.engines.vllm.worker.thread_state import Turn
from nnterp.tracing.block_state import BlockState


class RequestState(BlockState):
    """Holds the state of one request's block.

    Args:
        file: Where the user wrote the block.
        captured: The objects around it, as they arrived; none for an installed edit, whose requests
            share them.

    Attributes:
        cached_tokens: How many of the request's tokens come before the rows that the block has in
            this step.
        steps: How many steps the request has been in.
        edited: Whether the block has changed anything that the KV cache may hold.
        lora_number: The LoRA adapter that the request is for, by vLLM's number, or 0.
        saved: What the block has saved.
        turn: The block's own thread state.
        own_random: The states of the generators that the block draws from, where they are kept
            apart.
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
