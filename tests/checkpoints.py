"""Tiny random checkpoints, one row a family, that make every feature of the family matter.

Two blocks, 64 wide, heads of 32, a vocabulary of 256 bytes, windows shorter than the
prompt. Weights are random but sized so that norms, caps, windows and multipliers each
change the output.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import CONFIG_MAPPING, AutoModelForCausalLM, PreTrainedTokenizerFast

GENERIC: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sliding_window": 8,
    "initializer_range": 0.1,
}

#: A checkpoint's name -> (model_type, config values beside the generic ones).
TINY: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("llama", {}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {"num_attention_heads": 2, "num_key_value_heads": 1}),
    "qwen3": ("qwen3", {}),
    "phi3": ("phi3", {"num_attention_heads": 2, "num_key_value_heads": 1}),
    "gemma2": (
        "gemma2",
        {
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gemma3_text": (
        "gemma3_text",
        {
            "query_pre_attn_scalar": 16,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gemma3_text_untied": (
        "gemma3_text",
        {
            "query_pre_attn_scalar": 16,
            "final_logit_softcapping": 10.0,
            "layer_types": ["sliding_attention", "full_attention"],
            "tie_word_embeddings": False,
        },
    ),
    "gpt2": ("gpt2", {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 2}),
    "gpt_neox": ("gpt_neox", {"num_attention_heads": 2}),
    "gpt_neox_sequential": (
        "gpt_neox",
        {"num_attention_heads": 2, "use_parallel_residual": False},
    ),
}

#: Longer than the windows, and no token twice in a row.
PROMPT = [5, 91, 17, 203, 44, 120, 8, 66, 251, 33, 190, 77, 14, 5, 160, 99, 42, 230, 61, 128]


def make(name: str, folder: Path) -> Path:
    """Write the checkpoint ``name`` under ``folder``; its path."""
    path = folder / name
    model_type, changes = TINY[name]
    config_class = CONFIG_MAPPING[model_type]
    default = config_class()
    # A config whose own names differ (gpt2's n_embd) is given those in its row, and one
    # without windows must not carry one: vLLM would apply it, transformers would not.
    known = {
        key: value
        for key, value in GENERIC.items()
        if hasattr(default, key) and key not in config_class.attribute_map
    }
    config = config_class(**{**known, **changes})
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    _randomize(model)
    config.architectures = [type(model).__name__]
    model.save_pretrained(path)
    _byte_tokenizer().save_pretrained(path)
    return path


def _randomize(model: torch.nn.Module) -> None:
    for name, weight in model.named_parameters():
        if weight.ndim == 1:
            one = "norm" in name or "ln_" in name
            with torch.no_grad():
                if name.endswith("bias"):
                    weight.normal_(0, 0.1)
                elif one:
                    weight.normal_(0, 0.15).add_(weight.new_ones(()))
        else:
            embedding = "emb" in name or "wte" in name or "wpe" in name
            torch.nn.init.normal_(weight, 0, 0.5 if embedding else 1.3 / weight.shape[-1] ** 0.5)


def _byte_tokenizer() -> PreTrainedTokenizerFast:
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    tokenizer = Tokenizer(models.BPE(vocab={byte: i for i, byte in enumerate(alphabet)}, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        pad_token=alphabet[0],
        bos_token=alphabet[1],
        eos_token=alphabet[2],
    )
