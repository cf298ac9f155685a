"""Assembles what the invokes of a trace are given into the one batch that the model runs.

Each invoke is encoded as it would be alone, and the results are padded to one length: on the side
that the tokenizer pads on; on the left for a generation, whose next tokens are appended at the
right end; and on the right where a family's model attends to padding before a token. On whichever
side padding is, a row's tokens have positions from 0.

A family says how its model deals with a batch under five names. Each is a reason as text, or a
function that takes the config and the number of tokens and returns a reason or None:
``RIGHT_PADDED``, why padding has to be on the right; ``GENERATES_UNPADDED``, why a generation
cannot have padding; ``GENERATES_ALONE``, why prompts cannot share a generation; ``ALONE``, why
they cannot share a batch at all; and ``NO_CACHE``, why a forward whose gradients are kept runs
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

#: The arguments that an invoke is given, positionally and by name.
Given = tuple[tuple[Any, ...], dict[str, Any]]

Side = Literal["left", "right"]


@dataclass(frozen=True)
class Padding:
    """`Padding` says with how many tokens, and on which side, the rows of an invoke are padded.

    Attributes:
        added: The number of padding tokens that were added.
        width: The number of tokens in the rows with them.
        side: On which side of the invoke's own tokens they are.
    """

    added: int
    width: int
    side: Side

    def own(self, count: int, step: int) -> slice | None:
        """Return the invoke's own tokens among the last ``count`` as of a ``step`` of a generation.

        It is None where padding lies between them.
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
    """Return the arguments for ``fn``, and the padding of each invoke's rows.

    Args:
        model: A `StandardizedTransformer`.
        invokes: What each invoke is given.
        fn: What runs: a forward, a generation, a pipeline.
        settings: What the trace as a whole is given.

    Returns:
        The positional and the keyword arguments of ``fn``, and the padding of each invoke.

    Raises:
        ValueError: In one batch the model would compute other values for these prompts than alone.
    """
    name = fn if isinstance(fn, str) else getattr(fn, "__name__", "")
    if name == "generate":
        with torch.no_grad():
            args, kwargs, padding = _tokens_of(model, invokes, fn, settings, generating=True)
    elif name == "pipe":
        # The pipeline encodes and pads by itself.
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
    """Return the arguments, without ``settings``, and the padding, for a call on tokens."""
    side: Side = "left" if generating else _own_side(model)
    encodings = _encode(model, invokes, fn, side)
    if encodings is None:
        # The input is not rows of tokens, and nnsight does not batch it with anything.
        args, kwargs = TransformersModel._batch(model, invokes, fn)
        return args, kwargs, [Padding(0, 0, side) for _ in invokes]

    tokens = max(map(_width, encodings)) + (settings.get("max_new_tokens") or 0)
    alone = why_alone(model, tokens, generating)
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
    """Return the side on which the model's tokenizer pads."""
    return model.tokenizer.padding_side if model.tokenizer else "right"


def _encode(
    model: Any, invokes: Sequence[Given], fn: Any, side: Side
) -> list[dict[str, Any]] | None:
    """Return the encoding of each invoke alone, or None where one has no rows of tokens."""
    encodings = []
    with _padding_on(model.tokenizer, side):
        for inputs, by_name in invokes:
            args, encoding = TransformersModel._batch(model, [(inputs, by_name)], fn)
            rows = model._batch_size(*inputs, **by_name)
            if args or input_key(encoding) is None or len(_tokens(encoding)) != rows:
                return None
            given = [by_name, *(data for data in inputs if isinstance(data, Mapping))]
            if not any("position_ids" in names for names in given):
                # These are positions that nnsight counted, not the caller's.
                encoding.pop("position_ids", None)
            encodings.append(encoding)
    return encodings or None


@contextlib.contextmanager
def _padding_on(tokenizer: Any, side: Side) -> Iterator[None]:
    """Make ``tokenizer``, if there is one, pad on ``side`` in this context."""
    if tokenizer is None:
        yield
        return
    own, tokenizer.padding_side = tokenizer.padding_side, side
    try:
        yield
    finally:
        tokenizer.padding_side = own


def _tokens(encoding: Mapping[str, Any]) -> Tensor:
    """Return the token ids of an encoding, ``[rows, tokens]``."""
    return encoding[input_key(encoding)]


def _width(encoding: Mapping[str, Any]) -> int:
    """Return the number of tokens in each row of an encoding."""
    return _tokens(encoding).shape[1]


def _added(widths: Sequence[int], side: Side) -> list[Padding]:
    """Return the padding of each invoke that brings its rows to the widest of ``widths``."""
    widest = max(widths, default=0)
    return [Padding(widest - width, widest, side) for width in widths]


def rule(model: Any, name: str, tokens: int) -> str | None:
    """Return a family's reason under ``name`` for a batch of ``tokens`` a row, or None.

    Args:
        model: A `StandardizedTransformer`.
        name: One of the five names that the module's docstring describes.
        tokens: The number of tokens in a row of the batch.
    """
    said = getattr(model.family, name, None)
    return said(model._config, tokens) if callable(said) else said


def why_alone(model: Any, tokens: int, generating: bool) -> str | None:
    """Return why prompts cannot share a batch of ``tokens`` a row, or None where they can.

    Args:
        model: A `StandardizedTransformer`.
        tokens: The number of tokens in a row of the batch, with those to be generated.
        generating: Whether tokens are generated.
    """
    alone = rule(model, "GENERATES_ALONE", tokens) if generating else None
    return alone or rule(model, "ALONE", tokens)


def _padded(encodings: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether any of the rows is padded when they form one batch."""
    masks = [encoding.get("attention_mask") for encoding in encodings]
    own = any(mask is not None and not bool(mask.all()) for mask in masks)
    return own or len(set(map(_width, encodings))) > 1


def _give_positions(model: Any, encodings: Sequence[dict[str, Any]], side: Side) -> None:
    """Add ``position_ids`` to ``encodings`` where the model, counting from row starts, is wrong."""
    taken = inspect.signature(type(model._module).forward).parameters.values()
    named = any(p.name == "position_ids" or p.kind is p.VAR_KEYWORD for p in taken)
    # A scan runs on fake tensors, whose masks have no values.
    if not named or detect_fake_mode() is not None:
        return
    own = [_positions(encoding) for encoding in encodings]
    shifted = side == "left" and len(set(map(_width, encodings))) > 1
    if shifted or any(p is not None and bool((p[:, -1] < p.shape[1] - 1).any()) for p in own):
        for encoding, positions in zip(encodings, own, strict=True):
            if positions is not None:
                encoding.setdefault("position_ids", positions)


def _positions(encoding: Mapping[str, Any]) -> Tensor | None:
    """Return the position of each token, counted from its row's first that is not padding.

    It is ``[rows, tokens]``, or None without a mask of that shape.
    """
    mask = encoding.get("attention_mask")
    if mask is None or mask.shape != _tokens(encoding).shape[:2]:
        # The model itself computes the positions of tokens that follow a cache.
        return None
    first = mask.long().argmax(-1, keepdim=True)
    return (torch.arange(mask.shape[1], device=mask.device) - first).clamp(min=0)
