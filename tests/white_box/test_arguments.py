"""The arguments that a load is known to take are those that it takes."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import nnterp
from nnterp.engines.arguments import of_transformers


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma3_text"])
def test_whatever_from_pretrained_takes_is_taken(
    tiny_folder: Callable[[str], Path], name: str
) -> None:
    """Held against what transformers' own load of the checkpoint says of each name."""
    from transformers import AutoConfig, AutoModelForCausalLM

    path = tiny_folder(name)
    config = AutoConfig.from_pretrained(path)
    known = of_transformers(nnterp.StandardizedTransformer, config, {})
    refused = []
    for given in {*config.to_dict(), *config.attribute_map, *known.names, *NAMES}:
        if not known.others and given not in known:
            with pytest.raises(TypeError, match=f"unexpected keyword argument '{given}'"):
                AutoModelForCausalLM.from_pretrained(path, **{given: None})
            refused.append(given)
    assert {"enable_attention_probs", "max_memroy", "max_model_len"} <= set(refused)
    assert {"device_map", "max_memory", "quantization_config", "key_mapping"} <= known.names


#: Arguments people pass, of which some are taken and others not.
NAMES = (
    *("enable_attention_probs", "max_memroy", "max_model_len", "sliding_window", "rope_theta"),
    *("load_in_4bit", "use_flash_attention_2", "low_cpu_mem_usage", "n_embd", "hidden_size"),
    *("tie_word_embeddings", "temperature", "num_beams", "problem_type", "id2label", "seed"),
    *("pruned_heads", "output_attentions", "use_cache", "attn_implementation", "variant"),
)
