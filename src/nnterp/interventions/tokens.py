"""Turns what a caller may give for tokens into their ids."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor


def token_id(tokenizer: Any, given: int | str) -> int:
    """Return the id of a token, given as its id or as its text.

    Args:
        tokenizer: Encodes the text.
        given: An id, or a text that is one token, such as ``" Paris"``.

    Raises:
        ValueError: The text is no token or several.
        TypeError: It is neither.
    """
    if isinstance(given, bool) or not isinstance(given, int | str):
        raise TypeError(f"a token is an id or a text, not {given!r}")
    if isinstance(given, int):
        return given
    ids = tokenizer(given, add_special_tokens=False)["input_ids"]
    if len(ids) != 1:
        raise ValueError(
            f"{given!r} is {len(ids)} tokens, {ids}, where one is meant: choose a text that is one "
            "(words mostly begin with a space), or give the id"
        )
    return ids[0]


def token_ids_of(tokenizer: Any, given: Iterable[int | str], vocab_size: int) -> list[int]:
    """Return the ids of several tokens.

    Args:
        tokenizer: Encodes the texts.
        given: Ids or texts.
        vocab_size: The width of the logits.

    Raises:
        ValueError: There are none, or a text is no token or several.
        IndexError: The logits have no such id.
        TypeError: One is neither an id nor a text, or they are one text and not a list.
    """
    if isinstance(given, str):
        raise TypeError(f"tokens are a list, not one: write [{given!r}]")
    listed = given.tolist() if hasattr(given, "tolist") else list(given)
    ids = [token_id(tokenizer, one) for one in listed]
    if not ids:
        raise ValueError("no token is asked for; leave tokens out for the whole vocabulary")
    for one in ids:
        if not 0 <= one < vocab_size:
            raise IndexError(f"there is no token {one}: the vocabulary has {vocab_size}")
    return ids


def contrasts(tokenizer: Any, given: Any, prompts: int, vocab_size: int) -> Tensor:
    """Return the token of each prompt, or the right and the wrong one.

    Args:
        tokenizer: Encodes the texts.
        given: One or two ids or texts, for all prompts; or for each prompt a list of them.
        prompts: The number of prompts.
        vocab_size: The width of the logits.

    Returns:
        ``[prompts, 1]`` or ``[prompts, 2]``.

    Raises:
        ValueError: There are not one or two, not as many for each prompt, not as many lists as
            prompts, or a text is no token or several.
        IndexError: The logits have no such id.
        TypeError: One is neither an id nor a text, or they are one text and not a list.
    """
    listed = given.tolist() if hasattr(given, "tolist") else given
    nested = not isinstance(listed, str) and any(not isinstance(one, int | str) for one in listed)
    each = list(listed) if nested else [listed] * prompts
    if len(each) != prompts:
        raise ValueError(f"there are tokens for {len(each)} prompts, and {prompts} prompts")
    ids = [token_ids_of(tokenizer, own, vocab_size) for own in each]
    counts = {len(own) for own in ids}
    if len(counts) > 1 or not counts <= {1, 2}:
        raise ValueError(
            f"tokens are one, or the right and the wrong one, for every prompt as many; here are "
            f"{' and '.join(map(str, sorted(counts)))}"
        )
    return torch.tensor(ids)
