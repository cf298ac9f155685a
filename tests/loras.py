"""LoRA adapters of tiny checkpoints, and the same checkpoints with the adapters merged in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file

RANK = 4


def write(checkpoint: Path, folder: Path, seed: int, names: Sequence[str]) -> Path:
    """Write a random adapter of the linear maps of ``checkpoint`` called ``names``; its folder."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(checkpoint)
    random = torch.Generator().manual_seed(seed)
    weights = {}
    for path, module in model.named_modules():
        if path.rpartition(".")[2] in names:
            rows, columns = module.weight.shape
            stem = f"base_model.model.{path}"
            weights[f"{stem}.lora_A.weight"] = torch.randn(RANK, columns, generator=random) * 0.3
            weights[f"{stem}.lora_B.weight"] = torch.randn(rows, RANK, generator=random) * 0.3
    folder.mkdir(exist_ok=True)
    save_file(weights, folder / "adapter_model.safetensors")
    config = {"peft_type": "LORA", "r": RANK, "lora_alpha": RANK, "target_modules": list(names)}
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return folder


def merge(model: Any, adapter: Path) -> None:
    """Add the adapter to the weights of a transformers module, in place."""
    from safetensors.torch import load_file

    weights = load_file(adapter / "adapter_model.safetensors")
    for name in weights:
        if name.endswith(".lora_A.weight"):
            stem = name.removesuffix(".lora_A.weight")
            module = model.get_submodule(stem.removeprefix("base_model.model."))
            with torch.no_grad():
                module.weight += weights[f"{stem}.lora_B.weight"] @ weights[name]
