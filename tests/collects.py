"""One `collect` of everything a family serves, in every way of choosing positions."""

from __future__ import annotations

from typing import Any

import torch

import checkpoints

#: Of several lengths, in no order of them.
PROMPTS = [
    checkpoints.PROMPT[start : start + length] for start, length in [(0, 6), (2, 15), (5, 9)]
]

#: For each of `PROMPTS`: some positions, none, all.
MASKS = [[True, False] * 3, [False] * 15, [True] * 9]


def loudest(value: torch.Tensor) -> torch.Tensor:
    """A number for each feature, whatever the length."""
    return value[0].abs().amax(0)


def last_row(pattern: torch.Tensor) -> torch.Tensor:
    """What the last query gives to the first key, by head."""
    return pattern[0, :, -1, 0]


def wanted(model: Any) -> dict[str, Any]:
    """What to collect: those of these values that ``model`` serves."""
    served = model.support()
    choices = {
        "layers.*.layer_output": "all",
        "layers.0.layer_input": MASKS,
        "layers.1.layer_input": 0,
        "layers.0.self_attn.attention_queries": "last",
        "layers.1.self_attn.attention_keys": "all",
        "layers.1.self_attn.attention_head_outputs": -2,
        "layers.0.self_attn.attention_output": "mean",
        "layers.1.mlp.mlp_output": loudest,
        "layers.1.self_attn.attention_probabilities": last_row,
        "token_embeddings": "mean",
        "logits": "last",
        "next_token_probs": "last",
    }
    if model._config.model_type == "deepseek_v4":
        # Its second block has columns of compressed keys, in a batch of several lengths unknown.
        del choices["layers.1.self_attn.attention_probabilities"]
    return {name: how for name, how in choices.items() if _served(served, name)}


def _served(support: Any, name: str) -> bool:
    """Whether ``name`` is served, by the block it names if it names one."""
    row = support[name.rpartition(".")[2]]
    block = name.split(".")[1] if "." in name else "*"
    return bool(row) and (block == "*" or int(block) in row.blocks)


def flat(collected: Any) -> dict[str, torch.Tensor]:
    """The tensors of what was collected, a `Ragged` as its rows."""
    return {name: getattr(value, "rows", value) for name, value in collected.items()}
