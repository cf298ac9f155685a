"""Falcon on vLLM: attention and MLP return their biases beside what they are added to."""

from nnterp.engines.vllm.envoys.attention import Attention
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.falcon import RENAME
from nnterp.families.vllm import gpt2
from nnterp.sites.choice import Biased
from nnterp.sites.primitive import Output

__all__ = ["ENVOYS", "RENAME"]

ENVOYS = gpt2.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=Biased(Output(), 1)),
    "layers.*.mlp": Mlp.placed(mlp_output=Biased(Output(), 1)),
}
