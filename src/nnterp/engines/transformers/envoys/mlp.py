"""Serves the values of the MLP of a transformers block, dense or a mixture of experts."""

from __future__ import annotations

from typing import ClassVar

from nnterp.engines.transformers.envoys.envoy import TransformersEnvoy
from nnterp.sites.base import module_at
from nnterp.sites.primitive import Output
from nnterp.sites.routing import DENSE, Choice, RouterLogits, router_near
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values


class Mlp(TransformersEnvoy):
    """`Mlp` is the envoy of an MLP whose output is what it adds to the residual stream."""

    #: The path of its mixture of experts from the MLP: itself, or a module beside it.
    mixture: ClassVar[str] = "."

    mlp_output = StandardValue(values.MLP_OUTPUT, Output())
    router_logits = StandardValue(values.ROUTER_LOGITS, RouterLogits())
    expert_indices = StandardValue(values.EXPERT_INDICES, Choice(weights=False))
    expert_weights = StandardValue(values.EXPERT_WEIGHTS, Choice(weights=True))

    def unavailable(self, name: str) -> str | None:
        if name not in values.ROUTING:
            return super().unavailable(name)
        router = router_near(self)
        if router is None:
            return DENSE
        choice = getattr(type(self), name).site
        mixture = module_at(self, self.mixture)._module
        if isinstance(choice, Choice) and not choice.made_by(mixture):
            return f"{type(router).__name__} returns scores, and the experts are chosen elsewhere"
        return super().unavailable(name)
