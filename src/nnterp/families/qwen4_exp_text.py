"""Qwen 4, experimental: gated streams side by side; delta states in most blocks.

``attention_output`` and ``mlp_output`` are what is added to each stream, in shares. In place
of a last norm is a module that norms the streams and mixes them into one.
"""

from typing import Any

import torch

from nnterp.engines.transformers.envoys import RecurrentMixer
from nnterp.engines.transformers.envoys.multi_stream import MultiStreamLayer
from nnterp.families import llama

__all__ = ["ENVOYS", "RENAME", "RIGHT_PADDED"]

RENAME = llama.RENAME | {"model.hyper_connection_mixer": "norm"}

ENVOYS = llama.ENVOYS | {"layers.*": MultiStreamLayer, "layers.*.linear_attn": RecurrentMixer}


def _right_padded(config: Any, tokens: int) -> str | None:
    reason = "a backward pass through Qwen 4's padding before a token is not a number"
    return reason if torch.is_grad_enabled() else None


RIGHT_PADDED = _right_padded
