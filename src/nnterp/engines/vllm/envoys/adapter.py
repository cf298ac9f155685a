"""A request's rows, handed over as private copies.

vLLM runs every request of a step in one tensor: ``[tokens, hidden]``, or ``[1, tokens, hidden]``
under its Transformers backend, with the heads of queries, keys and values flattened into the
last axis. A block is entitled to its own request's rows. `PrivateRows` copies them out in the
layout of the contract, so that nothing a later kernel writes changes what was read."""

from __future__ import annotations

import contextlib
from typing import Any

from nnsight.intervention.interleaver import Mediator
from torch import Tensor

from nnterp.errors import Unavailable
from nnterp.lifetime import copied, outside_inference_mode
from nnterp.sites.base import Site
from nnterp.tracing.edit import Edit
from nnterp.tracing.engine_adapter import EngineAdapter
from nnterp.tracing.envoy import StandardEnvoy
from nnterp.vocabulary.values import Engine, Value

#: The attribute of an attention envoy that counts the heads of an axis.
HEAD_COUNTS = {"heads": "num_heads", "kv_heads": "num_kv_heads"}


class StepContent:
    """What a whole step holds at a location, as it arrived for one block.

    Attributes:
        content: What arrived, with every request's rows.
        block: The mediator of the request that it arrived for.
    """

    __slots__ = ("block", "content")

    def __init__(self, content: Any, block: Any) -> None:
        self.content = content
        self.block = block

    def own(self) -> Any:
        """The part that belongs to the block's request."""
        batcher = self.block.interleaver.batcher
        return batcher.narrow(self.content, self.block.batch_group)

    def piece(self, site: Site, value: Value, host: StandardEnvoy) -> Tensor | None:
        """The request's rows out of one reading made for the whole step, if one was."""
        batcher = self.block.interleaver.batcher
        return batcher.piece(self, site, value, host)


class PrivateRows(EngineAdapter):
    """vLLM's way of handing values over."""

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
        """``private`` in the layout of ``value``; refused if it is not just this request's."""
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
        heads_first = value.axes[1] in HEAD_COUNTS
        return (view.transpose(1, 2) if heads_first else view).reshape(like.shape)

    def edit(self, before: Any, after: Any) -> Any:
        return Edit(before, after)

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
    """While a site is read for ``block``, which may take modules of the model's on its rows."""
    adapters = block.interleaver.adapters
    if adapters is None or block.batch_group is None:
        return _NOTHING
    return adapters.on_rows(block.batch_group[1], block.state.lora_number)


#: Entered many times at once, for it does nothing.
_NOTHING = contextlib.nullcontext()


def batched(rows: Tensor, value: Value, host: StandardEnvoy) -> Tensor:
    """``rows`` in the layout of ``value``: a batch axis of 1 first, heads on their axis."""
    axes = value.axes
    if rows.ndim == len(axes):
        return rows
    for axis, count in HEAD_COUNTS.items():
        if axis in axes:
            heads = rows.view(rows.shape[0], getattr(host, count), -1)
            return (heads.transpose(0, 1) if axes.index(axis) == 1 else heads)[None]
    return rows[None]
