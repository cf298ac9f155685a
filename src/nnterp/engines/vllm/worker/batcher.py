"""Cuts a request's rows out of a step's tensors, and writes edited rows back in place.

vLLM runs every request of a step in one tensor: ``[tokens, hidden]``, or ``[1, tokens, hidden]``
under its Transformers backend, with the heads of queries, keys and values flattened into the last
axis, ``[tokens, heads * head_dim]``. A block may have its own request's rows only. `PrivateRows`
copies them out in the layout of the standard value, so that nothing a later kernel writes can
change what was read, and `RowBatcher` copies edited ones back into those rows and no others.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from nnsight.intervention.batching import BatchGroup
from nnsight.modeling.vllm.batching import VLLMBatcher
from torch import Tensor

from nnterp.collecting.selections import Rows
from nnterp.engines.vllm.envoys.adapter import StepContent, as_passed, batched
from nnterp.lifetime import copied, outside_inference_mode
from nnterp.sites.base import Site
from nnterp.tracing.envoy import StandardEnvoy
from nnterp.tracing.swap import Swap
from nnterp.vocabulary.values import Value


class RefusedSplice(ValueError):
    """Raised for a value that does not fit the rows it would take the place of."""


class RowBatcher(VLLMBatcher):
    """Cuts a request's rows out of a step's tensors, and writes a block's edits back into them.

    Where blocks read most of a step's rows, a value is computed, or copied, for all of them at once
    and split among the requests. Where they read few, each request's rows are read on their own,
    for a piece keeps alive the whole tensor that it was cut from.

    The first edit of a location in a step copies the step's tensor, and every edit after it, of
    this request or another, is written into that copy. The cost is one copy of the tensor a
    location, however many requests edit it, and where the model also uses the tensor elsewhere it
    keeps its own values.

    An edit of a value that was read for all rows at once is put into a copy of that value. Once all
    blocks have been served at the location, `settled` puts the copy into the model: what it takes
    to turn the value back into what the model holds there is done once, and not for each request.
    """

    def __init__(self) -> None:
        super().__init__(None)
        #: The number of rows of each request of the step, in order.
        self.lengths: list[int] = []
        self._copies: list[Tensor] = []
        self._pieces: dict[tuple[int, str], Sequence[Tensor] | None] | None = None
        #: The values read for the whole step with the edits that were taken in them, and where each
        #: is.
        self._taken: dict[tuple[int, str], tuple[Site, Value, StandardEnvoy, Tensor]] = {}
        self._takes = False
        #: The first rows of the requests that have edited the location, whose pieces are stale.
        self._edited: set[int] = set()

    def arrive(self, readers: Iterable[Any], takes: bool = False) -> None:
        """Start serving another location: earlier copies now belong to the model.

        Args:
            readers: The blocks that wait for the location.
            takes: Whether edits may be put in together, by a call of `settled` in the end.
        """
        self._copies.clear()
        self._edited.clear()
        self._taken.clear()
        self._takes = takes
        rows = sum(block.batch_group[1] for block in readers if block.batch_group is not None)
        self._pieces = {} if 2 * rows > self.total else None

    def token_axis(self, tensor: Tensor) -> int | None:
        """Return the axis of ``tensor`` that holds the step's rows, or None."""
        return self._token_dim(tensor)

    def piece(
        self, step: StepContent, site: Site, value: Value, host: StandardEnvoy
    ) -> Tensor | None:
        """Return the rows of ``step``'s block out of one reading of all rows, or None.

        Args:
            step: What arrived, and the block.
            site: Where the value is.
            value: The value.
            host: The envoy that hosts it.

        Returns:
            The rows in the layout of ``value``. None if each block reads its own rows here, if the
            block's request has edited the location, or if the reading is not one row a token.
        """
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
        """Read ``value`` for the whole step and split it by request, if it is one row a token."""
        if value.token_axis is None or "key" in value.axes:
            return None
        with outside_inference_mode():
            reading = site.read(host, content)
            whole = reading.mapped(batched(reading.tensor, value, host))
            if whole.tensor.shape[value.token_axis] != sum(self.lengths):
                return None
            private = whole.copied()
            # Unlike views, these have version counters of their own, which count their own edits.
            return torch.unsafe_split_with_sizes(private, self.lengths, value.token_axis)

    def take(
        self, step: StepContent, site: Site, value: Value, host: StandardEnvoy, view: Tensor
    ) -> bool:
        """Take a block's edit of a value that was read for the whole step, as `piece` does.

        Args:
            step: What arrived, and the block.
            site: Where the value is.
            value: The value.
            host: The envoy that hosts it.
            view: The value with the edit, in the layout of ``value``.

        Returns:
            Whether it was taken, to be put into the step by `settled`.
        """
        key = (id(host), value.name)
        if not self._takes or not self._pieces or self._pieces.get(key) is None:
            return False
        if key not in self._taken:
            with outside_inference_mode():
                reading = site.read(host, step.content)
                whole = reading.mapped(batched(reading.tensor, value, host)).copied()
            self._taken[key] = (site, value, host, whole)
        whole = self._taken[key][-1]
        assert value.token_axis is not None
        whole.narrow(value.token_axis, *step.block.batch_group).copy_(view)
        self._edited.add(step.block.batch_group[0])
        return True

    def with_edits_of(self, group: BatchGroup, full: Any) -> Any:
        """Return ``full``, with what was taken in it if the request of ``group`` has edited it."""
        edited = bool(self._taken) and group is not None and group[0] in self._edited
        return self._with_taken(full) if edited else full

    def settled(self, full: Any) -> Any:
        """Return ``full`` with the edits that were taken in it, and stop serving the location."""
        whole = self._with_taken(full)
        # What is served next may be no location of a forward: a request's result is none.
        self._taken.clear()
        self._pieces, self._takes = None, False
        return whole

    def _with_taken(self, full: Any) -> Any:
        """Return ``full`` with the edits that were taken in it so far."""
        for site, value, host, whole in self._taken.values():
            like = site.read(host, full).tensor
            full = site.write(host, full, as_passed(whole, like, value))
        return full

    def _refresh(self, full: Any, group: BatchGroup) -> None:
        """Put the rows of ``group``, as they are in ``full``, into the values that were taken."""
        for site, value, host, whole in self._taken.values():
            own = batched(site.read(host, self.narrow(full, group)).tensor, value, host)
            assert value.token_axis is not None
            whole.narrow(value.token_axis, *group).copy_(own)

    def narrow(self, value: Any, group: BatchGroup) -> Any:
        """Return ``value`` with each tensor cut to the rows of ``group``, ``[start, length]``."""
        # A tensor and a tuple of tensors are what decoder blocks mostly pass. They are handled
        # without nnsight's walk through structures.
        if group is not None:
            if type(value) is Tensor:
                return self._narrow_tensor(value, group)
            if type(value) is tuple and all(type(part) is Tensor for part in value):
                return tuple([self._narrow_tensor(part, group) for part in value])
        return super().narrow(value, group)

    def widen(self, full: Any, group: BatchGroup, edited: Any) -> Any:
        """Return ``full`` with the rows of ``group`` as ``edited`` has them, or refuse a misfit."""
        if group is not None:
            self._edited.add(group[0])
        rows = None if group is None else Rows([group[0]], [group[1]])
        changed = self._changed(full, group, rows, edited)
        if group is not None:
            self._refresh(changed, group)
        return changed

    def _changed(self, full: Any, group: BatchGroup, rows: Rows | None, edited: Any) -> Any:
        """Return ``full`` with the rows of ``group`` as ``edited`` has them, or refuse a misfit."""
        if isinstance(edited, Swap):
            return self.merged(full, rows, edited.before, edited.after)
        # An assignment to one of nnsight's own handles swaps in whatever it is given.
        own = self.narrow(full, group)
        misfit = _misfit(own, edited)
        if misfit is not None:
            raise RefusedSplice(misfit)
        return self.merged(full, rows, own, edited)

    def merged(self, full: Any, rows: Rows | None, before: Any, after: Any) -> Any:
        """Return ``full`` with the part of some rows changed from ``before`` to ``after``.

        Args:
            full: What the step holds at the location.
            rows: The rows; None where nothing is known of them.
            before: The content of these rows before an edit.
            after: The same after it; tensors that were not edited are the same objects.
        """
        if before is after:
            return full
        if isinstance(full, Tensor):
            return self._write_rows(full, rows, after)
        if isinstance(full, dict):
            return {key: self.merged(full[key], rows, before[key], after[key]) for key in full}
        if not isinstance(full, (tuple, list)):
            return after
        parts = zip(full, before, after, strict=True)
        merged = [self.merged(part, rows, *sides) for part, *sides in parts]
        return full._make(merged) if hasattr(full, "_make") else type(full)(merged)

    def _write_rows(self, full: Tensor, rows: Rows | None, new: Tensor) -> Tensor:
        """Return the location's one copy of ``full``, with ``new`` in place of ``rows``."""
        axis = self._token_dim(full)
        if axis is None or rows is None:
            raise ValueError(
                f"a value of shape {tuple(full.shape)} holds no rows of this request to edit"
            )
        if not any(full is copy for copy in self._copies):
            full = copied(full)
            self._copies.append(full)
        rows.put(new, full, axis)
        return full


def _misfit(served: Any, offered: Any) -> str | None:
    """Return why ``offered`` cannot take the place of ``served``, or None where it can."""
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
