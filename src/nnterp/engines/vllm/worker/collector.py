"""Collects the rows that one run reads, in the worker.

A run's requests carry its id and the prompt's index in place of a block. Where the forward reaches
a wanted value, its rows are taken for all of the step's requests in one operation, and nothing
waits.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

from nnsight.intervention.errors import capture_exception
from torch import Tensor

from nnterp.collecting.gather import Gather, NullStore
from nnterp.collecting.selections import Apply, Rows, Selection, Span
from nnterp.engines.vllm.worker.in_graph import KeptRows
from nnterp.engines.vllm.worker.row_access import Consumers, RowAccess
from nnterp.engines.vllm.worker.store import CallersStore
from nnterp.lifetime import Reading
from nnterp.vocabulary.names import Place


class Collector:
    """Keeps what one run reads in the steps that its requests are in.

    Args:
        model: The worker's tree.
        wanted: The selection at each place.
        store: Where the rows are put; None on a rank that only takes part in the reading.
        kept: Takes rows of the places that a compiled forward keeps.

    Attributes:
        error: The first error, captured for the client; after it nothing more is kept.
    """

    def __init__(
        self,
        model: Any,
        wanted: Mapping[Place, Selection],
        store: CallersStore | None,
        kept: Mapping[Place, KeptRows],
    ) -> None:
        self.error: dict[str, Any] | None = None
        self._store = store
        self._gather = Gather(wanted, store or NullStore())
        self._kept = {place: rows for place, rows in kept.items() if place in wanted}
        beside = [place for place in wanted if place not in self._kept]
        self._consumers = Consumers((place, RowAccess(model, place)) for place in beside)

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
        return self._consumers.locations

    def arrive(self, location: str, content: Any) -> Any:
        """Keep the wanted rows of ``content``, which is what the step holds at ``location``."""
        if self.error is not None:
            return content
        try:
            for place, access in self._consumers.reach(location, content):
                self._take(place, partial(access.read, content), partial(access.of_prompt, content))
                access.release()
        except Exception as error:  # of the caller's function, or for want of room
            self.error = capture_exception(error)
        return content

    def take_kept(self) -> None:
        """Keep the wanted rows of what the compiled forward of the step has kept."""
        if self.error is not None:
            return
        try:
            for place, rows in self._kept.items():
                self._take(place, rows.read, rows.of_prompt)
        except Exception as error:  # of the caller's function, or for want of room
            self.error = capture_exception(error)

    def _take(
        self, place: Place, read: Callable[[Rows], Reading], of_prompt: Callable[[Span], Tensor]
    ) -> None:
        """Keep the wanted rows of the value at ``place``.

        Args:
            place: The value, and the block.
            read: Returns some of its rows, ``[rows, ...]``.
            of_prompt: Returns a copy of a prompt's value, in the layout of a trace with batch 1.
        """
        if isinstance(self._gather.wanted[place], Apply):
            self._gather.apply(place, of_prompt)
        else:
            self._gather.add(place, read)

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
