"""Gemma 4, text, on vLLM: one tensor between blocks, the embedding scaled outside its module.

Blocks that take over keys and values never hold them: vLLM's kernel has them in its cache.
"""

from nnsight.intervention.envoy import Envoy

from nnterp.engines.vllm.envoys.attention import Attention
from nnterp.engines.vllm.envoys.layer import SingleLayer
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.gemma4_text import AFTER_ATTENTION, AFTER_MLP, BLOCK, RENAME, unscaled
from nnterp.sites.mapped import scaled
from nnterp.sites.primitive import Output

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]


class RescalingLayer(SingleLayer):
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
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": MlpBesideExperts.placed(
        mlp_output=AFTER_MLP, router_logits=Output(of="..router")
    ),
}


def _scale(model: Envoy) -> float:
    return float(model.get("norm").parent._module.normalizer)


#: Not what enters block 0: the blocks' own embeddings are made from it too.
TOKEN_EMBEDDINGS = scaled(Output(of="embed_tokens"), _scale)
