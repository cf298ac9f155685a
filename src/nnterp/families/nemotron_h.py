"""Nemotron-H: a block is one mixer: Mamba 2, attention, an MLP or a mixture of experts."""

from transformers.models.nemotron_h import modeling_nemotron_h

from nnterp.families.qwen3_next import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

#: Every mixer is called ``mixer``; what it is called here is told by its class.
RENAME = {
    "model.embeddings": "embed_tokens",
    "model.layers": "layers",
    "model.norm_f": "norm",
    modeling_nemotron_h.NemotronHMamba2Mixer: "linear_attn",
    modeling_nemotron_h.NemotronHAttention: "self_attn",
    modeling_nemotron_h.NemotronHMLP: "mlp",
    modeling_nemotron_h.NemotronHMoE: "mlp",
}
