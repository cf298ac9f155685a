"""OPT: learned positions, and no module for the MLP, whose last linear map stands for it.

``attention_queries`` are unscaled, so that their products with the keys still have to be.
A checkpoint may norm each sum instead of what enters a half, and have no norm at the end.
"""

from nnsight.intervention.envoy import Envoy

from nnterp.engines.transformers.envoys import Attention, Layer, Mlp
from nnterp.engines.transformers.envoys.attention import QUERIES
from nnterp.engines.transformers.envoys.flattened import Unflattened
from nnterp.families import llama
from nnterp.sites.mapped import scaled
from nnterp.sites.primitive import Output

__all__ = ["BEFORE_HEAD", "ENVOYS", "RENAME", "is_residual_sum", "unscaled"]

RENAME = {
    "model.decoder.embed_tokens": "embed_tokens",
    "model.decoder.layers": "layers",
    "model.decoder.final_layer_norm": "norm",
    "model.decoder.project_out": "project_out",
    "fc2": "mlp",
}

BEFORE_HEAD = ("norm", "project_out")


def unscaled(attention: Envoy) -> float:
    """What undoes the scale of the queries."""
    return 1 / float(attention._module.scaling)


def is_residual_sum(block: Envoy) -> bool:
    """Whether a block's output is a sum, which is not normed itself."""
    return bool(block._module.do_layer_norm_before)


class Block(Layer):
    """A block that norms its sums where the config says so."""

    @property
    def is_residual_sum(self) -> bool:
        return is_residual_sum(self)


ENVOYS = llama.ENVOYS | {
    "layers.*": Block,
    "layers.*.self_attn": Attention.placed(attention_queries=scaled(QUERIES, unscaled)),
    "layers.*.mlp": Mlp.placed(mlp_output=Unflattened(Output(of="..self_attn"), Output())),
}
