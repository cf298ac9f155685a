"""Collects the rows that one `collect` asks for, in the worker.

Its requests carry the collector's id and the prompt's index in place of a block. Where the forward
reaches a wanted value, its rows are taken for all of the step's requests in one operation, and
nothing waits.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

from nnsight.intervention.errors import capture_exception
from nnsight.util import apply
from torch import Tensor

from nnterp.collecting.gather import Gather, NullStore
from nnterp.collecting.selections import Apply, Picked, Selection, Span
from nnterp.engines.vllm.envoys.adapter import batched
from nnterp.engines.vllm.worker.batcher import RowBatcher
from nnterp.engines.vllm.worker.store import CallersStore
from nnterp.lifetime import Reading, copied, outside_inference_mode
from nnterp.sites.base import Site
from nnterp.sites.two_part import TwoPart
from nnterp.tracing.envoy import StandardEnvoy
from nnterp.vocabulary.names import Place


class _Source(NamedTuple):
    """Describes a wanted value and where it is.

    Attributes:
        place: The place that was asked for.
        site: Where the value is.
        host: The envoy that hosts it.
        is_earlier: Whether this is the earlier part of a value that comes in two parts.
    """

    place: Place
    site: Any
    host: StandardEnvoy
    is_earlier: bool = False


class Collector:
    """Keeps what one `collect` wants of the steps that its requests are in.

    Args:
        model: The worker's tree.
        wanted: The selection at each place.
        lengths: The number of tokens of each prompt.
        store: Where the rows are put; None on a rank that only takes part in the reading.

    Attributes:
        lengths: The number of tokens of each prompt.
        error: The first error, captured for the client; after it nothing more is kept.
    """

    def __init__(
        self,
        model: Any,
        wanted: Mapping[Place, Selection],
        lengths: Sequence[int],
        store: CallersStore | None,
    ) -> None:
        self.lengths = lengths
        self.error: dict[str, Any] | None = None
        self._batcher: RowBatcher = model.interleaver.batcher
        self._has_adapters = model.interleaver.adapters is not None
        self._store = store
        self._gather = Gather(wanted, store or NullStore())
        self._sources: dict[str, list[_Source]] = {}
        #: The earlier parts of values that come in two parts, as read in this step.
        self._parts: dict[Place, Tensor] = {}
        for place in wanted:
            host = model.host_of(place.value, place.layer or 0)
            self._expect(_Source(place, getattr(type(host), place.value.name).site, host))

    def _expect(self, source: _Source) -> None:
        """Register ``source`` at its location, with the earlier part of a value in two parts."""
        place, site, host, _ = source
        if isinstance(site, TwoPart):
            self._expect(_Source(place, site.earlier, host, is_earlier=True))
        self._sources.setdefault(site.location(host), []).append(source)

    def enter(self, spans: Sequence[Span], a_row_each: bool = False) -> None:
        """Take note of which prompts' tokens are in the rows of the step that begins.

        Args:
            spans: The rows of each prompt.
            a_row_each: Whether there is one row for each prompt, its logits, not one for each
                token.
        """
        self._gather.enter(spans, a_row_each)

    @property
    def locations(self) -> Iterable[str]:
        """Return the locations at which the forward reaches what is to be kept."""
        return self._sources

    def arrive(self, location: str, content: Any) -> None:
        """Keep the wanted rows of ``content``, which is what the step holds at ``location``."""
        if self.error is not None:
            return
        try:
            for source in self._sources[location]:
                self._take(source, content)
        except Exception as error:  # of the caller's function, or for want of room
            self.error = capture_exception(error)

    def _take(self, source: _Source, content: Any) -> None:
        """Read the value of ``source`` out of ``content``, and keep its wanted rows."""
        place, site, host, is_earlier = source
        value = place.value
        if is_earlier:
            self._parts[place] = site.read(host, content).copied()
            return
        part = self._parts.pop(place) if isinstance(site, TwoPart) else None
        # LoRA adapters are applied to all rows of the step together, and reading a value may call a
        # module. So where there are adapters a value is read for the whole step, unless it has a
        # row and a column for each token: no such value calls a module.
        axis = value.token_axis if self._has_adapters and "key" not in value.axes else None

        def here(narrow: Callable[[Tensor], Tensor]) -> Site:
            return site if part is None else site.given(narrow(part))

        def of_step() -> Reading:
            with outside_inference_mode():
                reading = here(lambda rows: rows).read(host, content)
                return reading.mapped(batched(reading.tensor, value, host))

        def whole(span: Span) -> Tensor:
            group = [span.start, span.length]
            if axis is not None:
                step = of_step()
                # A copy, because a view keeps alive the whole step's tensor.
                return copied(step.tensor.narrow(axis, *group))
            own = self._batcher.narrow(content, group)
            with outside_inference_mode():
                private = (
                    here(lambda rows: self._batcher.narrow(rows, group)).read(host, own).copied()
                )
            return batched(private, value, host)

        def picked(rows: Picked) -> Reading:
            if axis is not None:
                step = of_step()
                return step.mapped(rows.take(step.tensor, axis)[0].movedim(axis - 1, 0))
            narrow = partial(self._rows, rows=rows)
            reading = here(narrow).read(host, apply(content, narrow, Tensor))
            taken = batched(reading.tensor, value, host)
            if value.token_axis is not None:
                taken = taken[0].movedim(value.token_axis - 1, 0)
            return reading.mapped(taken)

        if isinstance(self._gather.wanted[place], Apply):
            self._gather.apply(place, whole)
        else:
            self._gather.add(place, picked)

    def _rows(self, tensor: Tensor, rows: Picked) -> Tensor:
        """Return the rows picked out of ``tensor``, or ``tensor`` where it has no axis of rows."""
        axis = self._batcher.token_axis(tensor)
        return tensor if axis is None else rows.take(tensor, axis)

    def finish(self, keep: bool) -> bytes | None:
        """Return the results and the error, pickled for the caller's process.

        Args:
            keep: Whether the results are wanted. If not, they are released.

        Returns:
            The pickled results and error. None if they are not wanted, or on a rank without a
            store.
        """
        if self._store is None:
            return None
        try:
            self._store.flush()
        except Exception as error:  # on the way to the host
            self.error = self.error or capture_exception(error)
        if not keep:
            self._store.discard()
            return None
        results = {} if self.error else self._gather.results()
        named = {str(place): tensor for place, tensor in results.items()}
        return pickle.dumps((self._store.deliver(named), self.error), pickle.HIGHEST_PROTOCOL)
