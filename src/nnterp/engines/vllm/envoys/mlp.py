"""Serves the MLP of a vLLM decoder block, dense or a mixture of experts."""

from __future__ import annotations

from typing import ClassVar

from nnterp.engines.vllm.envoys.envoy import VLLMEnvoy
from nnterp.sites.primitive import Nowhere, Output
from nnterp.sites.routing import DENSE, IN_KERNEL, RouterLogits, router_near
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values


class Mlp(VLLMEnvoy):
    """Serves an MLP whose output is what it adds to the residual stream."""

    #: The path of its mixture of experts: the MLP itself, or a module beside it.
    mixture: ClassVar[str] = "."

    mlp_output = StandardValue(values.MLP_OUTPUT, Output())
    router_logits = StandardValue(values.ROUTER_LOGITS, RouterLogits())
    expert_indices = StandardValue(values.EXPERT_INDICES, Nowhere())
    expert_weights = StandardValue(values.EXPERT_WEIGHTS, Nowhere())

    def unavailable(self, name: str) -> str | None:
        if name not in values.ROUTING:
            return super().unavailable(name)
        if router_near(self) is None:
            return DENSE
        if name != values.ROUTER_LOGITS.name:
            return IN_KERNEL
        return super().unavailable(name)
