"""Which family is most like one that is not known."""

from __future__ import annotations

import pytest

from nnterp.advice.similar_families import nearest


@pytest.mark.parametrize(
    ("model_type", "architecture", "engine", "known", "expected"),
    [
        ("olmo2", "Other", "transformers", ["gemma2", "gpt2", "llama"], "gemma2"),
        ("starcoder2", "Other", "transformers", ["gpt2", "llama", "qwen2"], "llama"),
        ("internlm3", "InternLM3ForCausalLM", "vllm", ["gpt2", "llama"], "llama"),
        ("mamba", "Other", "transformers", ["gpt2", "llama"], None),
        ("../../etc", "Other", "transformers", ["gpt2", "llama"], None),
    ],
)
def test_the_nearest_is_the_one_most_alike(
    model_type: str, architecture: str, engine: str, known: list[str], expected: str | None
) -> None:
    relative = nearest(model_type, [architecture], engine, known)
    assert (relative and relative.name) == expected
