"""One `collect` in the worker.

Its requests carry a number in place of a block. Where a wanted value comes by, its rows are
taken for all of the step's requests in one operation, and nothing waits.
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
    place: Place
    site: Any
    host: StandardEnvoy
    is_earlier: bool = False


class Collector:
    """What one `collect` keeps of the steps that its requests are in.

    Args:
        model: The worker's tree.
        wanted: The selection at each place.
        lengths: The tokens of each prompt.
        store: Where the rows go; nowhere on a rank that only takes part in the reading.
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
        #: What the step had of values that come in two parts, when the earlier came by.
        self._parts: dict[Place, Tensor] = {}
        for place in wanted:
            host = model.host_of(place.value, place.layer or 0)
            self._expect(_Source(place, getattr(type(host), place.value.name).site, host))

    def _expect(self, source: _Source) -> None:
        place, site, host, _ = source
        if isinstance(site, TwoPart):
            self._expect(_Source(place, site.earlier, host, is_earlier=True))
        self._sources.setdefault(site.location(host), []).append(source)

    def enter(self, spans: Sequence[Span], a_row_each: bool = False) -> None:
        """A step has these prompts' tokens in its rows, or one row for each prompt's logits."""
        self._gather.enter(spans, a_row_each)

    @property
    def locations(self) -> Iterable[str]:
        """Where what is to be kept comes by."""
        return self._sources

    def arrive(self, location: str, content: Any) -> None:
        """Keep the rows wanted of what the step holds at ``location``."""
        if self.error is not None:
            return
        try:
            for source in self._sources[location]:
                self._take(source, content)
        except Exception as error:  # of the caller's function, or for want of room
            self.error = capture_exception(error)

    def _take(self, source: _Source, content: Any) -> None:
        place, site, host, is_earlier = source
        value = place.value
        if is_earlier:
            self._parts[place] = site.read(host, content).copied()
            return
        part = self._parts.pop(place) if isinstance(site, TwoPart) else None
        # Where modules apply adapters they do to the step's rows, all of them, and a value may
        # take a module's call; none that has a row and a column a token does.
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
                # Of what is kept alive as long as the part is, a part of its own.
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
        axis = self._batcher.token_axis(tensor)
        return tensor if axis is None else rows.take(tensor, axis)

    def finish(self, keep: bool) -> bytes | None:
        """The results and the error for the caller's process; or nothing, letting go of them."""
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
