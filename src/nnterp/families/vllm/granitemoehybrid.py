"""Granite 4 on vLLM: blocks of two classes, by their mixer, that pass one tensor on."""

from nnterp.engines.vllm.envoys.attention import RecurrentMixer
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.granite import ADDED
from nnterp.families.granitemoehybrid import ADDED_BY_BOTH, MIXTURE, RENAME
from nnterp.families.vllm import granite
from nnterp.families.vllm.granite import TOKEN_EMBEDDINGS

__all__ = ["ENVOYS", "RENAME", "TOKEN_EMBEDDINGS"]


class SharedMlp(Mlp):
    """The MLP for every token, beside a mixture of experts if there is one."""

    mixture = MIXTURE


ENVOYS = granite.ENVOYS | {
    "layers.*.linear_attn": RecurrentMixer.placed(attention_output=ADDED),
    "layers.*.mlp": SharedMlp.placed(mlp_output=ADDED_BY_BOTH),
}
