"""What a worker holds once its requests have ended."""

from __future__ import annotations

import gc
from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

import pytest

import checkpoints
from faults import FAULTS, ONE_STEP
from nnterp.engines.vllm.worker.blocks import RequestBlock

PROMPTS = [checkpoints.PROMPT[start:] + checkpoints.PROMPT[:start] for start in range(3)]


def test_after_a_mix_of_ends_the_worker_holds_nothing(engine: Callable[[str], Any]) -> None:
    model = engine("llama")
    for name in ("stop", "raise_in_step_three", "assign_none", "read_without_end"):
        fault = FAULTS[name]
        with pytest.raises(RuntimeError) if fault.said else nullcontext():
            with model.trace() as tracer:
                for prompt in PROMPTS:
                    with tracer.invoke(prompt, **fault.settings):
                        fault.block(model, tracer)
    with model.trace(PROMPTS[0], **ONE_STEP):
        stream = model.layers[0].layer_output.save()
    assert stream is not None
    del stream
    gc.collect()
    runner = model.vllm_entrypoint.llm_engine.model_executor.driver_worker.worker.model_runner
    assert runner.nnsight_requests.requests == {}
    assert [block for block in gc.get_objects() if isinstance(block, RequestBlock)] == []
