"""Makes the edits of one run, in the worker, for all of its requests in a step at once."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch
from nnsight.intervention.errors import capture_exception

from nnterp.collecting.selections import Span
from nnterp.editing.request import Changes
from nnterp.editing.stages import by_place
from nnterp.engines.vllm.worker.edited_cache import is_tame
from nnterp.engines.vllm.worker.row_access import Consumers, RowAccess
from nnterp.lifetime import outside_inference_mode


class Editor:
    """Makes what one run changes in the steps that its requests are in.

    Args:
        model: The worker's tree.
        changes: The changes of each prompt at each place.
        device: Where the model's values are.
        checks: Whether it finds out if what it leaves is tame.

    Attributes:
        error: The first error, captured for the client; after it nothing more is edited.
        tame: Whether all rows that were edited in the step are left tame, as `is_tame` says; False
            where it does not find out.
    """

    def __init__(
        self, model: Any, changes: Changes, device: torch.device, checks: bool = False
    ) -> None:
        self.error: dict[str, Any] | None = None
        self.tame = checks
        self._checks = checks
        self._edited = frozenset(prompt for own in changes.values() for prompt in own)
        self._device = device
        self._edits = by_place(changes)
        self._consumers = Consumers((place, RowAccess(model, place)) for place in changes)
        self._spans: Sequence[Span] = ()

    def enter(self, spans: Sequence[Span], a_row_each: bool = False) -> None:
        """Take note of which prompts' tokens are in the rows of the step that begins.

        Args:
            spans: The rows of each prompt.
            a_row_each: Whether there is one row for each prompt, its logits, not one for each
                token.
        """
        self._spans = spans
        if not a_row_each:
            self.tame = self._checks

    def edits(self, prompt: int) -> bool:
        """Return whether anything of ``prompt`` is edited."""
        return prompt in self._edited

    @property
    def locations(self) -> Iterable[str]:
        """Return the locations at which the forward reaches what is to be edited."""
        return self._consumers.locations

    def arrive(self, location: str, content: Any) -> Any:
        """Return ``content``, which is what the step holds at ``location``, with the edits made."""
        if self.error is not None:
            return content
        try:
            for place, access in self._consumers.reach(location, content):
                edits = self._edits[place]
                edits.enter(self._spans, self._device)
                if edits.rows is not None:
                    with outside_inference_mode():
                        values = edits.apply(access.read(content, edits.rows).tensor)
                    self.tame = self.tame and is_tame(values)
                    content = access.write(content, edits.rows, values)
                access.release()
        except Exception as error:  # of a vector that does not suit what the model holds
            self.error = capture_exception(error)
        return content
