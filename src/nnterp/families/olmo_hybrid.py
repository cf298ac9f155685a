"""OLMo Hybrid: delta-rule blocks normed on entry, attention blocks normed on leaving."""

from ..components import Attention, Mlp
from ..composed import Either
from ..sites import Output
from . import qwen3_next
from .gemma2 import AFTER_ATTENTION, AFTER_MLP
from .llama import RENAME

__all__ = ["ADDED_BY_MLP", "AFTER_ATTENTION", "ENVOYS", "RENAME"]

ADDED_BY_MLP = Either(has=AFTER_MLP.of, site=AFTER_MLP, otherwise=Output())

ENVOYS = qwen3_next.ENVOYS | {
    "layers.*.self_attn": Attention.placed(attention_output=AFTER_ATTENTION),
    "layers.*.mlp": Mlp.placed(mlp_output=ADDED_BY_MLP),
}
