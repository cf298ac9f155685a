"""What comes home is what the block saved, and what cannot is that block's own error."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nnsight
import numpy as np
import pytest
import torch
from nnsight.tracing import tracer as nnsight_tracer

import checkpoints

FOUR_STEPS = {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True}


@pytest.fixture
def model(engine: Callable[[str], Any]) -> Any:
    return engine("llama")


def test_a_saved_list_that_is_later_given_what_cannot_travel(model: Any) -> None:
    good = None
    with (
        pytest.raises(RuntimeError, match="rows, a list, was saved but cannot be sent back"),
        model.trace() as tracer,
    ):
        with tracer.invoke(checkpoints.PROMPT, **FOUR_STEPS):
            rows = nnsight.save([np.zeros(2)])
            for step in tracer.iter[:4]:
                model.layers[0].layer_output.sum()
                if step == 2:
                    rows.append(n for n in range(3))
        with tracer.invoke(checkpoints.PROMPT, **FOUR_STEPS):
            good = model.layers[0].layer_output.save()
    assert isinstance(good, torch.Tensor)


def test_a_container_saved_above_is_refused_with_the_request_that_spoilt_it(model: Any) -> None:
    good = None
    with (
        pytest.raises(RuntimeError, match="what was put into kept cannot be sent back"),
        model.trace() as tracer,
    ):
        kept = nnsight.save([None, None])
        with tracer.invoke(checkpoints.PROMPT, **FOUR_STEPS):
            model.layers[0].layer_output.sum()
            kept[0] = (n for n in range(3))
        with tracer.invoke(checkpoints.PROMPT, **FOUR_STEPS):
            good = model.layers[0].layer_output.save()
            kept[1] = good
    assert isinstance(good, torch.Tensor)


def test_a_block_of_a_batch_that_saves_nothing_sends_nothing(model: Any) -> None:
    other = "untouched"
    with model.trace(**FOUR_STEPS) as tracer:
        with tracer.invoke(checkpoints.PROMPT):
            stream = model.layers[0].layer_output.save()
        with tracer.invoke(checkpoints.PROMPT):
            other = model.layers[0].layer_output + 1
    assert stream.shape[1] == len(checkpoints.PROMPT)
    assert other == "untouched"


def test_a_trace_leaves_nothing_marked_in_the_callers_thread(model: Any) -> None:
    model.collect([checkpoints.PROMPT], {"layers.0.layer_output": "last"})
    with model.trace(checkpoints.PROMPT, **FOUR_STEPS):
        stream = model.layers[0].layer_output.save()
    assert stream.shape[1] == len(checkpoints.PROMPT)
    assert nnsight_tracer._saves() == set()
    with pytest.raises(ValueError, match="outside a trace"):
        nnsight.save([])


def test_what_a_backward_pass_in_a_block_saves_comes_home(model: Any) -> None:
    with model.trace(checkpoints.PROMPT, **FOUR_STEPS):
        stream = model.layers[0].layer_output.save()
        with torch.inference_mode(False), torch.enable_grad():
            leaf = stream.clone().requires_grad_()
            loss = (leaf**2).sum()
            with loss.backward():
                gradient = leaf.grad.save()
        after = model.layers[1].layer_output.save()
    assert torch.allclose(gradient, 2 * stream)
    assert after.shape == stream.shape
