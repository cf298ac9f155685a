"""Reads and writes rows of a value out of a step's tensors, without a block.

A block is given its request's rows. What is asked for beforehand is the same for many requests, so
here rows of any requests are taken together, in the layout of the standard value with the tokens
first, and put back the same way.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

from nnsight.util import apply
from torch import Tensor

from nnterp.collecting.selections import Rows, Span
from nnterp.engines.vllm.envoys.adapter import as_passed, batched
from nnterp.engines.vllm.worker.batcher import RowBatcher
from nnterp.lifetime import Reading, copied, outside_inference_mode
from nnterp.sites.base import Site
from nnterp.sites.two_part import TwoPart
from nnterp.vocabulary.names import Place


class RowAccess:
    """A `RowAccess` takes rows of one value out of steps, and puts rows into them.

    Args:
        model: The worker's tree.
        place: The value, and the block.

    Attributes:
        location: The location at which it is read and written.
        earlier_location: The location of the earlier part of a value that comes in two parts, or
            None.
    """

    def __init__(self, model: Any, place: Place) -> None:
        self._value = place.value
        self._host = model.host_of(place.value, place.layer or 0)
        self._site: Site = getattr(type(self._host), place.value.name).site
        self._batcher: RowBatcher = model.interleaver.batcher
        # LoRA adapters are applied to all rows of the step together, and reading a value may call a
        # module. So where there are adapters a value is read for the whole step, unless it has a
        # row and a column for each token: no such value calls a module.
        whole = model.interleaver.adapters is not None and "key" not in place.value.axes
        self._axis = place.value.token_axis if whole else None
        self._part: Tensor | None = None
        self.location = self._site.location(self._host)
        two = isinstance(self._site, TwoPart)
        self.earlier_location = self._site.earlier.location(self._host) if two else None

    def keep_part(self, content: Any) -> None:
        """Keep the earlier part of the value, which is in ``content``, until `release`."""
        assert isinstance(self._site, TwoPart)
        self._part = self._site.earlier.read(self._host, content).copied()

    def release(self) -> None:
        """Release the earlier part that was kept, if any."""
        self._part = None

    def _given(self, narrow: Callable[[Tensor], Tensor]) -> Site:
        """Return the site of the value, with the rows of its earlier part that ``narrow`` takes."""
        if not isinstance(self._site, TwoPart):
            return self._site
        assert self._part is not None
        return self._site.given(narrow(self._part))

    def of_prompt(self, content: Any, span: Span) -> Tensor:
        """Return a copy of a prompt's value, in the layout of a trace with batch 1."""
        group = [span.start, span.length]
        if self._axis is not None:
            # A copy, because a view keeps alive the whole step's tensor.
            return copied(self._of_step(content).tensor.narrow(self._axis, *group))
        own = self._batcher.narrow(content, group)
        with outside_inference_mode():
            site = self._given(lambda rows: self._batcher.narrow(rows, group))
            private = site.read(self._host, own).copied()
        return batched(private, self._value, self._host)

    def read(self, content: Any, rows: Rows) -> Reading:
        """Return some rows of the value, ``[rows, ...]``, out of a step's ``content``."""
        axis = self._axis
        if axis is not None:
            step = self._of_step(content)
            return step.mapped(rows.take(step.tensor, axis)[0].movedim(axis - 1, 0))
        narrow = partial(self._take, rows=rows)
        reading = self._given(narrow).read(self._host, apply(content, narrow, Tensor))
        return reading.mapped(self._tokens_first(batched(reading.tensor, self._value, self._host)))

    def write(self, content: Any, rows: Rows, values: Tensor) -> Any:
        """Return ``content`` with ``values``, ``[rows, ...]``, in place of some rows of the value.

        All other rows are the same to the bit. What ``content`` holds is left as it is, unless the
        value's site writes in place.
        """
        axis = self._axis
        narrow = partial(self._take, rows=rows)
        if self._site.writes_in_place:
            live = self._site.read(self._host, content).tensor
            own = as_passed(self._tokens_last(values), narrow(live), self._value)
            rows.put(own, live, self._batcher.token_axis(live) or 0)
            return content
        if axis is None:
            before = apply(content, narrow, Tensor)
            site, layout = self._given(narrow), self._tokens_last(values)
        else:
            before, site = content, self._given(lambda rows: rows)
            layout = self._of_step(content).copied()
            rows.put(values.movedim(0, axis - 1)[None], layout, axis)
        with outside_inference_mode():
            like = site.read(self._host, before).tensor
            after = site.write(self._host, before, as_passed(layout, like, self._value))
        if axis is not None:
            before, after = (apply(tree, narrow, Tensor) for tree in (before, after))
        return self._batcher.merged(content, rows, before, after)

    def _of_step(self, content: Any) -> Reading:
        """Read the value for every row of the step, in the layout of a trace."""
        with outside_inference_mode():
            reading = self._given(lambda rows: rows).read(self._host, content)
            return reading.mapped(batched(reading.tensor, self._value, self._host))

    def _tokens_first(self, layout: Tensor) -> Tensor:
        """Return a value in the layout of a trace as ``[rows, ...]``."""
        axis = self._value.token_axis
        return layout if axis is None else layout[0].movedim(axis - 1, 0)

    def _tokens_last(self, rows: Tensor) -> Tensor:
        """Return ``[rows, ...]`` in the layout of a trace."""
        axis = self._value.token_axis
        return rows if axis is None else rows.movedim(0, axis - 1)[None]

    def _take(self, tensor: Tensor, rows: Rows) -> Tensor:
        """Return ``rows`` of ``tensor``, or ``tensor`` where it has no axis of rows."""
        axis = self._batcher.token_axis(tensor)
        return tensor if axis is None else rows.take(tensor, axis)


class Consumers:
    """`Consumers` finds, by location, the values that are read or edited without a block.

    Args:
        accesses: The values, each with its access.
    """

    def __init__(self, accesses: Iterable[tuple[Place, RowAccess]]) -> None:
        self._at: dict[str, list[tuple[Place, RowAccess, bool]]] = {}
        for place, access in accesses:
            if access.earlier_location is not None:
                self._at.setdefault(access.earlier_location, []).append((place, access, True))
            self._at.setdefault(access.location, []).append((place, access, False))

    @property
    def locations(self) -> Iterable[str]:
        """Return the locations at which the forward reaches the values or their parts."""
        return self._at

    def reach(self, location: str, content: Any) -> Iterator[tuple[Place, RowAccess]]:
        """Yield the values at ``location``, and keep the earlier parts of others that are there."""
        for place, access, is_earlier in self._at[location]:
            if is_earlier:
                access.keep_part(content)
            else:
                yield place, access
