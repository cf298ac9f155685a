"""A request's rows, cut out of a step and put back in place.

vLLM runs every request of a step in one tensor: ``[tokens, hidden]``, or
``[1, tokens, hidden]`` under its Transformers backend, with the heads of queries, keys
and values flattened into the last axis. A block is entitled to its own request's rows.
`PrivateRows` copies them out in the layout of the contract, so that nothing a later
kernel writes can change what was read, and `RowBatcher` copies edited ones back into
those rows and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from nnsight.intervention.batching import BatchGroup
from nnsight.modeling.vllm.batching import VLLMBatcher
from torch import Tensor

from nnterp.engines.vllm.envoys.adapter import (
    StepContent,
    batched,
)
from nnterp.lifetime import copied, outside_inference_mode
from nnterp.sites.base import Site
from nnterp.tracing.edit import Edit
from nnterp.tracing.envoy import StandardEnvoy
from nnterp.vocabulary.values import Value


class RefusedSplice(ValueError):
    """A value that does not fit the rows it would be spliced into."""


class RowBatcher(VLLMBatcher):
    """Takes a request's rows out of a step, and puts a block's edits back into them.

    Where most of a step's rows are read, a value is computed, or copied, for all of them at
    once and handed out in pieces; where few are, each is read on its own, for a piece keeps
    alive the whole it was cut from.

    The first edit of a location in a step copies the slab, and every edit after it, of
    this request or another, is written into that copy: the cost is one slab a location,
    however many requests edit it, and a tensor the model also uses elsewhere keeps its
    own values there.
    """

    def __init__(self) -> None:
        super().__init__(None)
        #: The rows of each request of the step, in order.
        self.lengths: list[int] = []
        self._copies: list[Tensor] = []
        self._pieces: dict[tuple[int, str], Sequence[Tensor] | None] | None = None
        #: The first rows of the requests that have edited the location, whose pieces are stale.
        self._edited: set[int] = set()

    def arrive(self, readers: Iterable[Any]) -> None:
        """The forward has reached another location: what was copied before is the model's.

        Args:
            readers: The blocks that wait for it.
        """
        self._copies.clear()
        self._edited.clear()
        rows = sum(block.batch_group[1] for block in readers if block.batch_group is not None)
        self._pieces = {} if 2 * rows > self.total else None

    def token_axis(self, tensor: Tensor) -> int | None:
        """The axis of ``tensor`` that holds the step's rows, or None."""
        return self._token_dim(tensor)

    def piece(
        self, step: StepContent, site: Site, value: Value, host: StandardEnvoy
    ) -> Tensor | None:
        """The rows of ``step``'s block out of a reading of all of them, or None."""
        if self._pieces is None or step.block.batch_group[0] in self._edited:
            return None
        key = (id(host), value.name)
        if key not in self._pieces:
            self._pieces[key] = self._cut(step.content, site, value, host)
        pieces = self._pieces[key]
        if pieces is None:
            return None
        piece = pieces[step.block.row]
        return piece if piece.shape[value.token_axis] == step.block.batch_group[1] else None

    def _cut(
        self, content: Any, site: Site, value: Value, host: StandardEnvoy
    ) -> Sequence[Tensor] | None:
        if value.token_axis is None or "key" in value.axes:
            return None
        with outside_inference_mode():
            reading = site.read(host, content)
            whole = reading.mapped(batched(reading.tensor, value, host))
            if whole.tensor.shape[value.token_axis] != sum(self.lengths):
                return None
            # Unlike views, these count their own edits.
            return torch.unsafe_split_with_sizes(whole.copied(), self.lengths, value.token_axis)

    def narrow(self, value: Any, group: BatchGroup) -> Any:
        # The two things blocks mostly pass, without nnsight's walk through structures.
        if group is not None:
            if type(value) is Tensor:
                return self._narrow_tensor(value, group)
            if type(value) is tuple and all(type(part) is Tensor for part in value):
                return tuple([self._narrow_tensor(part, group) for part in value])
        return super().narrow(value, group)

    def widen(self, full: Any, group: BatchGroup, edited: Any) -> Any:
        if group is not None:
            self._edited.add(group[0])
        if isinstance(edited, Edit):
            return self._merge(full, group, edited.before, edited.after)
        # nnsight's own handles swap in whatever they are given.
        own = self.narrow(full, group)
        misfit = _misfit(own, edited)
        if misfit is not None:
            raise RefusedSplice(misfit)
        return self._merge(full, group, own, edited)

    def _merge(self, full: Any, group: BatchGroup, before: Any, after: Any) -> Any:
        if before is after:
            return full
        if isinstance(full, Tensor):
            return self._write_rows(full, group, after)
        if isinstance(full, dict):
            return {key: self._merge(full[key], group, before[key], after[key]) for key in full}
        if not isinstance(full, (tuple, list)):
            return after
        parts = zip(full, before, after, strict=True)
        merged = [self._merge(part, group, *sides) for part, *sides in parts]
        return full._make(merged) if hasattr(full, "_make") else type(full)(merged)

    def _write_rows(self, full: Tensor, group: BatchGroup, rows: Tensor) -> Tensor:
        axis = self._token_dim(full)
        if axis is None or group is None:
            raise ValueError(
                f"a value of shape {tuple(full.shape)} holds no rows of this request to edit"
            )
        if not any(full is copy for copy in self._copies):
            full = copied(full)
            self._copies.append(full)
        full.narrow(axis, *group).copy_(rows)
        return full


def _misfit(served: Any, offered: Any) -> str | None:
    """Why ``offered`` cannot take the place of ``served``, or None where it can."""
    if isinstance(served, Tensor):
        if not isinstance(offered, Tensor):
            return f"holds a tensor of shape {tuple(served.shape)}; it cannot become {offered!r}"
        if served.shape != offered.shape:
            return (
                f"has shape {tuple(served.shape)} on this request, and a value of shape "
                f"{tuple(offered.shape)} cannot take its place"
            )
        if offered.is_meta or offered.layout is not torch.strided:
            return "takes dense tensors with values only"
        return None
    if isinstance(served, (tuple, list)):
        if not isinstance(offered, (tuple, list)) or len(offered) != len(served):
            given = type(offered).__name__
            return f"is a {type(served).__name__} of {len(served)}; it cannot become a {given}"
        return next(filter(None, map(_misfit, served, offered)), None)
    if isinstance(served, dict):
        if not isinstance(offered, dict) or offered.keys() != served.keys():
            return f"is a dict of {sorted(served)}; it cannot become {type(offered).__name__}"
        return next((m for key in served if (m := _misfit(served[key], offered[key]))), None)
    return None
