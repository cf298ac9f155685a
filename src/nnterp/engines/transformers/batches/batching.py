"""From what the invokes of a trace are given to the one batch that the model runs.

Each is encoded as it would be alone, and what comes of that is padded to one length: on the
side that the tokenizer pads on; on the left for a generation, whose next tokens are drawn at
the right end; and on the right where a family's model takes padding before a token for
something to attend to. On whichever side padding is, a row's tokens have positions from 0.

A family says what its model makes of a batch under four names, each the reason in words, or a
function from the config and the number of tokens to it or None: ``RIGHT_PADDED``, why padding
has to be on the right; ``GENERATES_UNPADDED``, why a generation has to do without; ``ALONE``, why
prompts cannot share a batch at all; and ``NO_CACHE``, why a forward whose gradients are kept does
without a cache.
"""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch
from nnsight.modeling.processing import batch_forward, input_key
from nnsight.modeling.transformers import TransformersModel
from torch import Tensor
from torch._guards import detect_fake_mode

#: What an invoke is given, positionally and by name.
Given = tuple[tuple[Any, ...], dict[str, Any]]

Side = Literal["left", "right"]


@dataclass(frozen=True)
class Padding:
    """What the rows of an invoke are padded with.

    Attributes:
        added: How many tokens.
        width: How many the rows have with them.
        side: On which side of the invoke's own they are.
    """

    added: int
    width: int
    side: Side

    def own(self, count: int, step: int) -> slice | None:
        """The invoke's own among the last ``count`` tokens as of a ``step`` of a generation.

        None where padding lies between them.
        """
        first = self.width + step - count
        if self.side == "left":
            return slice(max(self.added - first, 0), count)
        brought = self.width - self.added
        if not step:
            return slice(0, max(brought - first, 0))
        generated = min(step, count)
        return None if first < brought and generated < count else slice(count - generated, count)


def assemble(
    model: Any, invokes: Sequence[Given], fn: Any, settings: Mapping[str, Any]
) -> tuple[Any, dict[str, Any], list[Padding]]:
    """The arguments for ``fn``, and what the rows of each of ``invokes`` are padded with.

    Args:
        model: A `StandardizedTransformer`.
        invokes: What each is given.
        fn: What runs: a forward, a generation, a pipeline.
        settings: What the trace as a whole is given.

    Raises:
        ValueError: In one batch the model would give these prompts other values than alone.
    """
    name = fn if isinstance(fn, str) else getattr(fn, "__name__", "")
    if name == "generate":
        with torch.no_grad():
            args, kwargs, padding = _tokens_of(model, invokes, fn, settings, generating=True)
    elif name == "pipe":
        # The pipeline encodes and pads for itself.
        args, kwargs = TransformersModel._batch(model, invokes, fn)
        alone = [batch_forward(model, [given])[1] for given in invokes]
        padding = _added(list(map(_width, alone)), _own_side(model))
    else:
        args, kwargs, padding = _tokens_of(model, invokes, fn, settings)
    return args, {**kwargs, **settings}, padding


def _tokens_of(
    model: Any,
    invokes: Sequence[Given],
    fn: Any,
    settings: Mapping[str, Any],
    generating: bool = False,
) -> tuple[Any, dict[str, Any], list[Padding]]:
    """What the model is called with, apart from ``settings``, where it is called on tokens."""
    side: Side = "left" if generating else _own_side(model)
    encodings = _encode(model, invokes, fn, side)
    if encodings is None:
        # Not rows of tokens, which nnsight batches with nothing.
        args, kwargs = TransformersModel._batch(model, invokes, fn)
        return args, kwargs, [Padding(0, 0, side) for _ in invokes]

    tokens = max(map(_width, encodings)) + (settings.get("max_new_tokens") or 0)
    alone = rule(model, "ALONE", tokens)
    if alone is not None and sum(len(_tokens(encoding)) for encoding in encodings) > 1:
        raise ValueError(f"{alone}; trace one prompt at a time")
    right_padded = rule(model, "RIGHT_PADDED", tokens)
    if generating:
        reason = right_padded or rule(model, "GENERATES_UNPADDED", tokens)
        if reason is not None and _padded(encodings):
            raise ValueError(f"{reason}; generate from prompts of several lengths in a trace each")
    elif right_padded is not None:
        side = "right"
        encodings = _encode(model, invokes, fn, side) or encodings
    _give_positions(model, encodings, side)
    padding = _added(list(map(_width, encodings)), side)
    args, kwargs = (), encodings[0]
    if len(encodings) > 1:
        with _padding_on(model.tokenizer, side):
            args, kwargs = TransformersModel._batch(model, [((), e) for e in encodings], fn)
    if torch.is_grad_enabled() and rule(model, "NO_CACHE", tokens) is not None:
        kwargs.setdefault("use_cache", False)
    return args, kwargs, padding


