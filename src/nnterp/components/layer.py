"""A transformers decoder block."""

from __future__ import annotations

from typing import Any

from torch import Tensor

from .. import values
from ..eproperty import StandardValue
from ..serving import Serving, StandardEnvoy
from ..sites import Argument, Output, Site
from ..values import Engine, Value


class LiveTensors(Serving):
    """transformers' way of handing values over: the tensors the model carries on with.

    An in-place edit is already in the model, and what was read is part of the graph that
    gradients flow through.
    """

    engine: Engine = "transformers"
    live = True

    def serve(self, site: Site, value: Value, host: StandardEnvoy, arrived: Any) -> Tensor:
        return site.read(host, arrived).tensor

    def own(self, arrived: Any) -> Any:
        return arrived

    def adopt(self, tensor: Tensor, value: Value, host: StandardEnvoy) -> Tensor:
        return tensor

    def restore(self, view: Tensor, like: Tensor, value: Value) -> Tensor:
        return view

    def edit(self, before: Any, after: Any) -> Any:
        return after

    def unavailable_now(self, value: Value) -> str | None:
        return None


class Live(StandardEnvoy):
    """An envoy of a transformers module: its values are the live tensors."""

    serving = LiveTensors()


class Layer(Live):
    """A block that takes and returns the residual stream."""

    #: How the block passes the stream on.
    stream = "one tensor"

    @property
    def sums(self) -> bool:
        """Whether what leaves is what entered and what the block's parts add to it."""
        return True

    layer_input = StandardValue(values.LAYER_INPUT, Argument("hidden_states"))
    layer_output = StandardValue(values.LAYER_OUTPUT, Output())
