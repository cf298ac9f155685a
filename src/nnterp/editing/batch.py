"""Makes edits in a padded batch, as transformers runs it; padding is left as it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from torch import Tensor

from nnterp.collecting.selections import Span
from nnterp.editing.stages import RowEdits
from nnterp.vocabulary.values import Value


def edit_batch(edits: RowEdits, value: Value, tensor: Tensor, spans: Sequence[Span]) -> None:
    """Make ``edits`` in one forward's ``tensor``, in place.

    Args:
        edits: The edits of the value's place.
        value: The value, which has a row a token.
        tensor: It, in the layout of a trace, such as ``[batch, seq, hidden]``.
        spans: The rows of each prompt among ``batch * seq``.
    """
    axis = value.token_axis
    assert axis is not None
    by_token = tensor.movedim(axis, 1)
    width = by_token.shape[1]
    edits.enter(spans, tensor.device)
    if edits.rows is not None:
        index = edits.rows.index(tensor.device)
        at = index // width, index % width
        by_token[at] = edits.apply(by_token[at])


def edit_patterns(
    edits: RowEdits, tensor: Tensor, spans: Sequence[Span], columns: Mapping[int, int] | None
) -> None:
    """Make ``edits`` in one forward's pattern or scores, ``[batch, heads, query, key]``, in place.

    Args:
        edits: The edits of the value's place.
        tensor: The pattern or the scores.
        spans: The rows of each prompt among ``batch * query``, of which a span's last sees all of
            the prompt's keys so far.
        columns: The column of each prompt's first key; None to edit whole rows.

    Raises:
        RuntimeError: A vector is not as long as the edited part of a row.
    """
    by_token = tensor.movedim(2, 1)
    width = by_token.shape[1]
    for span in spans:
        own = by_token[span.start // width]
        if columns is not None:
            first = columns[span.prompt]
            own = own[..., max(first, 0) : first + span.first + span.length]
        edits.enter([span._replace(start=span.start % width)], tensor.device)
        if edits.rows is not None:
            rows = edits.rows.index(tensor.device)
            own[rows] = edits.apply(own[rows])
