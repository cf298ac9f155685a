"""The tiny checkpoints, a row each: a ``model_type`` and the config that makes it tell.

Two blocks, 64 wide, heads of 32, a vocabulary of 256 bytes, windows shorter than the prompt,
multipliers that are not 1: a feature that changes nothing could be left out unnoticed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from nnterp.advice.ignored_fields import IGNORED_FIELDS, IgnoredField

#: The values of every config that has them, where its row says nothing else.
GENERIC: Mapping[str, Any] = {
    "vocab_size": 256,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 32,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "sliding_window": 8,
    "num_experts": 4,
    "num_local_experts": 4,
    "num_experts_per_tok": 2,
    "moe_intermediate_size": 64,
    "n_routed_experts": 4,
    "n_group": 1,
    "topk_group": 1,
    "initializer_range": 0.1,
}


#: The part of a model that takes images, and sees none here, where its config has these.
VISION: Mapping[str, Any] = {
    "hidden_size": 32,
    "embed_dim": 32,
    "out_hidden_size": 64,
    "intermediate_size": 48,
    "num_hidden_layers": 1,
    "depth": 1,
    "num_attention_heads": 2,
    "num_heads": 2,
    "image_size": 28,
    "patch_size": 14,
    "fullatt_block_indexes": [0],
    "deepstack_visual_indexes": [0],
    "num_position_embeddings": 16,
}

#: Without a processor in the checkpoint vLLM takes no images.
NO_IMAGES: Mapping[str, Any] = {"limit_mm_per_prompt": {"image": 0}}

#: Rotary frequencies dealt out to the three axes of a position.
THREE_AXES: Mapping[str, Any] = {
    "rope_type": "default",
    "rope_theta": 10000.0,
    "mrope_section": [4, 6, 6],
}

NO_TORCHVISION = "vLLM's own takes torchvision, which these tests do without"


@dataclass(frozen=True)
class Tiny:
    """One checkpoint.

    Attributes:
        model_type: The family.
        config: Its config's values beside the generic ones.
        without: The generic values it does without.
        patch: What is written to its config.json all the same, because vLLM reads it there
            and transformers does not save it.
        weights: The numbers that some of its weights are, by the end of their names: one for
            all of a weight, or one for each of its last dimension.
        attention: The transformers attention it is held against.
        hidden_states: The value of each block that transformers' own hidden states are; empty
            where its records are of more runs than the values.
        inside: The kind of model, taking images as well, that its decoder is written inside of.
        engine: What vLLM needs to be told of it.
        not_on_vllm: Why it is held against transformers alone.
        limits: How far a value may be from transformers', and why, where that is further
            than rounding; by its name, by ``edit`` or ``decoded`` for all of those, or by both,
            as in ``own.attention_probabilities``.
    """

    model_type: str
    config: Mapping[str, Any] = field(default_factory=dict)
    without: tuple[str, ...] = ()
    patch: Mapping[str, Any] = field(default_factory=dict)
    weights: Mapping[str, float | Sequence[float]] = field(default_factory=dict)
    attention: str = "eager"
    hidden_states: str = "layer_input"
    inside: str = ""
    engine: Mapping[str, Any] = field(default_factory=dict)
    not_on_vllm: str = ""
    limits: Mapping[str, tuple[float, str]] = field(default_factory=dict)


GPT2 = Tiny(
    "gpt2",
    {
        "n_positions": 128,
        "n_embd": 64,
        "n_layer": 2,
        "n_head": 2,
        "resid_pdrop": 0.0,
        "embd_pdrop": 0.0,
        "attn_pdrop": 0.0,
    },
    without=(
        "hidden_size",
        "num_hidden_layers",
        "num_attention_heads",
        "max_position_embeddings",
    ),
)

TINY: Mapping[str, Tiny] = {
    "llama": Tiny("llama", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "mistral": Tiny("mistral", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "mixtral": Tiny("mixtral", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "qwen2": Tiny("qwen2"),
    "qwen3": Tiny("qwen3", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "gemma": Tiny("gemma", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "phi3": Tiny("phi3"),
    "granite": Tiny(
        "granite",
        {
            "residual_multiplier": 0.5,
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
    ),
    "olmo": Tiny("olmo", {"clip_qkv": 1.0}),
    "olmo2": Tiny("olmo2"),
    "glm": Tiny("glm", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "starcoder2": Tiny("starcoder2"),
    "smollm3": Tiny(
        "smollm3",
        {
            "no_rope_layers": [1, 0],
            "use_sliding_window": True,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "arcee": Tiny("arcee", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "seed_oss": Tiny(
        "seed_oss",
        {"num_attention_heads": 4, "num_key_value_heads": 2, "attention_out_bias": True},
    ),
    "helium": Tiny("helium"),
    "ministral3": Tiny(
        "ministral3",
        {
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 1000000.0,
                "factor": 2.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
                "llama_4_scaling_beta": 0.1,
            }
        },
    ),
    "gemma2": Tiny(
        "gemma2",
        {
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 10.0,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "gemma3_text": Tiny(
        "gemma3_text",
        {"query_pre_attn_scalar": 16, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "gemma3_text_untied": Tiny(
        "gemma3_text",
        {
            "query_pre_attn_scalar": 16,
            "final_logit_softcapping": 10.0,
            "layer_types": ["sliding_attention", "full_attention"],
            "tie_word_embeddings": False,
        },
    ),
    "gemma3n_text": Tiny(
        "gemma3n_text",
        {
            "num_hidden_layers": 4,
            "intermediate_size": [128, 128, 128, 128],
            "layer_types": [
                "sliding_attention",
                "full_attention",
                "sliding_attention",
                "full_attention",
            ],
            "vocab_size_per_layer_input": 256,
            "hidden_size_per_layer_input": 32,
            "num_kv_shared_layers": 2,
            "laurel_rank": 16,
            "activation_sparsity_pattern": [0.95, 0.0, 0.0, 0.0],
            "head_dim": 32,
        },
        not_on_vllm="vLLM leaves out the embeddings of each layer",
    ),
    "gemma4_text": Tiny(
        "gemma4_text",
        {
            "num_hidden_layers": 4,
            "layer_types": [
                "sliding_attention",
                "full_attention",
                "sliding_attention",
                "full_attention",
            ],
            "vocab_size_per_layer_input": 256,
            "hidden_size_per_layer_input": 32,
            "num_kv_shared_layers": 2,
            "head_dim": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "global_head_dim": 64,
        },
        without=(
            "head_dim",
            "num_key_value_heads",
            "num_experts",
            "moe_intermediate_size",
            "num_experts_per_tok",
        ),
    ),
    "gemma4_text_moe": Tiny(
        "gemma4_text",
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "vocab_size_per_layer_input": 256,
            "hidden_size_per_layer_input": 0,
            "num_kv_shared_layers": 0,
            "head_dim": 32,
            "enable_moe_block": True,
            "num_experts": 4,
            "top_k_experts": 2,
            "moe_intermediate_size": 64,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "global_head_dim": 64,
        },
        without=("head_dim", "num_key_value_heads"),
    ),
    "qwen2_moe": Tiny(
        "qwen2_moe", {"shared_expert_intermediate_size": 64, "decoder_sparse_step": 1}
    ),
    "qwen3_moe": Tiny("qwen3_moe", {"decoder_sparse_step": 1, "mlp_only_layers": [0]}),
    "olmo3": Tiny("olmo3", {"layer_types": ["sliding_attention", "full_attention"]}),
    "olmoe": Tiny("olmoe", {"intermediate_size": 64}),
    "gpt2": GPT2,
    "gpt2_upcast": replace(
        GPT2,
        config={**GPT2.config, "reorder_and_upcast_attn": True},
        not_on_vllm="vLLM refuses it",
    ),
    "gptj": Tiny(
        "gptj",
        {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 2, "rotary_dim": 16},
        without=(
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
        ),
    ),
    "gpt_neox": Tiny("gpt_neox", {"num_attention_heads": 2}),
    "gpt_neox_sequential": Tiny(
        "gpt_neox", {"num_attention_heads": 2, "use_parallel_residual": False}
    ),
    "gpt_bigcode": Tiny(
        "gpt_bigcode",
        {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 2, "n_inner": 128},
        without=(
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
            "intermediate_size",
        ),
    ),
    "gpt_oss": Tiny(
        "gpt_oss",
        {
            "intermediate_size": 64,
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {
                "rope_type": "yarn",
                "factor": 2.0,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "truncate": False,
                "original_max_position_embeddings": 64,
                "rope_theta": 150000.0,
            },
        },
    ),
    "opt": Tiny(
        "opt", {"ffn_dim": 128, "num_attention_heads": 2, "word_embed_proj_dim": 64, "dropout": 0.0}
    ),
    "opt_post_norm": Tiny(
        "opt",
        {
            "ffn_dim": 128,
            "num_attention_heads": 2,
            "word_embed_proj_dim": 32,
            "dropout": 0.0,
            "do_layer_norm_before": False,
        },
    ),
    "bloom": Tiny(
        "bloom",
        {"n_layer": 2, "n_head": 2},
        without=("num_hidden_layers", "num_attention_heads"),
        limits={
            name: (size, "vLLM has the exact GELU, transformers the approximation by tanh")
            for name, size in {
                "attention_queries": 2.5e-4,
                "attention_keys": 2.5e-4,
                "attention_values": 2.5e-4,
                "attention_scores": 4e-4,
                "attention_probabilities": 4e-4,
                "attention_head_outputs": 5e-4,
                "attention_output": 4e-4,
                "mlp_output": 5e-4,
                "layer_input": 2e-4,
                "projected": 4e-4,
                "layer_output": 3e-4,
                "logits": 2.5e-4,
                "next_token_probs": 5e-4,
                "edit": 3.5e-4,
                "decoded": 6e-4,
                "edited": 5e-4,
            }.items()
        },
    ),
    "falcon": Tiny(
        "falcon",
        {
            "num_attention_heads": 2,
            "multi_query": True,
            "parallel_attn": True,
            "num_kv_heads": 1,
            "ffn_hidden_size": 256,
        },
        without=("head_dim",),
    ),
    "falcon_new": Tiny(
        "falcon",
        {
            "num_attention_heads": 2,
            "num_kv_heads": 1,
            "new_decoder_architecture": True,
            "parallel_attn": True,
            "ffn_hidden_size": 256,
        },
        without=("head_dim",),
    ),
    "stablelm": Tiny(
        "stablelm", {"num_attention_heads": 2, "num_key_value_heads": 1, "use_qkv_bias": True}
    ),
    "stablelm_parallel": Tiny(
        "stablelm",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "use_parallel_residual": True,
            "qk_layernorm": True,
        },
        not_on_vllm="vLLM has neither its parallel blocks nor its norms of queries and keys",
    ),
    "phi": Tiny("phi", {"num_attention_heads": 2, "num_key_value_heads": 2}),
    "phimoe": Tiny(
        "phimoe",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "input_jitter_noise": 0.0,
            "router_jitter_noise": 0.01,
            "attention_bias": True,
            "lm_head_bias": False,
        },
        patch={"architectures": ["PhiMoEForCausalLM"]},
    ),
    "cohere": Tiny(
        "cohere", {"num_attention_heads": 2, "num_key_value_heads": 1, "use_qk_norm": True}
    ),
    "cohere2": Tiny(
        "cohere2",
        {"sliding_window": 32, "layer_types": ["sliding_attention", "full_attention"]},
    ),
    "cohere2_moe": Tiny(
        "cohere2_moe",
        {
            "sliding_window": 32,
            "layer_types": ["sliding_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse"],
        },
    ),
    "granitemoe": Tiny(
        "granitemoe",
        {
            "intermediate_size": 64,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
    ),
    "granitemoeshared": Tiny(
        "granitemoeshared",
        {
            "intermediate_size": 64,
            "shared_intermediate_size": 64,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
    ),
    "granite_swa": Tiny(
        "granite_swa",
        {
            "residual_multiplier": 0.5,
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "layer_types": ["sliding_attention", "full_attention"],
            "layer_rope_theta": [10000.0, 0.0],
        },
        limits={
            "own.attention_probabilities": (
                1.0,
                "transformers returns the pattern before its sinks take their share",
            )
        },
    ),
    "granitemoe_swa": Tiny(
        "granitemoe_swa",
        {
            "intermediate_size": 64,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "layer_types": ["sliding_attention", "full_attention"],
            "layer_rope_theta": [10000.0, 10000.0],
            "shared_intermediate_size": 0,
        },
        limits={
            "own.attention_probabilities": (
                1.0,
                "transformers returns the pattern before its sinks take their share",
            )
        },
    ),
    "granitemoehybrid": Tiny(
        "granitemoehybrid",
        {
            "intermediate_size": 64,
            "shared_intermediate_size": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "layer_types": ["linear_attention", "full_attention"],
            "mamba_n_heads": 4,
            "mamba_d_state": 16,
            "mamba_d_head": 32,
            "mamba_chunk_size": 32,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
        },
    ),
    "granitemoehybrid_attn": Tiny(
        "granitemoehybrid",
        {
            "intermediate_size": 64,
            "shared_intermediate_size": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "layer_types": ["full_attention", "full_attention"],
            "mamba_n_heads": 4,
            "mamba_d_state": 16,
            "mamba_d_head": 32,
            "mamba_chunk_size": 32,
            "residual_multiplier": 0.5,
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
        },
    ),
    "granitemoehybrid_dense": Tiny(
        "granitemoehybrid",
        {
            "num_local_experts": 0,
            "shared_intermediate_size": 64,
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "layer_types": ["linear_attention", "full_attention"],
            "mamba_n_heads": 4,
            "mamba_d_state": 16,
            "mamba_d_head": 32,
            "mamba_chunk_size": 32,
            "residual_multiplier": 0.5,
        },
    ),
    "nemotron": Tiny("nemotron", {"num_key_value_heads": 2}),
    "exaone4": Tiny(
        "exaone4",
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
    ),
    "exaone_moe": Tiny(
        "exaone_moe",
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse"],
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
        },
    ),
    "glm4": Tiny("glm4"),
    "glm4_moe": Tiny(
        "glm4_moe",
        {
            "first_k_dense_replace": 1,
            "use_qk_norm": True,
            "num_nextn_predict_layers": 0,
            "attention_bias": True,
            "routed_scaling_factor": 1.5,
        },
        patch={"head_dim": 32},
    ),
    "glm4_moe_lite": Tiny(
        "glm4_moe_lite",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "mlp_layer_types": ["dense", "sparse"],
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 2.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
        without=("head_dim",),
        patch={"first_k_dense_replace": 1},
    ),
    "minicpm3": Tiny(
        "minicpm3",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 32,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 32,
            "v_head_dim": 32,
            "dim_model_base": 32,
            "head_dim": 32,
        },
    ),
    "longcat_flash": Tiny(
        "longcat_flash",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "num_layers": 2,
            "ffn_hidden_size": 128,
            "expert_ffn_hidden_size": 64,
            "moe_topk": 2,
            "zero_expert_num": 2,
            "head_dim": 64,
        },
        without=("num_hidden_layers",),
        patch={
            "zero_expert_type": "identity",
            "mla_scale_q_lora": True,
            "mla_scale_kv_lora": True,
            "router_bias": False,
        },
        not_on_vllm="vLLM's CPU build lacks the kernels of its router",
    ),
    "axk1": Tiny(
        "axk1",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "first_k_dense_replace": 0,
            "n_shared_experts": 1,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 2.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
        without=("head_dim",),
    ),
    "llama4_text": Tiny(
        "llama4_text",
        {
            "intermediate_size": 64,
            "intermediate_size_mlp": 128,
            "num_experts_per_tok": 1,
            "moe_layers": [1],
            "layer_types": ["chunked_attention", "full_attention"],
            "no_rope_layers": [1, 0],
            "attention_chunk_size": 128,
            # vLLM takes it from generation_config.json, or from the longest text it may meet.
            "attn_temperature_tuning": False,
            "interleave_moe_layer_step": 2,
        },
    ),
    "ernie4_5": Tiny("ernie4_5", {"num_attention_heads": 2, "num_key_value_heads": 1}),
    "ernie4_5_moe": Tiny(
        "ernie4_5_moe",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "moe_k": 2,
            "moe_num_experts": 4,
            "moe_num_shared_experts": 1,
            "moe_layer_start_index": 1,
            "moe_layer_end_index": 1,
        },
        # vLLM's CPU router leaves the correction out.
        weights={"e_score_correction_bias": 0.0},
    ),
    "hyperclovax": Tiny(
        "hyperclovax",
        {
            "residual_multiplier": 0.5,
            "embedding_multiplier": 2.0,
            "attention_multiplier": 0.2,
            "logits_scaling": 2.0,
        },
    ),
    "apertus": Tiny(
        "apertus",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
        # vLLM keeps both in bfloat16, and so their softplus: these two are next to exact there.
        weights={"alpha_p": 0.388671875, "alpha_n": -0.027099609375},
        limits={"edited": (3e-3, "next to exact is not exact, and a stream of zeros is small")},
    ),
    "afmoe": Tiny(
        "afmoe",
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "num_dense_layers": 1,
            "num_shared_experts": 1,
            "mup_enabled": True,
            "route_scale": 1.5,
        },
        patch={"score_func": "sigmoid", "route_norm": True, "n_group": 1, "topk_group": 1},
    ),
    "hy_v3": Tiny(
        "hy_v3",
        {"mlp_layer_types": ["dense", "sparse"]},
        patch={
            "first_k_dense_replace": 1,
            "qk_norm": True,
            "route_norm": True,
            "moe_router_use_sigmoid": True,
            "expert_hidden_dim": 64,
        },
    ),
    "minimax_m2": Tiny(
        "minimax_m2",
        {"intermediate_size": 64, "rotary_dim": 16},
        patch={
            "scoring_func": "sigmoid",
            "use_routing_bias": True,
            "rotary_dim": 16,
            "attn_type_list": [1, 1],
            "num_mtp_modules": 0,
        },
        not_on_vllm="vLLM's CPU router serves softmax scores only",
    ),
    "laguna": Tiny(
        "laguna",
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "num_attention_heads_per_layer": [2, 4],
            "mlp_layer_types": ["dense", "sparse"],
            "shared_expert_intermediate_size": 64,
            "moe_routed_scaling_factor": 1.5,
            "moe_router_logit_softcapping": 2.0,
        },
        not_on_vllm="vLLM's CPU router serves softmax scores only",
    ),
    "mimo_v2_flash": Tiny(
        "mimo_v2_flash",
        {
            "layer_types": ["full_attention", "sliding_attention"],
            "mlp_layer_types": ["dense", "sparse"],
            "v_head_dim": 32,
        },
        patch={
            "hybrid_layer_pattern": [0, 1],
            "moe_layer_freq": [0, 1],
            "swa_head_dim": 32,
            "swa_v_head_dim": 32,
            "swa_num_attention_heads": 2,
            "swa_num_key_value_heads": 2,
            "sliding_window_size": 8,
            "layernorm_epsilon": 1e-05,
            "swa_rope_theta": 10000.0,
            "rope_theta": 5000000.0,
            "partial_rotary_factor": 0.334,
            "add_swa_attention_sink_bias": True,
        },
    ),
    "dbrx": Tiny(
        "dbrx",
        {
            "d_model": 64,
            "n_heads": 2,
            "n_layers": 2,
            "max_seq_len": 128,
            "vocab_size": 256,
            "attn_config": {"kv_n_heads": 1, "clip_qkv": 8.0, "rope_theta": 10000.0},
            "ffn_config": {
                "hidden_size": 64,
                "ffn_hidden_size": 64,
                "moe_num_experts": 4,
                "moe_top_k": 2,
            },
        },
        without=(
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
            "num_key_value_heads",
            "intermediate_size",
        ),
        not_on_vllm="vLLM does not find the experts of a checkpoint that transformers 5 saved",
    ),
    "hrm_text": Tiny(
        "hrm_text",
        {
            "num_layers_per_stack": 2,
            "H_cycles": 2,
            "L_cycles": 3,
            "prefix_lm": False,
            "embedding_scale": 2.0,
        },
        without=("num_hidden_layers",),
        hidden_states="",
        not_on_vllm="vLLM's prefill looks both ways",
    ),
    "mamba": Tiny(
        "mamba",
        {"state_size": 16, "time_step_rank": 4, "expand": 2, "intermediate_size": 128},
        hidden_states="layer_output",
        not_on_vllm="vLLM's CPU build lacks selective_scan_fwd",
    ),
    "falcon_mamba": Tiny(
        "falcon_mamba",
        {"state_size": 16, "time_step_rank": 4, "expand": 2, "intermediate_size": 128},
        hidden_states="layer_output",
        not_on_vllm="vLLM's CPU build lacks selective_scan_fwd",
    ),
    "mamba2": Tiny(
        "mamba2",
        {
            "num_heads": 4,
            "head_dim": 32,
            "state_size": 16,
            "expand": 2,
            "n_groups": 1,
            "chunk_size": 8,
        },
        hidden_states="layer_output",
    ),
    "jamba": Tiny(
        "jamba",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "attn_layer_period": 2,
            "attn_layer_offset": 1,
            "expert_layer_period": 2,
            "expert_layer_offset": 1,
            "mamba_dt_rank": 4,
            "use_mamba_kernels": False,
        },
        not_on_vllm="vLLM's CPU build lacks selective_scan_fwd",
    ),
    "falcon_h1": Tiny(
        "falcon_h1",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "mamba_d_ssm": 64,
            "mamba_n_heads": 4,
            "mamba_d_head": 16,
            "mamba_d_state": 16,
            "mamba_chunk_size": 8,
            "mamba_n_groups": 2,
            "mamba_rms_norm": True,
            "mamba_norm_before_gate": False,
            "key_multiplier": 0.5,
            "attention_in_multiplier": 1.5,
            "attention_out_multiplier": 0.7,
            "ssm_in_multiplier": 1.2,
            "ssm_out_multiplier": 0.6,
            "ssm_multipliers": [0.9, 1.1, 0.8, 1.2, 0.7],
            "embedding_multiplier": 2.0,
            "lm_head_multiplier": 0.5,
            "mlp_multipliers": [0.8, 0.9],
        },
    ),
    "rwkv": Tiny(
        "rwkv",
        {"context_length": 128, "attention_hidden_size": 64},
        hidden_states="layer_output",
        not_on_vllm="vLLM does not support it",
    ),
    "xlstm": Tiny(
        "xlstm",
        {"num_heads": 2, "qk_dim_factor": 1.0, "chunk_size": 8, "output_logit_soft_cap": 10.0},
        not_on_vllm="vLLM does not support it",
    ),
    "minimax": Tiny(
        "minimax",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "block_size": 8,
            "linear_attn_alpha_factor": 1.5,
            "linear_attn_beta_factor": 0.7,
            "full_attn_alpha_factor": 1.3,
            "full_attn_beta_factor": 0.8,
            "mlp_alpha_factor": 1.2,
            "mlp_beta_factor": 0.9,
        },
        not_on_vllm="vLLM removed its definition after 0.23",
    ),
    "lfm2": Tiny(
        "lfm2",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "block_auto_adjust_ff_dim": False,
            "layer_types": ["conv", "full_attention"],
            "full_attn_idxs": [1],
        },
        patch={
            "conv_dim": 64,
            "block_dim": 64,
            "block_ff_dim": 128,
            "block_mlp_init_scale": 1.0,
            "conv_dim_out": 64,
            "block_use_swiglu": True,
            "block_auto_adjust_ff_dim": False,
        },
        not_on_vllm="vLLM's CPU rotary kernel is wrong for it",
    ),
    "lfm2_moe": Tiny(
        "lfm2_moe",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "num_dense_layers": 1,
            "layer_types": ["conv", "full_attention"],
        },
        not_on_vllm="vLLM's CPU rotary kernel is wrong for it",
    ),
    "qwen3_next": Tiny(
        "qwen3_next",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "shared_expert_intermediate_size": 64,
        },
        not_on_vllm="vLLM's CPU kernel for it runs in bfloat16 only",
    ),
    "qwen3_5_text": Tiny(
        "qwen3_5_text",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
        },
        not_on_vllm="vLLM's CPU build has no Triton for it",
    ),
    "qwen3_5_moe_text": Tiny(
        "qwen3_5_moe_text",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "shared_expert_intermediate_size": 64,
        },
        not_on_vllm="vLLM's CPU build has no Triton for it",
    ),
    "olmo_hybrid": Tiny(
        "olmo_hybrid",
        {
            "layer_types": ["linear_attention", "full_attention"],
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "num_attention_heads": 2,
            "num_key_value_heads": 2,
        },
        not_on_vllm="vLLM's CPU build has no Triton for it",
    ),
    "nemotron_h": Tiny(
        "nemotron_h",
        {
            "layers_block_type": ["linear_attention", "moe", "full_attention", "mlp"],
            "ssm_state_size": 16,
            "mamba_num_heads": 4,
            "mamba_head_dim": 32,
            "n_groups": 2,
            "chunk_size": 8,
            "time_step_min": 1e-9,
            "moe_shared_expert_intermediate_size": 64,
        },
        without=("num_hidden_layers",),
        not_on_vllm="vLLM's CPU build has no mixture without a gate",
    ),
    "zamba": Tiny(
        "zamba",
        {
            "num_hidden_layers": 3,
            "layers_block_type": ["hybrid", "linear_attention", "hybrid"],
            "mamba_d_state": 16,
            "mamba_dt_rank": 4,
            "n_mamba_heads": 2,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "use_mamba_kernels": False,
        },
        without=("head_dim",),
        not_on_vllm="vLLM does not support it",
    ),
    "recurrent_gemma": Tiny(
        "recurrent_gemma",
        {
            "block_types": ["recurrent", "attention"],
            "lru_width": 64,
            "attention_window_size": 8,
            "logits_soft_cap": 10.0,
        },
        not_on_vllm="vLLM does not support it",
    ),
    "zamba2": Tiny(
        "zamba2",
        {
            "num_hidden_layers": 3,
            "layers_block_type": ["linear_attention", "hybrid", "hybrid"],
            "mamba_d_state": 16,
            "mamba_ngroups": 2,
            "n_mamba_heads": 8,
            "chunk_size": 8,
            "time_step_min": 1e-9,
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "adapter_rank": 8,
            "use_mem_rope": True,
        },
        without=("head_dim",),
        limits={"edited": (5e-5, "rounding: on one engine, two ways of one edit are as far apart")},
    ),
    "cwm": Tiny(
        "cwm",
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "flex_olmo": Tiny("flex_olmo"),
    "hunyuan_v1_dense": Tiny(
        "hunyuan_v1_dense",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "rope_parameters": {
                "rope_type": "dynamic",
                "alpha": 1000.0,
                "factor": 1.0,
                "rope_theta": 10000.0,
            },
        },
    ),
    "hunyuan_v1_moe": Tiny(
        "hunyuan_v1_moe",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "moe_topk": 2,
            "rope_parameters": {
                "rope_type": "dynamic",
                "alpha": 1000.0,
                "factor": 1.0,
                "rope_theta": 10000.0,
            },
        },
    ),
    "jais2": Tiny("jais2", {"num_attention_heads": 4, "num_key_value_heads": 2}),
    "mellum": Tiny(
        "mellum",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "layer_types": ["sliding_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse"],
            "rope_parameters": {
                "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
                "full_attention": {
                    "rope_type": "yarn",
                    "rope_theta": 10000.0,
                    "factor": 2.0,
                    "original_max_position_embeddings": 64,
                },
            },
        },
    ),
    "vaultgemma": Tiny(
        "vaultgemma",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "query_pre_attn_scalar": 16,
            "attn_logit_softcapping": 5.0,
            "final_logit_softcapping": 5.0,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "ministral": Tiny("ministral", {"layer_types": ["sliding_attention", "full_attention"]}),
    "mpt": Tiny(
        "mpt",
        {
            "d_model": 64,
            "n_heads": 2,
            "n_layers": 2,
            "max_seq_len": 128,
            "attn_config": {"clip_qkv": 1.0, "softmax_scale": 0.3},
        },
        without=(
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
        ),
        not_on_vllm="vLLM removed its definition after 0.28",
    ),
    "dots1": Tiny(
        "dots1",
        {
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "n_group": 2,
            "routed_scaling_factor": 2.5,
            "norm_topk_prob": True,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    ),
    "bitnet": Tiny("bitnet"),
    "nanochat": Tiny("nanochat", {"final_logit_softcapping": 5.0}),
    "persimmon": Tiny("persimmon", {"num_attention_heads": 2}),
    "biogpt": Tiny("biogpt", {"num_attention_heads": 2}),
    "gpt_neo": Tiny(
        "gpt_neo",
        {
            "num_layers": 2,
            "num_heads": 2,
            "attention_types": [[["global", "local"], 1]],
            "window_size": 8,
        },
        without=("num_hidden_layers", "num_attention_heads"),
        not_on_vllm="vLLM does not support it",
    ),
    "codegen": Tiny(
        "codegen",
        {
            "n_positions": 128,
            "n_embd": 64,
            "n_layer": 2,
            "n_head": 4,
            "n_ctx": 128,
            "rotary_dim": 16,
        },
        without=(
            "hidden_size",
            "num_hidden_layers",
            "num_attention_heads",
            "max_position_embeddings",
        ),
        not_on_vllm="vLLM does not support it",
    ),
    "xglm": Tiny(
        "xglm",
        {"d_model": 64, "ffn_dim": 128, "num_layers": 2, "attention_heads": 2},
        without=("hidden_size", "num_hidden_layers", "num_attention_heads"),
        not_on_vllm="vLLM does not support it",
    ),
    "solar_open": Tiny(
        "solar_open",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "n_shared_experts": 1,
            "n_group": 2,
            "routed_scaling_factor": 2.5,
        },
    ),
    "doge": Tiny(
        "doge",
        {"keep_window_size": 6},
        weights={"input_residual": 0.8, "post_attention_residual": 1.25, ".A": 0.5},
        not_on_vllm="vLLM does not apply its dynamic mask",
    ),
    "doge_moe": Tiny(
        "doge",
        {"keep_window_size": 6, "is_moe": True, "num_experts": 16},
        weights={"input_residual": 0.8, "post_attention_residual": 1.25, ".A": 0.5},
        not_on_vllm="vLLM does not apply its dynamic mask",
        limits={
            "untouched": (1e-3, "its router gives a token scores of others, so one changes others")
        },
    ),
    "bamba": Tiny(
        "bamba",
        {
            "num_attention_heads": 2,
            "num_key_value_heads": 1,
            "attn_layer_indices": [1],
            "mamba_n_heads": 4,
            "mamba_d_state": 16,
            "mamba_d_head": 32,
        },
        not_on_vllm="vLLM removed its definition, and its Transformers backend refuses it",
    ),
    "falcon_rw": Tiny(
        "falcon",
        {
            "num_attention_heads": 2,
            "multi_query": False,
            "parallel_attn": False,
            "num_kv_heads": 2,
            "alibi": True,
            "bias": True,
            "ffn_hidden_size": 256,
        },
        without=("head_dim",),
        attention="sdpa",
    ),
    "deepseek_v3": Tiny(
        "deepseek_v3",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "head_dim": 64,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "num_nextn_predict_layers": 0,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 2.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
        patch={"topk_method": "noaux_tc", "scoring_func": "sigmoid"},
    ),
    "deepseek_v2": Tiny(
        "deepseek_v2",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "head_dim": 64,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "topk_method": "greedy",
            "n_group": 1,
            "topk_group": 1,
            "rope_parameters": {
                "rope_type": "yarn",
                "rope_theta": 10000.0,
                "factor": 2.0,
                "original_max_position_embeddings": 64,
                "beta_fast": 32.0,
                "beta_slow": 1.0,
                "mscale": 1.0,
                "mscale_all_dim": 1.0,
            },
        },
    ),
    "nemotron_h_no_moe": Tiny(
        "nemotron_h",
        {
            "layers_block_type": ["linear_attention", "full_attention", "mlp"],
            "ssm_state_size": 16,
            "mamba_num_heads": 4,
            "mamba_head_dim": 32,
            "n_groups": 2,
            "chunk_size": 8,
            "time_step_min": 1e-9,
            "moe_shared_expert_intermediate_size": 64,
            "sliding_window": None,
        },
        without=("num_hidden_layers",),
    ),
    "kimi_linear": Tiny(
        "kimi_linear",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "layer_types": ["linear_attention", "full_attention"],
            "mlp_layer_types": ["dense", "sparse"],
            "linear_head_dim": 32,
            "linear_num_heads": 2,
            "num_experts_per_token": 2,
        },
        without=("head_dim",),
        not_on_vllm="not tried: GPU only in vLLM",
    ),
    "deepseek_v32": Tiny(
        "deepseek_v32",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "index_topk": 8,
            "index_n_heads": 2,
            "index_head_dim": 128,
        },
        without=("head_dim",),
        not_on_vllm="not tried: sparse attention, GPU only in vLLM",
    ),
    "glm_moe_dsa": Tiny(
        "glm_moe_dsa",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 512,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 64,
            "v_head_dim": 32,
            "first_k_dense_replace": 1,
            "n_shared_experts": 1,
            "index_topk": 8,
            "index_n_heads": 2,
            "index_head_dim": 128,
        },
        without=("head_dim",),
        not_on_vllm="not tried: sparse attention, GPU only in vLLM",
    ),
    "axk2": Tiny(
        "axk2",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 64,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 32,
            "v_head_dim": 32,
            "mlp_layer_types": ["dense", "sparse"],
            "n_shared_experts": 1,
            "index_topk": 8,
            "index_n_heads": 2,
            "index_head_dim": 64,
        },
        without=("head_dim",),
        not_on_vllm="vLLM takes the rotated width for its cache's, which its latent kernel refuses",
    ),
    "youtu": Tiny(
        "youtu",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 4,
            "kv_lora_rank": 64,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 32,
            "v_head_dim": 32,
        },
        without=("head_dim",),
        not_on_vllm="vLLM takes the rotated width for its cache's, which its latent kernel refuses",
    ),
    "deepseek_v4": Tiny(
        "deepseek_v4",
        {
            "num_hidden_layers": 3,
            "layer_types": [
                "heavily_compressed_attention",
                "compressed_sparse_attention",
                "sliding_attention",
            ],
            "mlp_layer_types": ["hash_moe", "moe", "moe"],
            "compress_rates": {
                "compressed_sparse_attention": 2,
                "heavily_compressed_attention": 8,
            },
            "q_lora_rank": 32,
            "o_groups": 2,
            "o_lora_rank": 32,
            "index_n_heads": 2,
            "index_head_dim": 32,
            "index_topk": 4,
        },
        not_on_vllm="several streams, on GPUs only in vLLM",
    ),
    "hy_v4": Tiny(
        "hy_v4",
        {
            "kv_lora_rank": 64,
            "q_lora_rank": 32,
            "qk_nope_head_dim": 32,
            "qk_rope_head_dim": 32,
            "v_head_dim": 32,
            "mlp_layer_types": ["dense", "sparse"],
            "indexer_types": ["full", "shared"],
            "index_n_heads": 2,
            "index_head_dim": 64,
            "index_topk": 8,
        },
        not_on_vllm="several streams, on GPUs only in vLLM",
    ),
    "inkling_text": Tiny(
        "inkling_text",
        {
            "layer_types": ["hybrid_sliding", "hybrid"],
            "mlp_layer_types": ["dense", "sparse"],
            "sliding_window_size": 8,
            "swa_head_dim": 16,
            "swa_num_attention_heads": 4,
            "swa_num_key_value_heads": 2,
            "rel_extent": 16,
            "log_scaling_n_floor": 4,
            "logits_mup_width_multiplier": 2.0,
            "unpadded_vocab_size": 250,
        },
        not_on_vllm="on GPUs only in vLLM",
    ),
    "qwen4_exp_text": Tiny(
        "qwen4_exp_text",
        {
            "layer_types": ["linear_attention", "indexed_attention"],
            "linear_key_head_dim": 32,
            "linear_value_head_dim": 32,
            "linear_num_key_heads": 2,
            "linear_num_value_heads": 2,
            "shared_expert_intermediate_size": 64,
            "hc_lowrank": 16,
            "ple_layer_ids": [1],
            "ple_embed_dim": 64,
            "heads_per_ngram": 2,
            "ngram_vocab_size_base": 100,
            "make_ngram_vocab_size_divisible_by": 8,
            "split_ngram_parts": 1,
            "indexer_n_heads": 2,
            "indexer_kv_heads": 1,
            "indexer_head_dim": 32,
            "indexer_budget": 8,
            "indexer_compress_ratio": 2,
        },
        not_on_vllm="several streams, on GPUs only in vLLM",
    ),
    "ctrl": Tiny(
        "ctrl",
        {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 2, "dff": 128},
        not_on_vllm="vLLM has no definition of it",
    ),
    "openai_gpt": Tiny(
        "openai-gpt",
        {"n_positions": 128, "n_embd": 64, "n_layer": 2, "n_head": 2},
        not_on_vllm="vLLM has no definition of it",
    ),
    "gpt_neox_japanese": Tiny(
        "gpt_neox_japanese",
        {"intermediate_multiple_size": 2},
        not_on_vllm="vLLM has no definition of it",
    ),
    "cohere_compass_text": Tiny(
        "cohere_compass_text",
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "logit_scale": 0.5,
            "rope_parameters": {
                "sliding_attention": {
                    "rope_type": "default",
                    "rope_theta": 10000.0,
                    "mrope_section": [6, 6, 4],
                },
                "full_attention": None,
            },
        },
        not_on_vllm="vLLM's Transformers backend has no three-axis positions for a text model",
    ),
    "aria_text": Tiny(
        "aria_text",
        {"moe_num_experts": 4, "moe_topk": 2, "moe_num_shared_experts": 1},
        not_on_vllm="vLLM's Transformers backend does not find how many experts a token has",
    ),
    "jetmoe": Tiny(
        "jetmoe",
        {"kv_channels": 32, "num_key_value_heads": 2},
        not_on_vllm="vLLM's Transformers backend has too few heads for the queries of its experts",
    ),
    "modernbert_decoder": Tiny(
        "modernbert-decoder",
        {"local_attention": 16, "layer_types": ["sliding_attention", "full_attention"]},
        not_on_vllm="vLLM has no definition of it",
    ),
    "diffllama": Tiny(
        "diffllama",
        {"num_attention_heads": 4, "num_key_value_heads": 2},
        not_on_vllm="vLLM's Transformers backend refuses its two attention calls",
    ),
    "gemma4_unified_text": Tiny(
        "gemma4_unified_text",
        {
            "num_hidden_layers": 4,
            "layer_types": [
                "sliding_attention",
                "full_attention",
                "sliding_attention",
                "full_attention",
            ],
            "num_kv_shared_layers": 2,
            "use_double_wide_mlp": True,
            "final_logit_softcapping": 5.0,
            "head_dim": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "global_head_dim": 64,
        },
        without=("head_dim", "num_key_value_heads"),
    ),
    "gemma4_unified_text_keys_as_values": Tiny(
        "gemma4_unified_text",
        {
            "layer_types": ["sliding_attention", "full_attention"],
            "head_dim": 32,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_global_key_value_heads": 1,
            "attention_k_eq_v": True,
            "global_head_dim": 64,
        },
        without=("head_dim", "num_key_value_heads"),
        weights={"layer_scalar": 0.7},
    ),
    "minimax_m3_vl_text": Tiny(
        "minimax_m3_vl_text",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "intermediate_size": 64,
            "dense_intermediate_size": 128,
            "shared_intermediate_size": 64,
            "rotary_dim": 16,
            "swiglu_limit": 1.0,
            "layer_types": ["full_attention", "minimax_m3_sparse"],
            "mlp_layer_types": ["dense", "sparse"],
            "index_n_heads": 2,
            "index_head_dim": 32,
            "index_block_size": 4,
            "index_topk_blocks": 2,
        },
        not_on_vllm="on GPUs only in vLLM, whose Transformers backend leaves out the indexer",
    ),
    "bert_generation": Tiny("bert-generation", {"is_decoder": True}),
    "zaya": Tiny(
        "zaya",
        {
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "num_experts_per_tok": 1,
            "router_hidden_size": 32,
            "layer_types": ["hybrid", "hybrid_sliding"],
        },
        weights={
            "hidden_states_scale": 0.8,
            "residual_scale": 1.2,
            "input_hidden_states_scale": 1.5,
            "router_states_scale": 0.7,
            "temp": 0.3,
        },
        not_on_vllm="vLLM's Transformers backend keeps no state of its convolutions",
    ),
    "llama_inside_idefics3": Tiny(
        "llama",
        {"num_attention_heads": 4, "num_key_value_heads": 2},
        inside="idefics3",
        engine=NO_IMAGES,
    ),
    "llama_inside_llava": Tiny("llama", inside="llava", not_on_vllm=NO_TORCHVISION),
    "mistral_inside_mistral3": Tiny("mistral", inside="mistral3", not_on_vllm=NO_TORCHVISION),
    "gemma3_text_inside_gemma3": Tiny("gemma3_text", inside="gemma3", not_on_vllm=NO_TORCHVISION),
    "qwen2_vl_text": Tiny(
        "qwen2_vl_text",
        {"rope_parameters": THREE_AXES},
        inside="qwen2_vl",
        not_on_vllm=NO_TORCHVISION,
    ),
    "qwen2_5_vl_text": Tiny(
        "qwen2_5_vl_text",
        {"rope_parameters": THREE_AXES},
        inside="qwen2_5_vl",
        not_on_vllm=NO_TORCHVISION,
    ),
    "qwen3_vl_text": Tiny(
        "qwen3_vl_text",
        {"rope_parameters": THREE_AXES},
        inside="qwen3_vl",
        not_on_vllm=NO_TORCHVISION,
    ),
    "qwen3_vl_moe_text": Tiny(
        "qwen3_vl_moe_text",
        {"rope_parameters": THREE_AXES, "norm_topk_prob": True},
        inside="qwen3_vl_moe",
        not_on_vllm=NO_TORCHVISION,
    ),
}


def _changed(name: str, **changes: Any) -> Tiny:
    """A row with other values in its config."""
    return replace(TINY[name], config={**TINY[name].config, **changes})


#: Checkpoints that an engine is known to compute wrongly, each a good one with the feature that
#: it gets wrong.
WRONG: Mapping[str, Tiny] = {
    "cohere2_windowed": _changed("cohere2", sliding_window=8),
    "cohere2_moe_windowed": _changed("cohere2_moe", sliding_window=8),
    "phimoe_biased_head": _changed("phimoe", lm_head_bias=True),
    "qwen3_biased": _changed("qwen3", attention_bias=True),
    "qwen3_moe_biased": _changed("qwen3_moe", attention_bias=True),
    "deepseek_v2_default_rope": _changed("deepseek_v2", rope_parameters={"rope_type": "default"}),
    "deepseek_v3_default_rope": _changed("deepseek_v3", rope_parameters={"rope_type": "default"}),
    "glm4_moe_lite_default_rope": _changed(
        "glm4_moe_lite", rope_parameters={"rope_type": "default"}
    ),
    "axk1_default_rope": _changed("axk1", rope_parameters={"rope_type": "default"}),
    "ernie4_5_moe_corrected": replace(TINY["ernie4_5_moe"], weights={}),
    "apertus_random": replace(TINY["apertus"], weights={}),
    "llama4_tempered": _changed("llama4_text", attn_temperature_tuning=True, floor_scale=4),
    "falcon_h1_norm_before_gate": _changed(
        "falcon_h1", mamba_rms_norm=True, mamba_norm_before_gate=True
    ),
    "nemotron_h_windowed": _changed("nemotron_h_no_moe", sliding_window=8),
    "nemotron_h_clamped": replace(
        _changed("nemotron_h_no_moe", time_step_min=0.001), weights={"dt_bias": -5.0}
    ),
    "zamba2_clamped": replace(_changed("zamba2", time_step_min=0.001), weights={"dt_bias": -5.0}),
    "mamba2_grouped": _changed("mamba2", n_groups=2),
    "falcon_rw_eager": replace(TINY["falcon_rw"], attention="eager"),
    "gemma4_text_silu": _changed("gemma4_text", hidden_activation="silu"),
    "axk1_eps": _changed("axk1", rms_norm_eps=1e-2),
    "deepseek_v2_eps": _changed("deepseek_v2", rms_norm_eps=1e-2),
    "deepseek_v3_eps": _changed("deepseek_v3", rms_norm_eps=1e-2),
    "glm4_moe_lite_eps": _changed("glm4_moe_lite", rms_norm_eps=1e-2),
    "minicpm3_eps": _changed("minicpm3", rms_norm_eps=1e-2),
}


def _otherwise(value: bool | float | str) -> bool | float | str:
    """Another value of a config's field than ``value``."""
    if isinstance(value, bool):
        return not value
    if isinstance(value, str):
        return "silu" if value != "silu" else "gelu_pytorch_tanh"
    return value * (1000 if value < 1e-3 else 2)


#: For each field that an engine does not read, of each family, a checkpoint that has it otherwise.
IGNORED: Mapping[str, IgnoredField] = {
    f"{model_type}_other_{row.field}": row
    for row in IGNORED_FIELDS
    for model_type in row.model_types
}
OTHERWISE: Mapping[str, Tiny] = {
    name: _changed(
        name.removesuffix(f"_other_{row.field}"), **{row.field: _otherwise(row.taken_for)}
    )
    for name, row in IGNORED.items()
}

ROWS: Mapping[str, Tiny] = {**TINY, **WRONG, **OTHERWISE}
