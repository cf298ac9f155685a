"""HRM, text: two stacks that a forward runs in turns, several times each.

``layers`` are the high-level stack, which ends each turn; their values are those of its last
run, which the logits come from.
"""

from typing import Any

from nnterp.engines.transformers.envoys import Attention, Layer, Mlp
from nnterp.engines.transformers.envoys.envoy import TransformersEnvoy
from nnterp.sites.mapped import scaled
from nnterp.sites.primitive import Output

RENAME = {
    "model.embed_tokens": "embed_tokens",
    "model.H_module.layers": "layers",
    "model.H_module.final_norm": "norm",
}


class InStack(TransformersEnvoy):
    """A module of one of the stacks."""

    @property
    def runs(self) -> int:
        """One in each turn for the high-level stack, several for the other."""
        config = self.root._module.config
        low = ".L_module." in self.path
        return config.H_cycles * (config.L_cycles if low else 1)


class StackLayer(InStack, Layer):
    """A block of a stack."""


class StackAttention(InStack, Attention):
    """The attention of a block of a stack."""


class StackMlp(InStack, Mlp):
    """The MLP of a block of a stack."""


ENVOYS = {
    "layers.*": StackLayer,
    "layers.*.self_attn": StackAttention,
    "layers.*.mlp": StackMlp,
}


def _scale(model: Any) -> float:
    return model._module.config.embedding_scale


TOKEN_EMBEDDINGS = scaled(Output(of="embed_tokens"), _scale)
