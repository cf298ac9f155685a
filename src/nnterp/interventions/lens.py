"""Reads what the model would say if it stopped after each block: the logit lens.

The residual stream leaving a block has the form that the final norm and the output projection
expect of the last block's. Put through them, it is a distribution over the next token. That of the
last block is the model's own; those of earlier blocks show where in depth the answer comes up.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import nnsight
import torch
from torch import Tensor

from nnterp.collecting.collected import Ragged
from nnterp.engines.prompts import token_ids
from nnterp.engines.standardized import Edits, Prompts, Standardized
from nnterp.interventions.blocks import blocks
from nnterp.interventions.tokens import token_ids_of
from nnterp.records.positions import Length, Positions, of_each

#: The most logits that are computed before they are reduced to what is asked for.
_AT_ONCE = 1 << 25


class Top(NamedTuple):
    """A `Top` is the most probable tokens of a lens, the most probable first.

    Attributes:
        ids: The tokens, in the shape of the lens's probabilities with ``k`` for the vocabulary.
        probabilities: Their probabilities, in the same shape.
        texts: What they say, in lists nested as the axes are.
    """

    ids: Any
    probabilities: Any
    texts: list[Any]


@dataclass(frozen=True, eq=False)
class Lens:
    """A `Lens` is the distribution of the next token after each block.

    Attributes:
        probabilities: ``[prompts, layers, vocab]`` where each prompt has one position, else a list
            with ``[layers, positions, vocab]`` for each prompt; float32, on the CPU. In place of
            ``vocab`` there are the tokens that were asked for, where some were.
        tokens: The ids that the last axis stands for: None for the whole vocabulary, ``[tokens]``
            where tokens were named, and in the shape of `probabilities` where only the most
            probable were asked for.
        layers: The blocks, counted from the first.
        prompts: The token ids of each prompt.
        positions: The positions of each prompt; none where a mean or a function was asked for.
        tokenizer: The model's tokenizer.
    """

    probabilities: Any
    tokens: Any
    layers: list[int]
    prompts: list[list[int]]
    positions: list[list[int]]
    tokenizer: Any = field(repr=False)

    def top(self, k: int = 5) -> Top:
        """Return the ``k`` most probable tokens, of those that the lens has.

        Raises:
            ValueError: It does not have so many.
        """
        single = isinstance(self.probabilities, Tensor)
        parts = [self.probabilities] if single else self.probabilities
        width = parts[0].shape[-1]
        if not 1 <= k <= width:
            raise ValueError(f"this lens has {width} tokens of each position, so k is 1 to {width}")
        found = []
        for index, part in enumerate(parts):
            probabilities, columns = part.topk(k, dim=-1)
            if self.tokens is None:
                ids = columns
            elif isinstance(self.tokens, Tensor) and self.tokens.ndim == 1:
                ids = self.tokens[columns]
            else:
                own = self.tokens if single else self.tokens[index]
                ids = own.gather(-1, columns)
            found.append(Top(ids, probabilities, self._texts(ids.tolist())))
        if single:
            return found[0]
        return Top(
            [top.ids for top in found],
            [top.probabilities for top in found],
            [top.texts for top in found],
        )

    def _texts(self, ids: Any) -> Any:
        """Return the text of each id, in lists nested as ``ids`` is."""
        return (
            [self._texts(i) for i in ids] if isinstance(ids, list) else self.tokenizer.decode(ids)
        )


def logit_lens(
    model: Standardized,
    prompts: Prompts,
    positions: Positions = "last",
    *,
    layers: int | Iterable[int] | None = None,
    tokens: Sequence[int | str] | Tensor | None = None,
    top: int | None = None,
    edits: Edits = (),
    batch_size: int | None = None,
) -> Lens:
    """Return the distribution of the next token after each block.

    Each block's output goes through the model's own final norm, output projection, soft cap and
    scale. Logits are reduced as they are computed, so with ``tokens`` or ``top`` every position of
    long prompts fits in memory.

    Args:
        model: A model, on either engine.
        prompts: Texts, token ids, chats, or the output of a tokenizer.
        positions: The positions, as `Read` takes them; a function returns ``[hidden]``.
        layers: The blocks, in order, negative from the last; all by default.
        tokens: The tokens whose probabilities to keep, as ids or as texts of one token each; all
            by default.
        top: The number of most probable tokens to keep at each position.
        edits: What is changed in the forward, as `run` takes it.
        batch_size: The most prompts at a time.

    Returns:
        The probabilities, among the whole vocabulary whatever is kept of them.

    Raises:
        Unavailable: The blocks serve no ``layer_output``.
        ValueError: Positions, tokens or ``top`` are not valid, or the engine was loaded with
            ``edits=`` or ``reads=`` and so serves no traces.
        IndexError: A block, a position or a token does not exist.
    """
    ids = token_ids(model.tokenizer, prompts)
    chosen = blocks(model, layers)
    if tokens is not None and top is not None:
        raise ValueError("tokens are named, or the top ones asked for; not both")
    if top is not None and not 1 <= top <= model.vocab_size:
        raise ValueError(f"top is a number of tokens, 1 to {model.vocab_size}, not {top}")
    named = None
    if tokens is not None:
        named = torch.tensor(token_ids_of(model.tokenizer, tokens, model.vocab_size))
    names = [f"layers.{index}.layer_output" for index in chosen]
    found = model.collect(ids, dict.fromkeys(names, positions), edits=edits, batch_size=batch_size)
    streams = [found[name] for name in names]
    first = streams[0]
    rows = [stream.rows if isinstance(stream, Ragged) else stream for stream in streams]
    if rows[0].numel() and rows[0].ndim != 2:
        raise ValueError(
            f"a function of positions returns [hidden] here, not {list(rows[0].shape[1:])}"
        )
    width = top or (len(named) if named is not None else model.vocab_size)
    count = len(rows[0])
    probabilities = torch.empty(len(names), 0, width)
    columns = torch.empty(len(names), 0, width, dtype=torch.long)
    if count:
        flat, picked = _projected(model, ids[0][:1], torch.cat(rows), named, top)
        probabilities = flat.view(len(names), count, width)
        columns = columns if picked is None else picked.view(len(names), count, width)

    def of_prompts(flat: Tensor) -> Any:
        """Return ``flat``, ``[layers, rows, width]``, for each prompt."""
        if not isinstance(first, Ragged):
            return flat.transpose(0, 1)
        return list(flat.split(first.offsets.diff().tolist(), dim=1))

    kept = named if top is None else of_prompts(columns)
    at = _positions(positions, ids)
    return Lens(of_prompts(probabilities), kept, chosen, ids, at, model.tokenizer)


def _projected(
    model: Standardized, prompt: list[int], rows: Tensor, named: Tensor | None, top: int | None
) -> tuple[Tensor, Tensor | None]:
    """Return the probabilities that rows of the stream stand for, and the ids of the top ones.

    They are computed in one trace, whose prompt does not matter, a part of the rows at a time.

    Args:
        model: The model.
        prompt: Token ids.
        rows: ``[rows, hidden]``.
        named: The ids to keep, ``[tokens]``.
        top: The number of most probable tokens to keep.

    Returns:
        ``[rows, kept]``, and the ids in the same shape where ``top`` is given.
    """
    at_once = max(1, _AT_ONCE // model.vocab_size)
    last = model.num_layers - 1
    with torch.no_grad(), model.trace([prompt]) as tracer:
        like = model.layers[last].layer_output
        kept, ids = [], []
        for part in rows.split(at_once):
            logits = model.project_on_vocab(part.to(like.device, like.dtype))
            probabilities = logits.softmax(-1, dtype=torch.float32)
            highest = torch.empty(len(part), 0)
            if named is not None:
                probabilities = probabilities[:, named.to(probabilities.device)]
            elif top is not None:
                probabilities, highest = probabilities.topk(top, dim=-1)
            ids.append(highest.cpu())
            kept.append(probabilities.cpu())
        flat = nnsight.save(torch.cat(kept))
        picked = nnsight.save(torch.cat(ids))
        tracer.stop()
    return flat, None if top is None else picked


def _positions(positions: Positions, ids: Sequence[Sequence[int]]) -> list[list[int]]:
    """Return the positions of each prompt that ``positions`` mean, or none for a mean."""
    if callable(positions) or positions == "mean":
        return [[] for _ in ids]
    lengths = [Length(len(own), len(own)) for own in ids]
    return [
        [at for start, stop in ranges for at in range(start, min(stop, length.run))]
        for ranges, length in zip(of_each(positions, lengths), lengths, strict=True)
    ]
