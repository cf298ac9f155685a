"""OLMo Hybrid: delta-rule blocks normed on entry, attention blocks normed on leaving."""

from nnterp.engines.transformers.envoys import Attention, Mlp
from nnterp.families import qwen3_next
from nnterp.families.gemma2 import AFTER_ATTENTION, AFTER_MLP
from nnterp.families.llama import RENAME
from nnterp.sites.choice import Either, has
from nnterp.sites.primitive import Output

__all__ = ["ADDED_BY_MLP", "AFTER_ATTENTION", "ENVOYS", "RENAME"]

ADDED_BY_MLP = Either(has(AFTER_MLP.of), AFTER_MLP, Output())

ENVOYS = qwen3_next.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=ADDED_BY_MLP),
}
