"""How often the engine passes through the parts that blocks need."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

import checkpoints
from nnterp.engines.vllm.client.payload import Payloads
from nnterp.engines.vllm.worker.interleaver import RowInterleaver

PROMPTS = [checkpoints.PROMPT[:6], checkpoints.PROMPT, checkpoints.PROMPT[5:16]]


def generate(entrypoint: Any) -> list[list[int]]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = entrypoint.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_a_step_nobody_looks_at_never_enters_the_tree(
    engine: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    passed: list[str] = []
    real = RowInterleaver.handle

    def handle(self: Any, provider: str, value: Any) -> Any:
        passed.append(provider)
        return real(self, provider, value)

    monkeypatch.setattr(RowInterleaver, "handle", handle)
    model = engine("llama")
    generate(model.vllm_entrypoint)
    assert passed == []
    with model.trace(PROMPTS[0], temperature=0.0, max_tokens=3):
        stream = model.layers[0].layer_output.save()
    assert passed, "the counter counts nothing"
    assert stream.shape[1] == len(PROMPTS[0])


def test_the_requests_of_a_trace_share_one_payload_and_not_their_values(
    engine: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    packed: list[bytes] = []
    real = Payloads.pack

    def pack(self: Any, block: Any) -> bytes:
        packed.append(real(self, block))
        return packed[-1]

    monkeypatch.setattr(Payloads, "pack", pack)
    model = engine("llama")
    vector = torch.ones(1000, 64)[7]  # a row of something large
    with (
        pytest.warns(UserWarning, match="several requests changed the same part of vector"),
        model.trace(temperature=0.0, max_tokens=1) as tracer,
    ):
        for _ in range(8):
            with tracer.invoke(PROMPTS[0]):
                vector += 1
                total = vector.sum().save()
    assert len({id(payload) for payload in packed}) == 1
    assert len(packed[0]) < 3000
    assert [float(one) for one in total] == [128.0] * 8
