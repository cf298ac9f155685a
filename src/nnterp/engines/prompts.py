"""Turns what a caller may give for a prompt into token ids.

A prompt is a text, token ids, a chat, or a tokenizer's output, whose attention mask, where texts
were padded to one length, says which ids count.

A chat is a list of messages, ``[{"role": "user", "content": "Hello"}]``. It stands for what the
tokenizer's own chat template makes of it, as in transformers' pipelines: up to where the
assistant would begin, or, where the last message is the assistant's, up to that message's end.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any


def token_ids(tokenizer: Callable[..., Any], prompts: Iterable[Any]) -> list[list[int]]:
    """Return the token ids of each of ``prompts``.

    Args:
        tokenizer: Encodes texts and chats.
        prompts: A text, ids, a chat, or a tokenizer's output for each prompt; or one tokenizer's
            output for all.

    Raises:
        ValueError: There is no prompt, one is empty, or a chat has no template.
        TypeError: One is none of these, or they are one prompt and not a list of them.
    """
    if isinstance(prompts, str):
        raise TypeError(f"prompts are a list of texts, not one: write [{prompts!r}]")
    if is_chat(prompts):
        raise TypeError("prompts are a list of chats, and this is one: write [messages]")
    if isinstance(prompts, Mapping):
        given = _rows(prompts)
    else:
        given = [_row(tokenizer, prompt) for prompt in prompts]
    if not given:
        raise ValueError("there are no prompts to collect from")
    if isinstance(given[0], int):
        raise TypeError(f"prompts are a list of ids for each, not for one: write [{given!r}]")
    texts = [one for one in given if isinstance(one, str)]
    encoded = iter(tokenizer(texts)["input_ids"] if texts else ())
    ids = [next(encoded) if isinstance(one, str) else one for one in given]
    for index, prompt in enumerate(ids):
        if not _is_ids(prompt):
            raise TypeError(f"prompt {index} is neither a text nor token ids: {prompt!r}")
        if not prompt:
            raise ValueError(f"prompt {index} holds no tokens")
    return ids


def texts_or_ids(tokenizer: Any, given: Any) -> Sequence[str | list[int]]:
    """Return the prompts in ``given``, which is one prompt or several: a text or ids for each.

    Args:
        tokenizer: Encodes chats.
        given: A text, ids, a chat, a tokenizer's output, or several of them in a list.

    Raises:
        ValueError: One is empty, or a chat has no template.
        TypeError: It is none of these.
    """
    rows: list[Any]
    if isinstance(given, Mapping):
        rows = _rows(given)
    else:
        row = _row(tokenizer, given)
        several = isinstance(row, list) and row and not isinstance(row[0], int)
        rows = [_row(tokenizer, one) for one in row] if several else [row]
    for row in rows:
        if not isinstance(row, str) and not _is_ids(row):
            raise TypeError(f"a prompt is a text, token ids or a chat, and this is none: {row!r}")
        if not row:
            raise ValueError("the prompt holds no tokens")
    return rows


def is_chat(given: Any) -> bool:
    """Return whether ``given`` is a list of messages."""
    return (
        isinstance(given, (list, tuple))
        and bool(given)
        and all(isinstance(one, Mapping) and {"role", "content"} <= one.keys() for one in given)
    )


def holds_chats(given: Any) -> bool:
    """Return whether ``given`` is a chat, or a list that begins with one."""
    return is_chat(given) or (isinstance(given, (list, tuple)) and is_chat(next(iter(given), None)))


def require_template(tokenizer: Any) -> None:
    """Refuse to make a prompt of a chat if ``tokenizer`` has no chat template.

    Raises:
        ValueError: It has none.
    """
    # A tokenizer that is not from transformers encodes chats in its own way.
    if getattr(tokenizer, "chat_template", "") is None:
        raise ValueError(
            "a chat becomes a prompt by the tokenizer's chat template, and this checkpoint's has "
            "none: set model.tokenizer.chat_template, write the prompt as a text, or use the "
            "checkpoint that was tuned to chat"
        )


def _chat_ids(tokenizer: Any, messages: Sequence[Mapping[str, Any]]) -> list[int]:
    """Return the token ids of a chat."""
    require_template(tokenizer)
    for message in messages:
        parts = message["content"] if isinstance(message["content"], list) else []
        others = {part.get("type") for part in parts} - {"text"}
        if others:
            raise ValueError(f"a chat is of text alone here, and a message has {others}")
    continues = messages[-1]["role"] == "assistant"
    # The template gives ids, because encoding its text would add a beginning-of-sequence token
    # once more.
    encoded = tokenizer.apply_chat_template(
        list(messages), add_generation_prompt=not continues, continue_final_message=continues
    )
    return encoded["input_ids"] if isinstance(encoded, Mapping) else encoded


def _row(tokenizer: Any, prompt: Any) -> Any:
    """Return one prompt as a text or a list of ids, taken out of a batch of one if it is in one."""
    if is_chat(prompt):
        return _chat_ids(tokenizer, prompt)
    given = _rows(prompt) if isinstance(prompt, Mapping) else _listed(prompt)
    one_of_a_batch = isinstance(given, list) and len(given) == 1 and isinstance(given[0], list)
    return _row(tokenizer, given[0]) if one_of_a_batch else given


def _rows(tokenized: Mapping[str, Any]) -> list[list[int]]:
    """Return the ids of each text in a tokenizer's output, without padding."""
    if "input_ids" not in tokenized:
        raise TypeError(f"a tokenizer's output holds input_ids, and this {', '.join(tokenized)}")
    ids, mask = _listed(tokenized["input_ids"]), _listed(tokenized.get("attention_mask"))
    if ids and isinstance(ids[0], int):
        ids, mask = [ids], mask and [mask]
    if not mask:
        return ids
    if [len(row) for row in mask] != [len(row) for row in ids]:
        raise ValueError("the attention_mask is not of the shape of the input_ids it came with")
    return [
        [token for token, counts in zip(row, kept, strict=True) if counts]
        for row, kept in zip(ids, mask, strict=True)
    ]


def _is_ids(given: Any) -> bool:
    return isinstance(given, list) and all(isinstance(token, int) for token in given)


def _listed(given: Any) -> Any:
    """Return ``given`` as lists, if it is a tensor, an array or another sequence of ids."""
    if hasattr(given, "tolist"):
        return given.tolist()
    return list(given) if isinstance(given, Sequence) and not isinstance(given, str) else given
