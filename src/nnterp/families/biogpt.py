"""BioGPT: learned positions and a scaled embedding; the MLP's last linear map stands for it."""

from nnterp.families.llama import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

#: The backbone is called differently on each engine.
RENAME = {
    "*.embed_tokens": "embed_tokens",
    "*.layers": "layers",
    "*.layer_norm": "norm",
    "output_projection": "lm_head",
    "fc2": "mlp",
}
