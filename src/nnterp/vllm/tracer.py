"""A vLLM trace whose cache keeps private copies."""

from __future__ import annotations

from typing import Any

import torch
from nnsight.intervention.cache import Cache, CacheView
from nnsight.intervention.interleaver import Mediator
from nnsight.modeling.vllm.tracer import VLLMTracer
from nnsight.util import apply


class PrivateCache(Cache):
    """nnsight's cache, holding copies: on a CPU it would hold the engine's own buffers."""

    def _transform(self, value: Any) -> Any:
        return super()._transform(apply(value, torch.Tensor.clone, torch.Tensor))


class RowTracer(VLLMTracer):
    """nnsight's tracer of a vLLM trace."""

    def cache(self, *args: Any, **kwargs: Any) -> CacheView:
        view = super().cache(*args, **kwargs)
        Mediator.current("tracer.cache()").caches[-1].__class__ = PrivateCache
        return view
