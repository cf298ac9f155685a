"""The MLP of a transformers block, dense or a mixture of experts."""

from __future__ import annotations

from .. import values
from ..eproperty import StandardValue
from ..routing import DENSE, Choice, RouterLogits, makes_choice, router_of
from ..sites import Output
from .layer import Live


class Mlp(Live):
    """An MLP whose output is what it adds to the residual stream."""

    mlp_output = StandardValue(values.MLP_OUTPUT, Output())
    router_logits = StandardValue(values.ROUTER_LOGITS, RouterLogits())
    expert_indices = StandardValue(values.EXPERT_INDICES, Choice(weights=False))
    expert_weights = StandardValue(values.EXPERT_WEIGHTS, Choice(weights=True))

    def unavailable(self, name: str) -> str | None:
        if name == values.MLP_OUTPUT.name:
            return super().unavailable(name)
        router = router_of(self._module)
        if router is None:
            return DENSE
        if name != values.ROUTER_LOGITS.name and not makes_choice(router):
            return f"{type(router).__name__} returns scores, and the experts are chosen elsewhere"
        return super().unavailable(name)
