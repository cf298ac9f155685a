"""Nemotron-H on vLLM: the add of each mixer fused into the norm of the next block."""

from vllm.model_executor.layers.mamba.mamba_mixer2 import MambaMixer2
from vllm.model_executor.models import nemotron_h

from nnterp.engines.vllm.envoys.attention import RecurrentMixer
from nnterp.families.vllm import llama

__all__ = ["ENVOYS", "RENAME"]

#: Every mixer is called ``mixer``; what it is called here is told by its class.
RENAME = llama.RENAME | {
    "model.norm_f": "norm",
    MambaMixer2: "linear_attn",
    nemotron_h.NemotronHAttention: "self_attn",
    nemotron_h.NemotronHMLP: "mlp",
    nemotron_h.NemotronHMoE: "mlp",
}

ENVOYS = llama.ENVOYS | {"layers.*.linear_attn": RecurrentMixer}
