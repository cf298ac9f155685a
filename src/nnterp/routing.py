"""The router of a mixture of experts.

A router scores every expert for each token and has the best few run it. Where those scores
are made differs from release to release, and vLLM makes them inside a kernel; but they are
a linear map of what enters the mixture, so they are computed from that, and read only.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.util import first_input
from torch import Tensor, nn

from .sites import Reading

#: What a mixture calls its router.
_NAMES = ("gate", "router")

DENSE = "this MLP is dense: it has no router"


def router_of(mlp: nn.Module) -> nn.Module | None:
    """The router of a mixture of experts; None for a dense MLP."""
    for name in _NAMES:
        router = getattr(mlp, name, None)
        if isinstance(router, nn.Module) and _weight(router) is not None:
            return router
    return None


def _weight(router: nn.Module) -> Tensor | None:
    matrices = [weight for weight in router.parameters() if weight.ndim == 2]
    return matrices[0] if len(matrices) == 1 else None


@dataclass(frozen=True)
class RouterLogits:
    """The linear scores of the experts, from what enters the mixture."""

    def location(self, host: Envoy) -> str:
        return f"{host.path}.input"

    def read(self, host: Envoy, raw: Any) -> Reading:
        router = router_of(host._module)
        assert router is not None
        weight = _weight(router)
        assert weight is not None
        bias = dict(router.named_parameters()).get("bias")
        hidden = first_input(*raw).to(weight.dtype)
        return Reading(nn.functional.linear(hidden, weight, bias), fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        raise NotImplementedError("the router scores the experts for itself")


@dataclass(frozen=True)
class Choice:
    """What a transformers router returns of the experts it chose, told apart by dtype.

    Attributes:
        weights: Whether it is their weights, and not their indices.
    """

    weights: bool

    def location(self, host: Envoy) -> str:
        return f"{host.path}.input"

    def read(self, host: Envoy, raw: Any) -> Reading:
        hidden = first_input(*raw)
        router = router_of(host._module)
        assert router is not None
        # Past the module's call, which is the forward's own and a location of its own.
        returned = type(router).forward(router, hidden.reshape(-1, hidden.shape[-1]))
        indices = next(part for part in returned if not part.is_floating_point())
        chosen = indices
        if self.weights:
            # Of the two that are numbers, the scores of all experts are the wider.
            numbers = [part for part in returned if part.is_floating_point()]
            fitting = [part for part in numbers if part.shape == indices.shape]
            chosen = fitting[-1] if fitting else numbers[-1].gather(-1, indices)
        return Reading(chosen.reshape(*hidden.shape[:-1], -1), fresh=True)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        raise NotImplementedError("the router chooses the experts for itself")


def makes_choice(router: nn.Module) -> bool:
    """Whether ``router`` returns the experts it chose, and not their scores alone."""
    weight = _weight(router)
    assert weight is not None
    if weight.is_meta:
        return type(router) is not nn.Linear
    with torch.no_grad():
        returned = type(router).forward(router, weight.new_zeros(1, weight.shape[1]))
    return isinstance(returned, tuple) and any(not part.is_floating_point() for part in returned)
