"""Lets a model say in words what one of its vectors holds: patchscopes.

A latent taken from a source prompt is put at a placeholder in a target prompt, such as a list of
repeated words that ends with the placeholder. What the model says next is its reading of it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from nnterp.engines.prompts import token_ids
from nnterp.engines.standardized import Prompts, Standardized
from nnterp.interventions.blocks import blocks
from nnterp.records.edits import Replace
from nnterp.records.positions import Positions
from nnterp.records.reads import Read


@dataclass(frozen=True)
class TargetPrompt:
    """A `TargetPrompt` is a prompt in which one token is a placeholder for a latent.

    Attributes:
        prompt: The text, or token ids.
        index_to_patch: The placeholder's position, negative from the end.
    """

    prompt: str | Sequence[int]
    index_to_patch: int = -1


@dataclass(frozen=True, eq=False)
class Patchscope:
    """A `Patchscope` is what a model says of latents.

    Attributes:
        probabilities: Those of the token after the target prompt, ``[prompts, layers, vocab]``, in
            float32 on the CPU.
        texts: What was generated, ``[prompts][layers]``.
        layers: The blocks, counted from the first.
    """

    probabilities: Tensor
    texts: list[list[str]]
    layers: list[int]


def repeat_prompt(
    words: Sequence[str] | None = None, rel: str = " ", sep: str = "\n", placeholder: str = "?"
) -> TargetPrompt:
    """Return a prompt of lines that say a word twice, which ends with a placeholder.

    Args:
        words: The words; three unlike ones by default.
        rel: What is between a word and its repetition.
        sep: What is between two lines.
        placeholder: What the latent is put in place of.
    """
    chosen = ("river", "2048", "thanks") if words is None else words
    lines = [f"{word}{rel}{word}" for word in chosen]
    return TargetPrompt(sep.join([*lines, placeholder]), -1)


def patchscope_lens(
    model: Standardized,
    source_prompts: Prompts | None = None,
    target_prompts: TargetPrompt | Sequence[TargetPrompt] | None = None,
    layers: int | Iterable[int] | None = None,
    latents: Tensor | None = None,
    *,
    positions: Positions = "last",
    target_layer: int | None = None,
    max_tokens: int = 1,
    batch_size: int | None = None,
) -> Patchscope:
    """Put the latent of each source prompt after each block into a target prompt.

    Args:
        model: A model, on either engine.
        source_prompts: The prompts to take latents from.
        target_prompts: The prompt to put them into, or one for each source; `repeat_prompt` by
            default.
        layers: The blocks whose output the latents are; all by default.
        latents: In place of ``source_prompts``, ``[layers, prompts, hidden]``.
        positions: The position of each source prompt to take, as `Read` takes it.
        target_layer: The block after which a latent is put; by default the one it was taken after.
        max_tokens: The number of tokens to generate after each target prompt.
        batch_size: The most prompts at a time.

    Raises:
        Unavailable: The blocks serve no ``layer_output``.
        ValueError: There are both source prompts and latents or neither, the latents have another
            shape, or there are not as many target prompts as sources.
        IndexError: A block or a position does not exist.
    """
    chosen = blocks(model, layers)
    if (source_prompts is None) == (latents is None):
        raise ValueError("latents come from source_prompts or are given as latents=; one of them")
    if latents is None:
        assert source_prompts is not None
        names = [f"layers.{index}.layer_output" for index in chosen]
        found = model.collect(
            source_prompts, dict.fromkeys(names, positions), batch_size=batch_size
        )
        rows: list[Any] = [found[name] for name in names]
        if not all(isinstance(own, Tensor) and own.ndim == 2 for own in rows):
            raise ValueError("a source prompt gives one latent: name one position of each")
        latents = torch.stack(rows)
    if latents.ndim != 3 or len(latents) != len(chosen):
        raise ValueError(
            f"latents are [layers, prompts, hidden], with {len(chosen)} layers, not "
            f"{list(latents.shape)}"
        )
    sources = latents.shape[1]
    targets = repeat_prompt() if target_prompts is None else target_prompts
    each = [targets] * sources if isinstance(targets, TargetPrompt) else list(targets)
    if len(each) != sources:
        raise ValueError(f"there are {len(each)} target prompts for {sources} latents of a block")
    into = chosen if target_layer is None else blocks(model, target_layer) * len(chosen)
    ids = token_ids(model.tokenizer, [target.prompt for target in each])
    edits = [
        [
            Replace(
                f"layers.{block}.layer_output",
                latents[row, source],
                positions=each[source].index_to_patch,
            )
        ]
        for source in range(sources)
        for row, block in enumerate(into)
    ]
    done = model.run(
        [own for own in ids for _ in chosen],
        reads=[Read("logits", steps=0)],
        edits=edits,
        max_tokens=max_tokens,
        batch_size=batch_size,
    )
    probabilities = done["logits"].softmax(-1, dtype=torch.float32)
    count = len(chosen)
    texts = [done.texts[start : start + count] for start in range(0, sources * count, count)]
    return Patchscope(probabilities.view(sources, count, -1), texts, chosen)
