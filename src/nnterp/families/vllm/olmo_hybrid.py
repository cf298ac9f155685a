"""OLMo Hybrid on vLLM: one tensor between blocks, the adds written out."""

from nnterp.engines.vllm.envoys.attention import Attention, RecurrentMixer
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.olmo_hybrid import ADDED_BY_MLP, AFTER_ATTENTION, RENAME
from nnterp.families.vllm import gpt2
from nnterp.sites.primitive import Output

__all__ = ["ENVOYS", "RENAME"]

#: The delta rule runs out of sight, and writes what its last projection returns into a buffer.
FROM_DELTA_RULE = Output(of="o_proj")

ENVOYS = gpt2.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.linear_attn": RecurrentMixer.placed(attention_output=FROM_DELTA_RULE),
    "layers.*.mlp": Mlp.placed(mlp_output=ADDED_BY_MLP),
}
