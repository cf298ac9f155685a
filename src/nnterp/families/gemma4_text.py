"""Gemma 4, text: Gemma 2 with keys shared between blocks, an embedding for each, maybe experts.

A block's own embedding, which comes after the MLP and depends on what that adds, is part of
``mlp_output``; so are the experts, whose sum with the MLP is normed before the add. At its
end a block multiplies the whole stream by a number of its own: unless that is 1, what leaves
is no sum.
"""

from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from nnsight.intervention.util import first_input
from torch import nn

from nnterp.engines.transformers.envoys import Layer, Mlp
from nnterp.engines.transformers.envoys.kv_sharing import KVSharingAttention
from nnterp.families.gemma2 import AFTER_ATTENTION, READOUT, RENAME
from nnterp.families.gemma2 import AFTER_MLP as AFTER_EXPERTS
from nnterp.lifetime import Reading
from nnterp.sites.base import Site
from nnterp.sites.choice import Either, has
from nnterp.sites.mapped import zeros
from nnterp.sites.primitive import FirstArgument, Output
from nnterp.sites.routing import Choice, RouterLogits, router_near
from nnterp.sites.two_part import summed
from nnterp.tracing.without_interleaving import without_interleaving

__all__ = [
    "AFTER_ATTENTION",
    "AFTER_MLP",
    "BLOCK",
    "ENVOYS",
    "READOUT",
    "RENAME",
    "unscaled",
]

#: The module around the router and the experts, which are the MLP's siblings.
BLOCK = ".."

#: The router reads the stream after attention, which is what this norm is given.
STREAM = FirstArgument(of="..pre_feedforward_layernorm")

OWN_EMBEDDING = "..post_per_layer_input_norm"

AFTER_MLP = summed(
    Either(has(OWN_EMBEDDING), AFTER_EXPERTS, zeros(of=AFTER_EXPERTS.of)),
    Either(has(OWN_EMBEDDING), Output(of=OWN_EMBEDDING), AFTER_EXPERTS),
)


@dataclass(frozen=True)
class NormedRouterLogits(RouterLogits):
    """The scores of a router that norms and scales the stream for itself."""

    def read(self, host: Envoy, raw: Any) -> Reading:
        router: Any = router_near(host)
        stream = first_input(*raw)
        normed = type(router.norm).forward(router.norm, stream) * stream.shape[-1] ** -0.5
        scores = nn.functional.linear(normed * router.scale, router.proj.weight)
        return Reading(scores, is_new_tensor=True)


@dataclass(frozen=True)
class NormedChoice(Choice):
    """The choice of such a router, which calls modules of its own."""

    entering: Site = STREAM

    def made_by(self, mixture: nn.Module) -> bool:
        return True

    def read(self, host: Envoy, raw: Any) -> Reading:
        with without_interleaving(host.interleaver):
            return super().read(host, raw)


def unscaled(block: nn.Module) -> bool:
    """Whether ``block`` is known to multiply the stream by 1, which takes its weights."""
    scalar: Any = block.layer_scalar
    return not scalar.is_meta and scalar.item() == 1.0


class RescalingLayer(Layer):
    """A block that multiplies the stream at its end."""

    @property
    def is_residual_sum(self) -> bool:
        """Whether what leaves is what entered and what the block's parts add to it."""
        return unscaled(self._module)


class MlpBesideExperts(Mlp):
    """The MLP for every token, beside a mixture of experts if there is one."""

    mixture = BLOCK


ENVOYS = {
    "layers.*": RescalingLayer,
    "layers.*.self_attn": KVSharingAttention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": MlpBesideExperts.placed(
        mlp_output=AFTER_MLP,
        router_logits=NormedRouterLogits(STREAM),
        expert_indices=NormedChoice(weights=False),
        expert_weights=NormedChoice(weights=True),
    ),
}
