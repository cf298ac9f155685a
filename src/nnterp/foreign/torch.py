"""What is relied on of torch: the thread's modes, version counters, and what is written in C."""

from __future__ import annotations

from nnterp.foreign.internals import attributes, class_, compiled, function, variable, within

TORCH = (
    *within("torch._C", "lifetime", compiled("_InferenceMode"), compiled("_is_alias_of")),
    *within("torch._C", "engines.vllm.worker.thread_state", compiled("_is_any_autocast_enabled")),
    *within(
        "torch.overrides",
        "engines.vllm.worker.thread_state",
        function("_push_mode", "mode"),
        function("_pop_mode"),
        variable("_len_torch_function_stack"),
    ),
    # How an edit in place is seen.
    *within("torch", "tracing.open_values", compiled("Tensor._version")),
    *within("torch", "tracing.standard_value", compiled("Tensor._base")),
    *within(
        "torch.autograd",
        "engines.transformers.envoys.kv_sharing",
        class_("_unsafe_preserve_version_counter", "tensors"),
    ),
    *within("torch._guards", "engines.transformers.batches.batching", function("detect_fake_mode")),
    *within("torch.utils._python_dispatch", "tools.checking.rounding", class_("TorchDispatchMode")),
    # Of an operator, which says whether what it returns is new.
    *within("torch._ops", "tools.checking.rounding", *attributes("OpOverload", "_schema")),
    *within("torch.utils.weak", "tracing.gradients", variable("WeakTensorKeyDictionary")),
    *within(
        "torch.multiprocessing.reductions",
        "engines.vllm.transport.memory",
        function("reduce_tensor", "tensor"),
    ),
)
