"""MiniCPM3 on vLLM: one tensor between blocks, and the latents expanded before the kernel."""

import math
from typing import Any

from nnsight.intervention.envoy import Envoy
from torch import Tensor

from nnterp.engines.vllm.envoys.layer import SingleLayer
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.engines.vllm.envoys.padded import PaddedAttention
from nnterp.families.minicpm3 import RENAME
from nnterp.sites.base import module_at
from nnterp.sites.mapped import scaled
from nnterp.sites.primitive import Argument, Output

__all__ = ["AFTER_NORM", "ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]


def _residual_scale(host: Envoy) -> float:
    config = module_at(host, "..")._module.config
    return config.scale_depth / math.sqrt(config.num_hidden_layers)


_ADDED = scaled(Output(), _residual_scale)

ENVOYS = {
    "layers.*": SingleLayer,
    "layers.*.self_attn": PaddedAttention.placed(attention_output=_ADDED),
    "layers.*.mlp": Mlp.placed(mlp_output=_ADDED),
}

#: Multiplied outside its module, the embedding first exists as what enters block 0.
TOKEN_EMBEDDINGS = Argument("hidden_states", of="layers.0")


def _narrowed(normed: Tensor, config: Any) -> Tensor:
    return normed / (config.hidden_size / config.dim_model_base)


#: By how much the model is wider than the one that was tuned.
AFTER_NORM = _narrowed
