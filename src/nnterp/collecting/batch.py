"""Gathers values from a padded batch, as transformers runs it."""

from __future__ import annotations

import torch
from torch import Tensor

from nnterp.collecting.gather import Gather, Store
from nnterp.collecting.selections import Apply, Picked, Span
from nnterp.errors import Unavailable
from nnterp.lifetime import Reading, copied
from nnterp.sites.mapped import next_token_probabilities
from nnterp.vocabulary.names import Place
from nnterp.vocabulary.values import LOGITS, NEXT_TOKEN_PROBS


class InMemory(Store):
    """`InMemory` keeps results in this process's own memory, on the CPU."""

    def make(self, count: int, rows: Tensor) -> Tensor:
        return torch.empty(count, *rows.shape[1:], dtype=rows.dtype)

    def put(self, rows: Reading, into: Tensor, targets: Tensor | slice) -> None:
        into[targets] = rows.tensor.to(into.device)


def gather_batch(gather: Gather, place: Place, tensor: Tensor) -> None:
    """Add one forward's rows of ``place`` to ``gather``.

    Args:
        gather: What is collected.
        place: One of the places wanted.
        tensor: Its value, in the layout of a trace, such as ``[batch, seq, hidden]``, with padding
            on either side; for ``next_token_probs`` the logits, ``[batch, seq, vocab]``, because
            the last position of a padded row is padding.
    """
    derived = place.value is NEXT_TOKEN_PROBS
    value = LOGITS if derived else place.value
    axis = value.token_axis
    assert axis is not None
    width = tensor.shape[axis]

    def whole(span: Span) -> Tensor:
        own = tensor.narrow(0, span.start // width, 1)
        for index, name in enumerate(value.axes):
            if name == "key" and tensor.shape[index] > width:
                require_unpadded(place, padded=span.length < width)
            elif name in ("seq", "query", "key"):
                own = own.narrow(index, span.start % width, span.length)
        return next_token_probabilities(own) if derived else copied(own)

    def picked(rows: Picked) -> Reading:
        by_token = tensor.movedim(axis, 1)
        taken = rows.take(by_token.reshape(-1, *by_token.shape[2:]), 0)
        return Reading(tensor).mapped(next_token_probabilities(taken) if derived else taken)

    if isinstance(gather.wanted[place], Apply):
        gather.apply(place, whole)
    else:
        gather.add(place, picked)


def require_unpadded(place: Place, padded: bool) -> None:
    """Refuse a padded pattern that has columns of other keys than the tokens' own.

    Raises:
        Unavailable: It is ``padded``, so that it is not known which columns are padding.
    """
    if padded:
        raise Unavailable(
            f"{place} has columns of more keys than the tokens' own here, among which those of "
            "padding are not known; give it prompts of one length, or batch_size=1"
        )
