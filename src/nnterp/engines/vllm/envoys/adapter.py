"""Hands a request's rows to its block as private copies.

vLLM runs every request of a step in one tensor: ``[tokens, hidden]``, or ``[1, tokens, hidden]``
under its Transformers backend, with the heads of queries, keys and values flattened into the last
axis, ``[tokens, heads * head_dim]``. A block may have its own request's rows only. `PrivateRows`
copies them out, in the layout of the standard value, so that nothing a later kernel writes changes
what was read.
"""

from __future__ import annotations

import contextlib
from typing import Any

from nnsight.intervention.interleaver import Mediator
from torch import Tensor

from nnterp.errors import Unavailable
from nnterp.lifetime import copied, outside_inference_mode
from nnterp.sites.base import Site
from nnterp.tracing.engine_adapter import EngineAdapter
from nnterp.tracing.envoy import StandardEnvoy
from nnterp.tracing.swap import Swap
from nnterp.vocabulary.values import Engine, Value

#: The attribute of an attention envoy that counts the heads of an axis, by the axis's name.
HEAD_COUNTS = {"heads": "num_heads", "kv_heads": "num_kv_heads"}


class StepContent:
    """Holds what arrived at a location for a whole step, together with the block it is served to.

    Attributes:
        content: What arrived, with every request's rows.
        block: The mediator of the request that it is served to.
    """

    __slots__ = ("block", "content")

    def __init__(self, content: Any, block: Any) -> None:
        self.content = content
        self.block = block

    def own(self) -> Any:
        """Return the part of the content that belongs to the block's request."""
        batcher = self.block.interleaver.batcher
        return batcher.narrow(self.content, self.block.batch_group)

    def piece(self, site: Site, value: Value, host: StandardEnvoy) -> Tensor | None:
        """Return the request's rows of a value read once for the whole step, or None if none was.

        Args:
            site: Where the value is.
            value: The value.
            host: The envoy that hosts it.
        """
        batcher = self.block.interleaver.batcher
        return batcher.piece(self, site, value, host)

    def take(self, site: Site, value: Value, host: StandardEnvoy, view: Tensor) -> bool:
        """Take an edited value, if it was a piece of one read for the whole step.

        Args:
            site: Where the value is.
            value: The value.
            host: The envoy that hosts it.
            view: The value as the block has edited it.

        Returns:
            Whether it was taken, to be put into the step together with others.
        """
        return self.block.interleaver.batcher.take(self, site, value, host, view)


class PrivateRows(EngineAdapter):
    """Serves standard values on vLLM, as private copies of the request's rows."""

    engine: Engine = "vllm"
    live = False

    def serve(self, site: Site, value: Value, host: StandardEnvoy, arrived: Any) -> Tensor:
        if type(arrived) is StepContent and not site.holds_own_rows:
            piece = arrived.piece(site, value, host)
            if piece is not None:
                return piece
        raw = self.own_part(arrived)
        block: Any = Mediator.current(value.name)
        with outside_inference_mode(), _adapted(block):
            private = site.read(host, raw).copied()
        return self._own_rows(private, value, host)

    def own_part(self, arrived: Any) -> Any:
        return arrived.own() if type(arrived) is StepContent else arrived

    def copy_assigned(self, tensor: Tensor, value: Value, host: StandardEnvoy) -> Tensor:
        with outside_inference_mode():
            private = copied(tensor)
        return self._own_rows(private, value, host)

    @staticmethod
    def _own_rows(private: Tensor, value: Value, host: StandardEnvoy) -> Tensor:
        """Lay out ``private`` as ``value``, and refuse it if it is not just this request's rows."""
        served = batched(private, value, host)
        axis = value.token_axis
        group = Mediator.current(value.name).batch_group
        if axis is not None and group is not None and served.shape[axis] != group[1]:
            raise Unavailable(
                f"{host.path}.{value.name}: the engine passes {served.shape[axis]} rows here where "
                f"this request has {group[1]} tokens, so they are not one row a token and not only "
                "this request's"
            )
        return served

    def restore(self, view: Tensor, like: Tensor, value: Value) -> Tensor:
        return as_passed(view, like, value)

    def edit(self, before: Any, after: Any) -> Any:
        return Swap(before, after)

    def edits_together(
        self, site: Site, value: Value, host: StandardEnvoy, arrived: Any, view: Tensor
    ) -> bool:
        return type(arrived) is StepContent and arrived.take(site, value, host, view)

    def unavailable_now(self, value: Value) -> str | None:
        if "vllm" not in value.prefill_only_on:
            return None
        cached = Mediator.current(value.name).state.cached_tokens
        if not cached:
            return None
        return (
            f"{value.name} is served on the prefill step only: {cached} of this sequence's keys "
            "are in the engine's cache, out of reach of a recomputation. Read it in a trace of "
            "its own over the whole text"
        )


def _adapted(block: Any) -> contextlib.AbstractContextManager[None]:
    """Apply the LoRA adapter of ``block`` to its own rows, while a site is read for it.

    A site may be read by calling modules of the model on the rows.
    """
    adapters = block.interleaver.adapters
    if adapters is None or block.batch_group is None:
        return _NOTHING
    return adapters.on_rows(block.batch_group[1], block.state.lora_number)


#: A context manager that does nothing, and so can be entered many times at once.
_NOTHING = contextlib.nullcontext()


def batched(rows: Tensor, value: Value, host: StandardEnvoy) -> Tensor:
    """Return ``rows`` in the layout of ``value``: a batch axis of 1 first, heads on their own axis.

    Args:
        rows: ``[tokens, ...]``, with any heads flattened into the last axis as
            ``[tokens, heads * width]``; or a tensor that has as many axes as ``value`` already,
            which is returned as it is.
        value: The value that the rows are of.
        host: The envoy that hosts it, which knows the number of heads.

    Returns:
        ``[1, tokens, ...]``, or with heads, as ``value.axes`` orders them,
        ``[1, heads, tokens, width]`` or ``[1, tokens, heads, width]``.
    """
    axes = value.axes
    if rows.ndim == len(axes):
        return rows
    for axis, count in HEAD_COUNTS.items():
        if axis in axes:
            heads = rows.view(rows.shape[0], getattr(host, count), -1)
            return (heads.transpose(0, 1) if axes.index(axis) == 1 else heads)[None]
    return rows[None]


def as_passed(layout: Tensor, like: Tensor, value: Value) -> Tensor:
    """Return a value, laid out as `batched` does, in the shape of its origin, ``like``."""
    heads_first = value.axes[1] in HEAD_COUNTS
    return (layout.transpose(1, 2) if heads_first else layout).reshape(like.shape)
