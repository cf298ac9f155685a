"""Reads the router of a mixture of experts.

A router scores every expert for each token, and the few with the best scores run. Where those
scores are computed differs from release to release, and vLLM computes them inside a kernel. But
they are a linear map of what enters the mixture, so they are computed from that, read-only.
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

#: The attribute names under which mixtures keep their routers.
_NAMES = ("gate", "router")

DENSE = "this MLP is dense: it has no router"
BESIDE = "it is computed beside the forward, and its loss is not made of it"
IN_KERNEL = "vLLM's kernel chooses the experts and sums their outputs out of sight"


def router_of(mlp: nn.Module) -> nn.Module | None:
    """Return the router of a mixture of experts, or None for a dense MLP."""
    for name in _NAMES:
        router = getattr(mlp, name, None)
        if isinstance(router, nn.Module) and (_packed(router) or _weight(router) is not None):
            return router
    return None


def router_near(host: Envoy) -> nn.Module | None:
    """Return the router of the mixture that ``host`` serves; the mixture may be beside the host."""
    mixture = find_module(host, host.mixture)
    return None if mixture is None else router_of(mixture._module)


def _weight(router: nn.Module) -> Tensor | None:
    """Return the router's weight, ``[experts, hidden]``, or None where it has not exactly one."""
    # A bias that corrects the scores may be kept as a matrix of one row, which is no weight.
    matrices = [weight for weight in router.parameters() if weight.ndim == 2 and len(weight) > 1]
    return matrices[0] if len(matrices) == 1 else None


def _packed(router: nn.Module) -> bool:
    """Return whether the router's weight is not all of its linear map.

    An engine may have packed the weight and left an empty tensor behind, or put adapters beside it.
    """
    return hasattr(router, "base_layer") or any(not own.numel() for own in router.parameters())


@dataclass(frozen=True)
class RouterLogits(Site):
    """`RouterLogits` is the experts' linear scores, computed from what enters the mixture.

    They are read as ``[batch, seq, experts]`` where ``[batch, seq, hidden]`` enters.

    Attributes:
        entering: Where the router's input is, if it is not what enters the mixture.
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
            # The module itself is not called, because that would count as a call of the forward
            # at the module's own location.
            returned = type(router).forward(router, first_input(*raw))
            scores = returned if isinstance(returned, Tensor) else returned[0]
            return Reading(scores, is_new_tensor=True)
        weight = _weight(router)
        assert weight is not None
        bias = dict(router.named_parameters()).get("bias")
        hidden = first_input(*raw).to(weight.dtype)
        # Detached, because autograd cannot save for a gradient what an engine computes in
        # inference mode.
        scores = nn.functional.linear(
            hidden, weight.detach(), None if bias is None else bias.detach()
        )
        return Reading(scores, is_new_tensor=True)


@dataclass(frozen=True)
class Choice(Site):
    """A `Choice` is what a transformers router returns of the experts it chose, found by dtype.

    It is read as ``[batch, seq, top_k]`` where ``[batch, seq, hidden]`` enters.

    Attributes:
        weights: Whether the value is the chosen experts' weights, and not their indices.
        entering: Where the router's input is, if it is not what enters the mixture.
        flat: Whether the router takes ``[tokens, hidden]``, without a batch axis.
    """

    read_only = "the router chooses the experts for itself"
    no_gradient = BESIDE

    weights: bool
    entering: Site | None = None
    flat: bool = True

    def made_by(self, mixture: nn.Module) -> bool:
        """Return whether the router of ``mixture`` returns its choice, and not scores alone."""
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
        """Return what the router of ``mixture`` returns for ``hidden``.

        Args:
            mixture: The mixture.
            hidden: What the router scores, ``[batch, seq, hidden]``.
            called: The keyword arguments that the mixture is called with.
        """
        router = router_of(mixture)
        assert router is not None
        # The module itself is not called, because that would count as a call of the forward at
        # the module's own location.
        forward = type(router).forward
        # The router's other arguments are attributes of the mixture, or arguments of the
        # mixture's call, of the same names.
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
            # Where a router returns two floating-point tensors, the wider has all experts' scores.
            numbers = [part for part in returned if part.is_floating_point()]
            fitting = [part for part in numbers if part.shape == indices.shape]
            chosen = fitting[-1] if fitting else numbers[-1].gather(-1, indices)
        return Reading(chosen.reshape(*hidden.shape[:-1], -1), is_new_tensor=True)


@dataclass(frozen=True)
class ScoredChoice(Choice):
    """A `ScoredChoice` is read off a router that returns a score per expert, zero if not chosen."""

    def made_by(self, mixture: nn.Module) -> bool:
        return True

    def read(self, host: Envoy, raw: Any) -> Reading:
        hidden = first_input(*raw)
        mixture = module_at(host, host.mixture)._module
        scores = self._returned(mixture, hidden, raw[1])[0]
        best = scores.topk(mixture.top_k)
        chosen = best.values if self.weights else best.indices
        return Reading(chosen.reshape(*hidden.shape[:-1], -1), is_new_tensor=True)
