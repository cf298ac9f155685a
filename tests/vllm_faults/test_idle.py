"""What a request costs that runs no block: nothing but vLLM's own work."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from nnsight.intervention.source import Controller

import checkpoints
from conftest import TINY_ENGINE

PROMPTS = [checkpoints.PROMPT[:6], checkpoints.PROMPT, checkpoints.PROMPT[5:16]]


@pytest.fixture
def calls(engine: Callable[[str], Any], monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What the engine asks of its worker, by name."""
    core = engine("llama").vllm_entrypoint.llm_engine.engine_core
    real = core.collective_rpc
    made: list[str] = []

    def asked(method: str, *args: Any, **kwargs: Any) -> Any:
        made.append(method)
        return real(method, *args, **kwargs)

    monkeypatch.setattr(core, "collective_rpc", asked)
    return made


def generate(entrypoint: Any) -> list[list[int]]:
    from vllm import SamplingParams

    params = SamplingParams(temperature=0.0, max_tokens=5, ignore_eos=True)
    prompts = [{"prompt_token_ids": prompt} for prompt in PROMPTS]
    outputs = entrypoint.generate(prompts, params, use_tqdm=False)
    return [list(output.outputs[0].token_ids) for output in outputs]


def test_tokens_are_plain_vllms_and_the_worker_is_asked_for_nothing(
    engine: Callable[[str], Any],
    calls: list[str],
    tiny_folder: Callable[[str], Any],
    keep: Callable[[Any], Any],
) -> None:
    from vllm import LLM

    plain = keep(LLM(str(tiny_folder("llama")), enforce_eager=True, **TINY_ENGINE))
    expected = generate(plain)
    assert generate(engine("llama").vllm_entrypoint) == expected
    assert calls == []


def test_a_step_nobody_looks_at_runs_the_modules_own_forwards(engine: Callable[[str], Any]) -> None:
    model = engine("llama")
    core = model.vllm_entrypoint.llm_engine.engine_core
    executor = core.engine_core.model_executor
    tree = executor.driver_worker.worker.model_runner.get_model()

    def handed_over() -> int:
        return sum(isinstance(m.__dict__.get("forward"), Controller) for m in tree.modules())

    with model.trace(PROMPTS[0], temperature=0.0, max_tokens=1):
        before = model.layers[1].layer_output.save()
    among = handed_over()
    generate(model.vllm_entrypoint)
    # A forward that vLLM put on a module itself has nnsight's around it for good.
    assert handed_over() < among / 10
    with model.trace(PROMPTS[0], temperature=0.0, max_tokens=1):
        after = model.layers[1].layer_output.save()
    assert handed_over() == among
    assert torch.equal(before, after)


def test_a_result_is_sent_to_the_blocks_that_wait_for_one(
    engine: Callable[[str], Any], calls: list[str]
) -> None:
    model = engine("llama")
    settings = {"temperature": 0.0, "max_tokens": 2}
    with model.trace(**settings) as tracer:
        with tracer.invoke(PROMPTS[0]):
            stream = model.layers[0].layer_output.save()
        with tracer.invoke(PROMPTS[1]):
            result = tracer.result.save()
    assert calls == ["collect_finished", "collect_nnsight"]
    assert result.prompt_token_ids == PROMPTS[1]
    assert stream.shape[1] == len(PROMPTS[0])
    calls.clear()
    with model.trace(PROMPTS[0], **settings):
        stream = model.layers[0].layer_output.save()
    assert calls == ["collect_finished"]
