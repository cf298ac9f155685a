"""Takes what attention adds to the stream apart into what each of its heads adds.

Between the heads and the stream is the output projection, which is linear, and in some families a
norm. With all heads but one put to zero, what attention adds is that one's part: its exact part
where there is no norm, else its part in another length. All blocks are done in one run, since the
stream that leaves each is put back to what it was.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from nnterp.engines.standardized import Standardized
from nnterp.errors import Unavailable
from nnterp.interventions.frozen_norm import differs
from nnterp.records.edits import Edit, Replace, Zero
from nnterp.vocabulary.names import Place
from nnterp.vocabulary.values import ATTENTION_HEAD_OUTPUTS, ATTENTION_OUTPUT


def head_shares(
    model: Standardized,
    ids: Sequence[Sequence[int]],
    whole: Mapping[int, Tensor],
    streams: Mapping[int, Tensor],
    within: float,
    batch_size: int | None,
) -> dict[int, Tensor]:
    """Return what each head adds to the stream at the last position of each prompt.

    Args:
        model: The model.
        ids: The token ids of each prompt.
        whole: What attention adds there in each block that serves heads, ``[prompts, hidden]``.
        streams: What leaves each of these blocks there, in the same shape.
        within: The relative difference that is rounding.
        batch_size: The most prompts at a time.

    Returns:
        For each block ``[heads, prompts, hidden]``, in float64.

    Raises:
        Unavailable: What a block adds is no sum over its heads, even with its scale held.
    """
    at = {block: Place(ATTENTION_HEAD_OUTPUTS, block) for block in whole}
    shapes = model.row_shapes(list(at.values()))
    counts = {block: shapes[place][0] for block, place in at.items()}
    # The last run is without any head.
    runs = [*range(max(counts.values())), None]
    edits: list[list[Edit]] = []
    for only in runs:
        for prompt in range(len(ids)):
            own: list[Edit] = []
            for block, place in at.items():
                others = [head for head in range(counts[block]) if head != only]
                if others:
                    own.append(Zero(str(place), positions=-1, heads=others))
                stream = streams[block][prompt]
                own.append(Replace(f"layers.{block}.layer_output", stream, positions=-1))
            edits.append(own)
    names = {block: str(Place(ATTENTION_OUTPUT, block)) for block in whole}
    prompts = [list(own) for _ in runs for own in ids]
    reads = dict.fromkeys(names.values(), -1)
    found = model.collect(prompts, reads, edits=edits, batch_size=batch_size)
    shares = {}
    for block, name in names.items():
        rows = found[name]
        assert isinstance(rows, Tensor)
        alone = rows.double().view(len(runs), len(ids), -1)
        shares[block] = _parts(
            alone[: counts[block]], alone[-1], whole[block].double(), block, within
        )
    return shares


def _parts(alone: Tensor, none: Tensor, whole: Tensor, block: int, within: float) -> Tensor:
    """Return the part of ``whole`` that each head has.

    Args:
        alone: What attention adds with each head alone, ``[heads, prompts, hidden]``.
        none: What it adds without heads, ``[prompts, hidden]``.
        whole: What it adds with all.
        block: The block's index, for messages.
        within: The relative difference that is rounding.
    """
    length = whole.norm(dim=-1)
    parts = alone - none
    if not differs(parts.sum(0) + none, whole, length, within):
        return parts
    scaled = not differs(none, torch.zeros_like(none), length, within)
    if scaled:
        factors = [
            _factors(own, target, block, within)
            for own, target in zip(parts.unbind(1), whole, strict=True)
        ]
        parts = parts * torch.stack(factors, 1)[..., None]
        scaled = not differs(parts.sum(0), whole, length, within)
    if not scaled:
        raise Unavailable(
            f"what the attention of block {block} adds is no sum over its heads, nor one that a "
            "norm without biases scales; leave heads out"
        )
    return parts


def _factors(directions: Tensor, whole: Tensor, block: int, within: float) -> Tensor:
    """Return the multiples of ``directions`` that sum to ``whole``, ``[heads]``.

    A norm changes the length of what it is given by one factor for all features, so a head's part
    is a multiple of what the norm makes of that head alone.

    Args:
        directions: ``[heads, hidden]``.
        whole: ``[hidden]``.
        block: The block's index, for messages.
        within: The relative difference that is rounding.
    """
    lengths = directions.norm(dim=-1)
    there = lengths > 0
    unit = directions[there] / lengths[there][:, None]
    spread = torch.linalg.svdvals(unit)
    if not spread[-1] > within * spread[0]:
        raise Unavailable(
            f"block {block} norms what its attention adds, and two of its heads add the same "
            "direction there: their shares cannot be told apart; leave heads out"
        )
    factors = torch.zeros_like(lengths)
    factors[there] = torch.linalg.lstsq(unit.T, whole[:, None]).solution[:, 0] / lengths[there]
    return factors
