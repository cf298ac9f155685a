"""Makes edits in a padded batch, as transformers runs it."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from nnterp.collecting.selections import Span
from nnterp.editing.stages import RowEdits
from nnterp.vocabulary.values import Value


def edit_batch(
    edits: RowEdits, value: Value, tensor: Tensor, spans: Sequence[Span], at_end: bool
) -> None:
    """Make ``edits`` in one forward's ``tensor``, in place; rows of padding are left as they are.

    Args:
        edits: The edits of the value's place.
        value: The value.
        tensor: It, in the layout of a trace, such as ``[batch, seq, hidden]``.
        spans: The rows of each prompt among ``batch * seq``.
        at_end: Whether a prompt's tokens are the last of its row, with padding before them.
    """
    axis = value.token_axis
    assert axis is not None
    by_token = tensor.movedim(axis, 1)
    width = by_token.shape[1]
    if "key" not in value.axes:
        edits.enter(spans, tensor.device)
        if edits.rows is not None:
            index = edits.rows.index(tensor.device)
            at = index // width, index % width
            by_token[at] = edits.apply(by_token[at])
        return
    for span in spans:
        keys = min(span.first + span.length, by_token.shape[-1])
        first = by_token.shape[-1] - keys if at_end else 0
        own = by_token[span.start // width, :, :, first : first + keys]
        edits.enter([span._replace(start=span.start % width)], tensor.device)
        if edits.rows is not None:
            rows = edits.rows.index(tensor.device)
            own[rows] = edits.apply(own[rows])
