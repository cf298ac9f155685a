"""Shares a logit out among what computed it: direct logit attribution.

The stream that the logits are read off is a sum: what entered the first block, and what every
attention and MLP added. The final norm divides it by a number and is otherwise linear, and so is
the output projection. With that number held at what it is, each addend has a share of the logit.
It counts what the addend says of the token itself, and nothing of what later blocks make of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import nnsight
import torch
from torch import Tensor

from nnterp.engines.prompts import token_ids
from nnterp.engines.standardized import Prompts, Standardized
from nnterp.errors import Unavailable
from nnterp.interventions.frozen_norm import FrozenNorm, differs, probes, tolerance
from nnterp.interventions.head_shares import head_shares
from nnterp.interventions.tokens import contrasts
from nnterp.vocabulary.names import Place
from nnterp.vocabulary.values import ATTENTION_HEAD_OUTPUTS, ATTENTION_OUTPUT, MLP_OUTPUT

#: The most logits that are computed before those of the tokens are taken.
_AT_ONCE = 1 << 25


@dataclass(frozen=True, eq=False)
class Attribution:
    """An `Attribution` is the shares that a model's parts have in a logit.

    They are float32, on the CPU. `logits` is the sum of `embedding`, `attention`, `mlp` and
    `bias`.

    Attributes:
        logits: ``[prompts]``: the logit at the last position before any soft cap, or the
            difference of two.
        embedding: That of what enters the first block, ``[prompts]``: the token's embedding, and
            where the model adds one the position's.
        attention: That of each block's attention, or recurrent mixer, ``[prompts, layers]``; 0
            where a block has none.
        mlp: That of each block's MLP, in the same way.
        bias: That of the biases of the final norm and of the output projection, ``[prompts]``.
        heads: ``[prompts, layers, heads]``, where heads were asked for: that of what each head puts
            out at the last position. A block's heads sum to its ``attention`` but for what is
            beside them, such as a bias of its output projection or a recurrent mixer; 0 where it
            has no such head.
        tokens: The ids of the tokens, ``[prompts, 1]`` or ``[prompts, 2]``.
        prompts: The token ids of each prompt.
    """

    logits: Tensor
    embedding: Tensor
    attention: Tensor
    mlp: Tensor
    bias: Tensor
    heads: Tensor | None
    tokens: Tensor
    prompts: list[list[int]]


def logit_attribution(
    model: Standardized,
    prompts: Prompts,
    tokens: Sequence[int | str] | Sequence[Sequence[int | str]] | Tensor,
    *,
    heads: bool = False,
    batch_size: int | None = None,
) -> Attribution:
    """Return the share of each part of the model in the logits of tokens at the last position.

    What each part adds to the stream goes through the final norm, with its scale held at that of
    the whole stream, and through the output projection::

        found = logit_attribution(model, ["The Eiffel Tower is in"], [" Paris", " Rome"])
        found.attention, found.mlp  # [prompts, layers]

    A part that a norm of its own follows, as in families with post norms, has the share of what
    that norm adds to the stream; the shares of heads have the scale of that norm held as well.

    Args:
        model: A model, on either engine.
        prompts: Texts, token ids, chats, or the output of a tokenizer.
        tokens: The token whose logit is shared out, ``[right]``, or two whose difference is,
            ``[right, wrong]``; ids or texts of one token each. Or for each prompt such a list.
        heads: Whether to share out what each head adds. It takes as many runs more as a block has
            heads, and one.
        batch_size: The most prompts at a time.

    Returns:
        The shares. In half precision they sum to the logit as nearly as the model's own numbers do.

    Raises:
        Unavailable: A value is not served here, what the parts add does not sum to the stream, or
            what precedes the output projection is no norm with a gain for each feature.
        ValueError: There are not one or two tokens, or not for every prompt as many, or the engine
            was loaded with ``edits=`` or ``reads=`` and so serves no traces.
        IndexError: A token does not exist.
    """
    _require_sums(model)
    ids = token_ids(model.tokenizer, prompts)
    wanted = contrasts(model.tokenizer, tokens, len(ids), model.vocab_size)
    last = model.num_layers - 1
    blocks = range(model.num_layers)
    parts = [
        Place(value, block)
        for value in (ATTENTION_OUTPUT, MLP_OUTPUT)
        for block in blocks
        if model.host_of(value, block) is not None
    ]
    headed = _headed(model) if heads else []
    names = [
        "layers.0.layer_input",
        *(str(place) for place in parts),
        *(f"layers.{block}.layer_output" for block in sorted({last, *headed})),
    ]
    found = model.collect(ids, dict.fromkeys(names, "last"), batch_size=batch_size)
    rows = {name: row for name, row in found.items() if isinstance(row, Tensor)}
    leaving = rows[f"layers.{last}.layer_output"]
    within = tolerance(leaving.dtype)
    added = torch.stack([rows[name] for name in names[: 1 + len(parts)]]).double()
    stream = leaving.double()
    if differs(added.sum(0), stream, added.norm(dim=-1).amax(0), within):
        raise Unavailable(
            "what the blocks add does not sum to the stream that leaves the last of them, so a "
            "logit has no shares here; logit_lens and activation_patching do without the sum"
        )
    probed, normed = _normed(model, ids[0][:1], leaving)
    frozen = FrozenNorm.at(stream, normed.double(), probed.double(), within)
    read = _Read(model, ids[0][:1], wanted)
    ends = torch.stack([torch.zeros_like(frozen.bias), frozen.bias])[:, None]
    total, nothing, bias = read.logits(
        torch.cat([normed.double()[None], ends.expand(2, *stream.shape)])
    )
    shares = read.logits(frozen.of(added)) - nothing

    attention, mlp = torch.zeros(2, len(ids), model.num_layers)
    for place, share in zip(parts, shares[1:], strict=True):
        (attention if place.value is ATTENTION_OUTPUT else mlp)[:, place.layer] = share.float()
    by_head = None
    if headed:
        own = head_shares(
            model,
            ids,
            {block: rows[str(Place(ATTENTION_OUTPUT, block))] for block in headed},
            {block: rows[f"layers.{block}.layer_output"] for block in headed},
            within,
            batch_size,
        )
        flat = read.logits(frozen.of(torch.cat(list(own.values())))) - nothing
        counts = {block: len(part) for block, part in own.items()}
        by_head = _of_blocks(flat, counts, model.num_layers)
    return Attribution(
        total.float(),
        shares[0].float(),
        attention,
        mlp,
        bias.float(),
        by_head,
        wanted,
        ids,
    )


def _require_sums(model: Standardized) -> None:
    """Refuse a model that rescales the stream or passes on several."""
    unlike = [index for index, block in enumerate(model.layers) if not block.is_residual_sum]
    if unlike:
        raise Unavailable(
            f"block {unlike[0]} does not pass on the sum of what enters it and what its parts add "
            "(block.is_residual_sum), so a logit has no shares; logit_lens and activation_patching "
            "do without the sum"
        )


def _headed(model: Standardized) -> list[int]:
    """Return the blocks that serve what their heads put out.

    Raises:
        Unavailable: None does.
    """
    served = model.support()[ATTENTION_HEAD_OUTPUTS.name]
    if not served.blocks:
        raise Unavailable(
            f"no block serves {ATTENTION_HEAD_OUTPUTS.name}: {next(iter(served.reasons.values()))}"
        )
    return list(served.blocks)


def _of_blocks(flat: Tensor, counts: Mapping[int, int], layers: int) -> Tensor:
    """Return shares of heads by block, ``[prompts, layers, heads]``, 0 where there is no head.

    Args:
        flat: ``[heads of all blocks, prompts]``.
        counts: The number of heads of each block that has some.
        layers: The number of blocks.
    """
    shares = torch.zeros(flat.shape[1], layers, max(counts.values()))
    for block, own in zip(counts, flat.split(list(counts.values())), strict=True):
        shares[:, block, : len(own)] = own.T
    return shares


def _normed(model: Standardized, prompt: list[int], rows: Tensor) -> tuple[Tensor, Tensor]:
    """Return what the final norm makes of `probes`, ``[3, hidden]``, and of ``rows``.

    Args:
        model: The model.
        prompt: Token ids, which do not matter.
        rows: ``[rows, hidden]``.
    """
    given = torch.cat([probes(rows.shape[1]).to(rows.dtype), rows])
    last = model.num_layers - 1
    with torch.no_grad(), model.trace([prompt]) as tracer:
        like = model.layers[last].layer_output
        normed = nnsight.save(model.apply_final_norm(given.to(like.device, like.dtype)).cpu())
        tracer.stop()
    return normed[:3], normed[3:]


@dataclass(frozen=True)
class _Read:
    """A `_Read` takes the logits of tokens off rows that are past the final norm.

    Attributes:
        model: The model.
        prompt: Token ids, which do not matter.
        tokens: ``[prompts, 1]``, or ``[prompts, 2]`` for the difference of two.
    """

    model: Standardized
    prompt: list[int]
    tokens: Tensor

    def logits(self, rows: Tensor) -> Tensor:
        """Return the logits of ``[addends, prompts, hidden]``: ``[addends, prompts]``, float64."""
        model, prompt = self.model, self.prompt
        last = model.num_layers - 1
        flat = rows.flatten(0, 1).float()
        columns = self.tokens.repeat(len(rows), 1)
        at_once = max(1, _AT_ONCE // model.vocab_size)
        with torch.no_grad(), model.trace([prompt]) as tracer:
            like = model.layers[last].layer_output
            kept = []
            for part, own in zip(flat.split(at_once), columns.split(at_once), strict=True):
                logits = model.unembed(part.to(like.device, like.dtype))
                kept.append(logits.gather(-1, own.to(logits.device)).cpu())
            found = nnsight.save(torch.cat(kept))
            tracer.stop()
        right, *wrong = found.double().unbind(-1)
        return (right - wrong[0] if wrong else right).view(rows.shape[:2])
