"""What is relied on of vLLM: its worker and engine, what a step holds, and the layers of a model.

vLLM promises its entry points alone. The runner's steps are overridden one by one, the scheduler's
output is read, and the scores that a kernel never holds are computed from the attributes of the
layer around it. Where kernels differ in what they have, each that a supported platform picks has
its own row; one that lacks an attribute does not compute what it stands for.
"""

from __future__ import annotations

from dataclasses import replace

from nnterp.foreign.internals import (
    Internal,
    attributes,
    class_,
    function,
    overridden,
    passed_on,
    variable,
    within,
    word,
)

_BACKENDS = "vllm.v1.attention.backends"
_ATTENTION = "engines.vllm.envoys.attention"


def _kernel(module: str, name: str, *constants: str) -> tuple[Internal, ...]:
    """The attributes of a kernel that its scores and pattern are computed from."""
    return within(f"{_BACKENDS}.{module}", _ATTENTION, attributes(name, "scale", *constants))


VLLM = (
    # -- the runner ----------------------------------------------------------
    *within(
        "vllm.v1.worker.gpu_model_runner",
        "engines.vllm.worker.model_runner",
        class_("GPUModelRunner"),
        passed_on("GPUModelRunner.load_model"),
        function("GPUModelRunner.get_model"),
        overridden("GPUModelRunner.capture_model"),
        overridden("GPUModelRunner._update_states", "scheduler_output"),
        passed_on("GPUModelRunner.execute_model", "scheduler_output"),
        passed_on("GPUModelRunner.sample_tokens"),
        passed_on("GPUModelRunner._sample"),
        *attributes(
            "GPUModelRunner",
            "compilation_config",
            "device",
            "execute_model_state",
            "input_batch",
            "kv_cache_config",
            "lora_config",
            "lora_manager",
            "max_num_tokens",
            "model_config",
            "requests",
            "vllm_config",
        ),
        *attributes("ExecuteModelState", "hidden_states"),
    ),
    *within(
        "vllm.v1.worker.cpu_model_runner",
        "engines.vllm.worker.model_runner",
        class_("CPUModelRunner"),
        passed_on("CPUModelRunner.load_model"),
        function("CPUModelRunner._update_states", "scheduler_output"),
    ),
    *within(
        "vllm.v1.worker.gpu_input_batch",
        "engines.vllm.worker.model_runner",
        *attributes("InputBatch", "all_greedy"),
        *attributes("CachedRequestState", "block_ids", "num_computed_tokens"),
    ),
    *within(
        "vllm.v1.worker.gpu_worker",
        "engines.vllm.worker.worker",
        class_("Worker"),
        overridden("Worker.init_device"),
        *attributes("Worker", "model_runner"),
    ),
    *within(
        "vllm.v1.worker.cpu_worker",
        "engines.vllm.worker.worker",
        class_("CPUWorker"),
        overridden("CPUWorker.init_device"),
        *attributes("CPUWorker", "model_runner"),
    ),
    *within(
        "vllm.config.vllm",
        "engines.vllm.worker.model_runner",
        *attributes("VllmConfig", "additional_config", "scheduler_config"),
    ),
    *within(
        "vllm.config.scheduler",
        "engines.vllm.worker.model_runner",
        *attributes("SchedulerConfig", "max_num_batched_tokens"),
    ),
    *within(
        "vllm.config.model",
        "engines.vllm.worker.model_runner",
        *attributes("ModelConfig", "dtype", "hf_text_config"),
        function("ModelConfig.get_total_num_kv_heads"),
    ),
    *within(
        "vllm.config.compilation",
        "engines.vllm.worker.edited_cache",
        *attributes("CompilationConfig", "static_forward_context"),
    ),
    *within(
        "vllm.config.compilation",
        "engines.vllm.worker.model_runner",
        *attributes("CompilationConfig", "max_cudagraph_capture_size"),
    ),
    *within(
        "vllm.tokenizers",
        "engines.vllm.worker.model_runner",
        function("cached_tokenizer_from_config", "model_config"),
    ),
    # -- what a step holds ---------------------------------------------------
    *within(
        "vllm.v1.core.sched.output",
        "engines.vllm.worker.edited_cache",
        *attributes(
            "SchedulerOutput", "finished_req_ids", "scheduled_cached_reqs", "scheduled_new_reqs"
        ),
        *attributes(
            "NewRequestData",
            "block_ids",
            "lora_request",
            "num_computed_tokens",
            "req_id",
            "sampling_params",
        ),
        *attributes(
            "CachedRequestData",
            "new_block_ids",
            "num_computed_tokens",
            "req_ids",
            "resumed_req_ids",
        ),
    ),
    *within(
        "vllm.v1.kv_cache_interface",
        "engines.vllm.worker.edited_cache",
        *attributes("KVCacheConfig", "kv_cache_groups", "num_blocks"),
        *attributes("KVCacheGroupSpec", "kv_cache_spec", "layer_names"),
        *attributes("KVCacheSpec", "block_size"),
    ),
    *within(
        "vllm.sampling_params",
        "engines.vllm.transport.keys",
        *attributes("SamplingParams", "extra_args"),
    ),
    *within(
        "vllm.sampling_params",
        "engines.vllm.client.model",
        *attributes(
            "SamplingParams",
            "detokenize",
            "max_tokens",
            "skip_reading_prefix_cache",
            "temperature",
        ),
    ),
    # -- adapters ------------------------------------------------------------
    *within(
        "vllm.lora.worker_manager",
        "engines.vllm.worker.model_runner",
        *attributes("LRUCacheWorkerLoRAManager", "_adapter_manager"),
    ),
    *within(
        "vllm.lora.model_manager",
        "engines.vllm.worker.lora",
        *attributes("LoRAModelManager", "_last_mapping", "lora_index_to_id"),
        function("LoRAModelManager.set_adapter_mapping", "mapping"),
    ),
    *within(
        "vllm.lora.layers",
        "engines.vllm.worker.lora",
        class_("LoRAMapping", "index_mapping", "prompt_mapping", named=("is_prefill",)),
    ),
    *within(
        "vllm.lora.request",
        "engines.vllm.worker.requests",
        *attributes("LoRARequest", "lora_int_id"),
    ),
    # A layer that has adapters beside it; any other has no such attribute.
    *within(
        "vllm.lora.layers.base_linear",
        "engines.vllm.envoys.calls",
        *attributes("BaseLinearLayerWithLoRA", "base_layer"),
    ),
    # -- graphs and compilation ----------------------------------------------
    *within(
        "vllm.compilation.breakable_cudagraph",
        "engines.vllm.worker.graphs",
        *attributes("BreakableCUDAGraphWrapper", "_all_instances", "entries"),
    ),
    *within(
        "vllm.compilation.decorators",
        "engines.vllm.load_isolation",
        passed_on("_support_torch_compile", "cls"),
    ),
    *within(
        f"{_BACKENDS}.registry",
        "engines.vllm.client.preflight",
        class_("AttentionBackendEnum"),
    ),
    *within(
        "vllm.envs",
        "engines.vllm.client.preflight",
        word("VLLM_USE_BREAKABLE_CUDAGRAPH"),
        word("VLLM_ENABLE_V1_MULTIPROCESSING"),
        word("VLLM_WORKER_MULTIPROC_METHOD"),
    ),
    # -- layers --------------------------------------------------------------
    *within(
        "vllm.model_executor.layers.attention",
        _ATTENTION,
        *attributes(
            "Attention",
            "attn_type",
            "head_size",
            "head_size_v",
            "impl",
            "kv_cache",
            "kv_sharing_target_layer_name",
            "num_heads",
            "num_kv_heads",
            "sliding_window",
            "use_alibi_sqrt",
        ),
        # No other masks by chunks.
        *attributes("ChunkedLocalAttention", "attention_chunk_size"),
    ),
    *within(
        "vllm.model_executor.layers.attention.attention",
        _ATTENTION,
        # What enters a kernel is found by the names of its forward.
        function("Attention.forward", "query", "key", "value"),
    ),
    *within(
        "vllm.model_executor.layers.attention",
        "engines.vllm.envoys.latent_attention",
        function("MLAAttention.forward", "q", "kv_c_normed", "k_pe"),
        *attributes(
            "MLAAttention",
            "impl",
            "kv_b_proj",
            "kv_cache",
            "num_heads",
            "num_kv_heads",
            "qk_head_dim",
            "qk_nope_head_dim",
            "use_sparse",
            "v_head_dim",
        ),
        *(
            # Before it had a window, latent attention saw all keys.
            replace(row, since="0.28")
            for row in attributes("MLAAttention", "sliding_window")
        ),
    ),
    *within(
        "vllm.model_executor.layers.attention.mla_attention",
        "engines.vllm.envoys.latent_attention",
        *attributes("MLACommonImpl", "scale"),
    ),
    *_kernel("flash_attn", "FlashAttentionImpl", "logits_soft_cap", "alibi_slopes", "sinks"),
    *_kernel("triton_attn", "TritonAttentionImpl", "logits_soft_cap", "alibi_slopes", "sinks"),
    *_kernel("flashinfer", "FlashInferImpl", "logits_soft_cap", "alibi_slopes", "sinks"),
    *_kernel("cpu_attn", "CPUAttentionBackendImpl", "logits_soft_cap", "alibi_slopes", "sinks"),
    *_kernel("flex_attention", "FlexAttentionImpl", "logits_soft_cap", "alibi_slopes"),
    *within(
        f"{_BACKENDS}.cpu_attn",
        "engines.vllm.client.preflight",
        function("CPUAttentionBackend.get_supported_head_sizes"),
    ),
    *within(
        "vllm.model_executor.layers.linear",
        "engines.vllm.envoys.calls",
        *attributes("LinearBase", "input_size", "params_dtype"),
        # Split over ranks are the rows of this one alone.
        *attributes("RowParallelLinear", "input_is_parallel", "input_size_per_partition"),
    ),
    *within(
        "vllm.model_executor.layers.vocab_parallel_embedding",
        "engines.vllm.envoys.calls",
        class_("ParallelLMHead"),
    ),
    # Of an attention whose model does not give every block as many; others do without.
    *within(
        "vllm.model_executor.models.llama",
        "engines.vllm.worker.tensor_parallel",
        *attributes("LlamaAttention", "total_num_kv_heads"),
    ),
    *within(
        "vllm.model_executor.layers.logits_processor",
        "engines.vllm.worker.tree",
        *attributes("LogitsProcessor", "soft_cap"),
    ),
    *within(
        "vllm.model_executor.models.llama",
        "engines.vllm.worker.tree",
        function("LlamaForCausalLM.compute_logits", "hidden_states"),
    ),
    *within(
        "vllm.model_executor.models.nemotron_h",
        "families.vllm.nemotron_h",
        class_("NemotronHAttention"),
        class_("NemotronHMLP"),
        class_("NemotronHMoE"),
    ),
    *within(
        "vllm.model_executor.layers.mamba.mamba_mixer2",
        "families.vllm.nemotron_h",
        class_("MambaMixer2"),
    ),
    *(
        # The family that runs a checkpoint is suggested from it, in an error.
        replace(row, harmless=True)
        for row in within(
            "vllm.model_executor.models.registry",
            "advice.similar_families",
            variable("_TEXT_GENERATION_MODELS"),
        )
    ),
    # -- ranks ---------------------------------------------------------------
    *within(
        "vllm.distributed",
        "engines.vllm.worker.tensor_parallel",
        function("get_tensor_model_parallel_rank"),
        function("get_tensor_model_parallel_world_size"),
        function("tensor_model_parallel_all_gather", named=("dim",), rest="anything"),
    ),
    *within(
        "vllm.distributed.parallel_state",
        "engines.vllm.worker.model_runner",
        function("get_pp_group"),
        function("get_tensor_model_parallel_rank"),
    ),
    *within("vllm.platforms", "engines.vllm.worker.worker", variable("current_platform")),
    *within(
        "vllm.platforms.interface",
        "engines.vllm.client.preflight",
        function("Platform.is_cpu"),
        *attributes("Platform", "device_type"),
    ),
    # -- the engine, from the caller's process -------------------------------
    *within(
        "vllm.v1.engine.llm_engine",
        "engines.vllm.client.engine",
        class_("LLMEngine"),
        passed_on("LLMEngine.add_request", "request_id", "prompt", "params"),
        overridden("LLMEngine.abort_request", "request_ids", "internal"),
        overridden("LLMEngine.step"),
        function("LLMEngine.collective_rpc", "method", named=("args",)),
        *attributes("LLMEngine", "engine_core"),
    ),
    *within(
        "vllm.v1.engine.core_client",
        "engines.vllm.client.engine",
        function("EngineCoreClient.collective_rpc", "method", named=("args",)),
    ),
    *within(
        "vllm.v1.engine",
        "engines.vllm.client.engine",
        *attributes("EngineCoreRequest", "cache_salt"),
    ),
    *within(
        "vllm.v1.engine.async_llm",
        "engines.vllm.client.async_engine",
        class_("AsyncLLM"),
        passed_on("AsyncLLM.add_request", "request_id", "prompt", "params"),
        overridden("AsyncLLM.collective_rpc", "method", "timeout", "args", "kwargs"),
    ),
    *within(
        "vllm.entrypoints.llm",
        "engines.vllm.client.model",
        function("LLM.generate", "prompts", "sampling_params", named=("lora_request", "use_tqdm")),
        *attributes("LLM", "llm_engine"),
    ),
    *within("vllm.inputs", "engines.vllm.client.model", class_("TokensPrompt")),
    *within(
        "vllm.engine.arg_utils",
        "engines.arguments",
        class_("EngineArgs"),
        class_("AsyncEngineArgs"),
    ),
    # Of vLLM's CPU build: others have no such operator, and are asked first.
    *within(
        "vllm._custom_ops",
        "engines.vllm.client.meta_loading",
        function("cpu_prepack_moe_weight", rest="anything"),
    ),
)
