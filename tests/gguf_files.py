"""Small GGUF files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gguf
import numpy as np


def write(path: Path, seed: int) -> dict[str, Any]:
    """A llama of one block in a GGUF file; its weights, which are random."""
    numbers = np.random.default_rng(seed)
    shapes = {"token_embd": (32, 32), "output_norm": (32,), "output": (32, 32)}
    shapes |= {f"blk.0.{name}": (32,) for name in ("attn_norm", "ffn_norm")}
    shapes |= {f"blk.0.attn_{name}": (32, 32) for name in ("q", "output")}
    shapes |= {f"blk.0.attn_{name}": (16, 32) for name in ("k", "v")}
    shapes |= {f"blk.0.ffn_{name}": (64, 32) for name in ("gate", "up")}
    shapes |= {"blk.0.ffn_down": (32, 64)}
    weights = {
        name: numbers.standard_normal(shape, dtype=np.float32) for name, shape in shapes.items()
    }
    path.parent.mkdir(exist_ok=True)
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_context_length(64)
    writer.add_embedding_length(32)
    writer.add_feed_forward_length(64)
    writer.add_head_count(2)
    writer.add_head_count_kv(1)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_rope_dimension_count(16)
    writer.add_vocab_size(32)
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(["ab", *(chr(97 + token) for token in range(31))])
    writer.add_token_merges(["a b"])
    writer.add_token_types([1] * 32)
    writer.add_bos_token_id(1)
    writer.add_eos_token_id(2)
    for name, weight in weights.items():
        writer.add_tensor(f"{name}.weight", weight)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return weights
