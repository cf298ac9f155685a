"""Which kernels of attention an engine on a CPU is asked for."""

from __future__ import annotations

from typing import Any

import pytest

from nnterp.engines.vllm.client import preflight


@pytest.mark.parametrize(
    ("device", "given", "asked"),
    [
        ("cpu", {}, {"attention_backend": "CPU_MLA"}),
        ("cpu", {"attention_backend": "AMX_MLA"}, {"attention_backend": "AMX_MLA"}),
        ("cpu", {"attention_config": {"backend": None}}, {"attention_config": {"backend": None}}),
        ("cuda", {}, {}),
    ],
)
def test_a_cpu_is_asked_for_exact_kernels_unless_the_caller_chooses(
    monkeypatch: pytest.MonkeyPatch, device: str, given: dict[str, Any], asked: dict[str, Any]
) -> None:
    monkeypatch.setattr(preflight, "platform", lambda: device)
    preflight.prefer_exact_attention(given)
    assert given == asked
