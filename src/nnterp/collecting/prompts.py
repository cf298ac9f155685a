"""What a caller of `collect` may give for prompts, as the token ids of each.

Texts, token ids, or what a tokenizer made of texts: the ids of all and, where they were
padded to one length, a mask of those that count.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def token_ids(tokenizer: Callable[..., Any], prompts: Iterable[Any]) -> list[list[int]]:
    """The token ids of each of ``prompts``.

    Args:
        tokenizer: What encodes texts.
        prompts: A text, ids, or a tokenizer's output for each; or its output for all.

    Raises:
        ValueError: There is none, or one is empty.
        TypeError: One is none of these, or they are one prompt, not a list of them.
    """
    if isinstance(prompts, str):
        raise TypeError(f"prompts are a list of texts, not one: write [{prompts!r}]")
    given = _rows(prompts) if isinstance(prompts, Mapping) else [_row(one) for one in prompts]
    if not given:
        raise ValueError("there are no prompts to collect from")
    if isinstance(given[0], int):
        raise TypeError(f"prompts are a list of ids for each, not for one: write [{given!r}]")
    texts = [one for one in given if isinstance(one, str)]
    encoded = iter(tokenizer(texts)["input_ids"] if texts else ())
    ids = [next(encoded) if isinstance(one, str) else one for one in given]
    for index, prompt in enumerate(ids):
        if not isinstance(prompt, list) or not all(isinstance(token, int) for token in prompt):
            raise TypeError(f"prompt {index} is neither a text nor token ids: {prompt!r}")
        if not prompt:
            raise ValueError(f"prompt {index} holds no tokens")
    return ids


def _row(prompt: Any) -> Any:
    """One prompt: a text, or its ids as a list, out of a batch of one if they are in one."""
    given = _rows(prompt) if isinstance(prompt, Mapping) else _listed(prompt)
    one_of_a_batch = isinstance(given, list) and len(given) == 1 and isinstance(given[0], list)
    return given[0] if one_of_a_batch else given


def _rows(tokenized: Mapping[str, Any]) -> list[list[int]]:
    """The ids of each text in a tokenizer's output, without those that pad."""
    if "input_ids" not in tokenized:
        raise TypeError(f"a tokenizer's output holds input_ids, and this {', '.join(tokenized)}")
    ids, mask = _listed(tokenized["input_ids"]), _listed(tokenized.get("attention_mask"))
    if ids and isinstance(ids[0], int):
        ids, mask = [ids], mask and [mask]
    if not mask:
        return ids
    return [
        [token for token, counts in zip(row, kept, strict=True) if counts]
        for row, kept in zip(ids, mask, strict=True)
    ]


def _listed(given: Any) -> Any:
    """``given``, as lists where it is a tensor, an array or some other sequence of ids."""
    if hasattr(given, "tolist"):
        return given.tolist()
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else given
