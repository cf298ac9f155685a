"""Tiny random checkpoints on disk, as `tiny` lists them.

Weights are random but sized so that norms, caps, windows and multipliers each change the
output.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    CONFIG_MAPPING,
    AutoModelForCausalLM,
    AutoModelForImageTextToText,
    PreTrainedTokenizerFast,
)

from tiny import GENERIC, ROWS, VISION, Tiny

#: Longer than the windows, and no token twice in a row.
PROMPT = [5, 91, 17, 203, 44, 120, 8, 66, 251, 33, 190, 77, 14, 5, 160, 99, 42, 230, 61, 128]


def make(name: str, folder: Path) -> Path:
    """Write the checkpoint ``name`` under ``folder``; its path."""
    return write(ROWS[name], folder / name)


def write(row: Tiny, path: Path) -> Path:
    """Write the checkpoint of ``row`` to ``path``, which is given back."""
    config_class = CONFIG_MAPPING[row.model_type]
    default = config_class()
    # A config whose own names differ (gpt2's n_embd) is given those in its row, and one
    # without windows must not carry one: vLLM would apply it, transformers would not.
    known = {
        key: value
        for key, value in GENERIC.items()
        if key not in config_class.attribute_map
        and key not in row.without
        and hasattr(default, key)
    }
    config = config_class(**{**known, **row.config})
    kind: Any = AutoModelForCausalLM
    if row.inside:
        config, kind = _around(config, row.inside), AutoModelForImageTextToText
    torch.manual_seed(0)
    model = kind.from_config(config, dtype=torch.float32)
    _randomize(model)
    _set(model, row.weights)
    model.save_pretrained(path)
    if row.patch:
        file = path / "config.json"
        file.write_text(json.dumps({**json.loads(file.read_text()), **row.patch}))
    _byte_tokenizer().save_pretrained(path)
    return path


def _around(text: Any, model_type: str) -> Any:
    """The config of a small ``model_type`` that takes images, around that of a decoder."""
    config_class = CONFIG_MAPPING[model_type]
    default = config_class()
    known = {key: value for key, value in VISION.items() if hasattr(default.vision_config, key)}
    vision = type(default.vision_config)(**known)
    image = {
        name: 255 for name in ("image_token_id", "image_token_index") if hasattr(default, name)
    }
    return config_class(text_config=text.to_dict(), vision_config=vision.to_dict(), **image)


def _randomize(model: torch.nn.Module) -> None:
    with torch.no_grad():
        for name, buffer in model.named_buffers():
            if name.endswith("correction_bias"):
                buffer.normal_(0, 0.03)
        for name, weight in model.named_parameters():
            if name.endswith("correction_bias"):
                weight.normal_(0, 0.03)
            elif name.endswith("bias"):
                weight.normal_(0, 0.1)
            elif weight.ndim == 1:
                if "norm" in name or "ln_" in name:
                    weight.normal_(0, 0.15).add_(weight.new_ones(()))
            else:
                embedding = "emb" in name or "wte" in name or "wpe" in name
                weight.normal_(0, 0.5 if embedding else 1.3 / weight.shape[-1] ** 0.5)


def _set(model: torch.nn.Module, numbers: Mapping[str, float | Sequence[float]]) -> None:
    with torch.no_grad():
        for end, number in numbers.items():
            for name, weight in [*model.named_parameters(), *model.named_buffers()]:
                if name.endswith(end):
                    weight.copy_(torch.tensor(number).expand_as(weight))


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
