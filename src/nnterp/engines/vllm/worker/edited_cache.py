"""Clears the KV cache blocks of edited requests before other requests are given them.

Keys and values lie in KV cache blocks, and the next request is given a block as the last one left
it. That is harmless where what was left is finite: a kernel that reads a whole block weighs what is
not its own with zero. But zero times NaN is NaN, as is zero times infinity, and an edit can leave
those. So a block that an edited request has held is cleared when it is handed on, unless it is
known to have kept finite numbers. The model runner does so on a CPU only.

A step keeps no others if it ends in finite hidden states, and if every row that it edits is left
tame, as `is_tame` says. For what is not finite stays in the stream up to there, unless a later edit
replaces it; and what it replaces came from rows that an edit had left, of which a tame one is made
infinite by no module whose weights let other rows be finite.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import torch
from nnsight.util import apply
from torch import Tensor

#: The power of a type's largest number that bounds a tame row: squares and sums, such as a norm's,
#: are finite, with room for weights.
_TAME = 0.25

#: A request's KV cache blocks, for each of the engine's groups of layers; all groups share one
#: numbering.
BlockIds = Sequence[Sequence[int]]


def is_tame(rows: Tensor) -> bool:
    """Return whether ``rows`` are finite, and so small that a module leaves them finite."""
    if not rows.numel() or not rows.is_floating_point():
        return True
    low, high = torch.aminmax(rows)
    bound = torch.finfo(rows.dtype).max ** _TAME
    return bool(-bound <= low) and bool(high <= bound)  # which NaN is not


class EditedBlocks:
    """Tracks the KV cache blocks that edited requests have held, and clears those handed on.

    Args:
        runner: vLLM's model runner, which has the KV cache.
    """

    def __init__(self, runner: Any) -> None:
        self._runner = runner
        self._held: set[int] = set()

    def hold(self, blocks: BlockIds) -> None:
        """Record that an edited request holds ``blocks``."""
        for group in blocks:
            self._held.update(group)

    def hand_on(self, scheduled: Any) -> None:
        """Clear those of the recorded blocks that requests are given in a step.

        Args:
            scheduled: vLLM's scheduler output for the step.
        """
        if not self._held:
            return
        given = {block for block in self._given(scheduled) if block in self._held}
        if given:
            self._clear(sorted(given))
            self._held -= given

    def _given(self, scheduled: Any) -> Iterator[int]:
        """Yield the blocks that requests are given in a step, to write to."""
        for new in scheduled.scheduled_new_reqs:
            yield from self._to_write(new.block_ids, new.num_computed_tokens)
        running = scheduled.scheduled_cached_reqs
        every = zip(
            running.req_ids, running.new_block_ids, running.num_computed_tokens, strict=True
        )
        for request, blocks, computed in every:
            if blocks is not None:
                # A preempted request is given all of its blocks anew, and another the blocks it
                # lacks.
                begun = computed if request in running.resumed_req_ids else 0
                yield from self._to_write(blocks, begun)

    def _to_write(self, blocks: BlockIds, computed: int) -> Iterator[int]:
        """Yield the blocks with none of the ``computed`` tokens, which others have run."""
        groups = self._runner.kv_cache_config.kv_cache_groups
        for own, group in zip(blocks, groups, strict=True):
            yield from own[-(-computed // group.kv_cache_spec.block_size) :]

    def _clear(self, blocks: Iterable[int]) -> None:
        """Fill ``blocks`` with zeros in the KV cache of every layer."""
        count = self._runner.kv_cache_config.num_blocks
        index = torch.tensor(list(blocks), device=self._runner.device)
        for tensor in self._tensors():
            tensor.index_fill_(tensor.shape.index(count), index, 0)

    def _tensors(self) -> Iterator[Tensor]:
        """Yield the KV cache tensors, as each layer sees them."""
        layers = self._runner.compilation_config.static_forward_context
        for group in self._runner.kv_cache_config.kv_cache_groups:
            for name in group.layer_names:
                found: list[Tensor] = []
                apply(layers[name].kv_cache, found.append, Tensor)
                yield from found
