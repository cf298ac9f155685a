"""The router of a mixture of experts.

A router scores every expert for each token and has the best few run it. Where those scores
are made differs from release to release, and vLLM makes them inside a kernel; but they are
a linear map of what enters the mixture, so they are computed from that, and read only.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import torch
from nnsight.intervention.envoy import Envoy
from nnsight.intervention.util import first_input
from torch import Tensor, nn

from nnterp.lifetime import Reading
from nnterp.sites.base import Site, find_module, module_at
from nnterp.sites.primitive import FirstArgument

#: What a mixture calls its router.
_NAMES = ("gate", "router")

DENSE = "this MLP is dense: it has no router"
BESIDE = "it is computed beside the forward, and its loss is not made of it"
IN_KERNEL = "vLLM's kernel chooses the experts and sums their outputs out of sight"


def router_of(mlp: nn.Module) -> nn.Module | None:
    """The router of a mixture of experts; None for a dense MLP."""
    for name in _NAMES:
        router = getattr(mlp, name, None)
        if isinstance(router, nn.Module) and (_packed(router) or _weight(router) is not None):
            return router
    return None


def router_near(host: Envoy) -> nn.Module | None:
    """The router of the mixture that ``host`` serves, which it may stand beside."""
    mixture = find_module(host, host.mixture)
    return None if mixture is None else router_of(mixture._module)


def _weight(router: nn.Module) -> Tensor | None:
    # A correction of the scores may be kept as a matrix of one row.
    matrices = [weight for weight in router.parameters() if weight.ndim == 2 and len(weight) > 1]
    return matrices[0] if len(matrices) == 1 else None


def _packed(router: nn.Module) -> bool:
    """Whether the router's weight is not all of its linear map.

    An engine may have packed it, and left an empty one behind, or put adapters beside it.
    """
    return hasattr(router, "base_layer") or any(not own.numel() for own in router.parameters())


@dataclass(frozen=True)
class RouterLogits(Site):
    """The linear scores of the experts, from what enters the mixture.

    Attributes:
        entering: What the router is given, where that is something else.
    """

    read_only = "the router scores the experts for itself"
    no_gradient = BESIDE

    entering: Site | None = None

    def location(self, host: Envoy) -> str:
        return (self.entering or FirstArgument(host.mixture)).location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        router = router_near(host)
        assert router is not None
        if _packed(router):
            # Past the module's call, which is the forward's own and a location of its own.
            returned = type(router).forward(router, first_input(*raw))
            scores = returned if isinstance(returned, Tensor) else returned[0]
            return Reading(scores, is_new_tensor=True)
        weight = _weight(router)
        assert weight is not None
        bias = dict(router.named_parameters()).get("bias")
        hidden = first_input(*raw).to(weight.dtype)
        # Detached, for what an engine computes in inference mode cannot be kept for a gradient.
        scores = nn.functional.linear(
            hidden, weight.detach(), None if bias is None else bias.detach()
        )
        return Reading(scores, is_new_tensor=True)


@dataclass(frozen=True)
class Choice(Site):
    """What a transformers router returns of the experts it chose, told apart by dtype.

    Attributes:
        weights: Whether it is their weights, and not their indices.
        entering: What the router is given, where that is not what enters the mixture.
        flat: Whether the router takes a row a token, without a batch axis.
    """

    read_only = "the router chooses the experts for itself"
    no_gradient = BESIDE

    weights: bool
    entering: Site | None = None
    flat: bool = True

    def made_by(self, mixture: nn.Module) -> bool:
        """Whether the router of ``mixture`` returns its choice, and not scores alone."""
        router = router_of(mixture)
        assert router is not None
        weight = _weight(router)
        assert weight is not None
        if weight.is_meta:
            return type(router) is not nn.Linear
        with torch.no_grad():
            token = torch.zeros(1, 1, dtype=torch.long, device=weight.device)
            hidden = weight.new_zeros(1, 1, weight.shape[1])
            returned = self._returned(mixture, hidden, {"input_ids": token})
        return isinstance(returned, tuple) and any(
            not part.is_floating_point() for part in returned
        )

    def _returned(self, mixture: nn.Module, hidden: Tensor, called: Mapping[str, Any]) -> Any:
        """What the router of ``mixture`` returns for ``hidden``, ``[batch, seq, hidden]``.

        Args:
            mixture: The mixture.
            hidden: What the router scores.
            called: What the mixture is called with by name.
        """
        router = router_of(mixture)
        assert router is not None
        # Past the module's call, which is the forward's own and a location of its own.
        forward = type(router).forward
        # What else it is called with are the mixture's own tensors, or what the mixture is
        # called with, of the same names.
        further = list(inspect.signature(forward).parameters)[2:]
        own = {name: getattr(mixture, name) for name in further if hasattr(mixture, name)}
        own |= {name: called[name] for name in further if name in called}
        given = hidden.reshape(-1, hidden.shape[-1]) if self.flat else hidden
        return forward(router, given, **own)

    def location(self, host: Envoy) -> str:
        return (self.entering or FirstArgument(host.mixture)).location(host)

    def read(self, host: Envoy, raw: Any) -> Reading:
        hidden = first_input(*raw)
        returned = self._returned(module_at(host, host.mixture)._module, hidden, raw[1])
        indices = next(part for part in returned if not part.is_floating_point())
        chosen = indices
        if self.weights:
            # Of the two that are numbers, the scores of all experts are the wider.
            numbers = [part for part in returned if part.is_floating_point()]
            fitting = [part for part in numbers if part.shape == indices.shape]
            chosen = fitting[-1] if fitting else numbers[-1].gather(-1, indices)
        return Reading(chosen.reshape(*hidden.shape[:-1], -1), is_new_tensor=True)


@dataclass(frozen=True)
class ScoredChoice(Choice):
    """The choice of a router that returns a score of every expert, zero for those not chosen."""

    def made_by(self, mixture: nn.Module) -> bool:
        return True

    def read(self, host: Envoy, raw: Any) -> Reading:
        hidden = first_input(*raw)
        mixture = module_at(host, host.mixture)._module
        scores = self._returned(mixture, hidden, raw[1])[0]
        best = scores.topk(mixture.top_k)
        chosen = best.values if self.weights else best.indices
        return Reading(chosen.reshape(*hidden.shape[:-1], -1), is_new_tensor=True)
