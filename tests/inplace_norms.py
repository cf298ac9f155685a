"""CUDA's in-place norms, imitated on the CPU.

On CUDA the norm that adds the residual writes its results over both of its arguments; on
the CPU it makes new tensors, so a value kept without a copy would look right there. With
``NNTERP_TEST_INPLACE_NORMS=1`` the suites run on norms that overwrite.
"""

from __future__ import annotations

import os
from typing import Any

VARIABLE = "NNTERP_TEST_INPLACE_NORMS"


def imitated() -> bool:
    return os.environ.get(VARIABLE) == "1"


def imitate() -> None:
    """Have vLLM's fused norms overwrite both arguments, for engines built from now on."""
    from vllm.model_executor.layers.layernorm import GemmaRMSNorm, RMSNorm

    for norm in (RMSNorm, GemmaRMSNorm):
        norm.forward_native = _overwriting(norm.forward_native)
        if "forward_cpu" in vars(norm):
            norm.forward_cpu = _overwriting(norm.forward_cpu)


def _overwriting(forward: Any) -> Any:
    def overwriting(self: Any, x: Any, residual: Any = None) -> Any:
        if residual is None:
            return forward(self, x)
        normed, stream = forward(self, x.clone(), residual.clone())
        return x.copy_(normed), residual.copy_(stream)

    return overwriting