def _own_side(model: Any) -> Side:
    return model.tokenizer.padding_side if model.tokenizer else "right"


def _encode(
    model: Any, invokes: Sequence[Given], fn: Any, side: Side
) -> list[dict[str, Any]] | None:
    """The encoding of each invoke alone, or None where one has no rows of tokens."""
    encodings = []
    with _padding_on(model.tokenizer, side):
        for inputs, by_name in invokes:
            args, encoding = TransformersModel._batch(model, [(inputs, by_name)], fn)
            rows = model._batch_size(*inputs, **by_name)
            if args or input_key(encoding) is None or len(_tokens(encoding)) != rows:
                return None
            given = [by_name, *(data for data in inputs if isinstance(data, Mapping))]
            if not any("position_ids" in names for names in given):
                # nnsight's own, where it has counted some.
                encoding.pop("position_ids", None)
            encodings.append(encoding)
    return encodings or None


@contextlib.contextmanager
def _padding_on(tokenizer: Any, side: Side) -> Iterator[None]:
    """Have ``tokenizer``, if there is one, pad on ``side``."""
    if tokenizer is None:
        yield
        return
    own, tokenizer.padding_side = tokenizer.padding_side, side
    try:
        yield
    finally:
        tokenizer.padding_side = own


def _tokens(encoding: Mapping[str, Any]) -> Tensor:
    return encoding[input_key(encoding)]


def _width(encoding: Mapping[str, Any]) -> int:
    return _tokens(encoding).shape[1]


def _added(widths: Sequence[int], side: Side) -> list[Padding]:
    widest = max(widths, default=0)
    return [Padding(widest - width, widest, side) for width in widths]


def rule(model: Any, name: str, tokens: int) -> str | None:
    """What the family of ``model`` says under ``name`` of a batch of so many tokens a row."""
    said = getattr(model.family, name, None)
    return said(model._config, tokens) if callable(said) else said


def _padded(encodings: Sequence[Mapping[str, Any]]) -> bool:
    """Whether any of the rows is padded, in one batch."""
    masks = [encoding.get("attention_mask") for encoding in encodings]
    own = any(mask is not None and not bool(mask.all()) for mask in masks)
    return own or len(set(map(_width, encodings))) > 1


def _give_positions(model: Any, encodings: Sequence[dict[str, Any]], side: Side) -> None:
    """Give ``encodings`` positions where the model, which counts from a row's start, is wrong."""
    taken = inspect.signature(type(model._module).forward).parameters.values()
    named = any(p.name == "position_ids" or p.kind is p.VAR_KEYWORD for p in taken)
    # A scan has no numbers in its masks.
    if not named or detect_fake_mode() is not None:
        return
    own = [_positions(encoding) for encoding in encodings]
    shifted = side == "left" and len(set(map(_width, encodings))) > 1
    if shifted or any(p is not None and bool((p[:, -1] < p.shape[1] - 1).any()) for p in own):
        for encoding, positions in zip(encodings, own, strict=True):
            if positions is not None:
                encoding.setdefault("position_ids", positions)


def _positions(encoding: Mapping[str, Any]) -> Tensor | None:
    """The position of each token in its row, counted from the first that is no padding."""
    mask = encoding.get("attention_mask")
    if mask is None or mask.shape != _tokens(encoding).shape[:2]:
        # The model itself places tokens that follow a cache.
        return None
    first = mask.long().argmax(-1, keepdim=True)
    return (torch.arange(mask.shape[1], device=mask.device) - first).clamp(min=0)
