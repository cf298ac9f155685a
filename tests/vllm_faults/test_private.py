"""What was read stays what was read; what was only read is not written back."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nnsight
import pytest
import torch

import checkpoints
import inplace_norms
from conftest import TINY_ENGINE
from nnterp import StandardizedTransformer, StandardizedVLLM
from nnterp.tools.checking import readings
from nnterp.tools.checking.compare import relative_error
from tiny import TINY

PROMPT = checkpoints.PROMPT
ONE_STEP = {"temperature": 0.0, "max_tokens": 1}
KINDS = ("llama", "gemma2", "gpt2", "gpt_neox")


@pytest.fixture(scope="module", params=KINDS)
def model(request: pytest.FixtureRequest, engine: Callable[[str], Any]) -> Any:
    return engine(request.param)


@pytest.fixture(scope="module")
def llama(engine: Callable[[str], Any]) -> Any:
    return engine("llama")


def test_nothing_read_is_overwritten_later(model: Any) -> None:
    assert readings.overwritten(model, PROMPT) == []


def test_without_a_copy_it_would_be_where_norms_overwrite(llama: Any) -> None:
    """That the imitation, where it is on, would be seen by the test above."""
    runner = llama.vllm_entrypoint.llm_engine.model_executor.driver_worker.worker.model_runner
    first, second = runner.get_model().model.layers
    seen: list[torch.Tensor] = []

    def keep(module: Any, args: Any, output: Any) -> None:
        seen.extend((output[1], output[1].clone()))

    def look(module: Any, args: Any, output: Any) -> None:
        seen.append(seen[0].clone())

    hooks = [first.register_forward_hook(keep), second.register_forward_hook(look)]
    with llama.trace(PROMPT, **ONE_STEP):
        llama.layers[0].layer_output.sum()
    for hook in hooks:
        hook.remove()
    _, then, now = seen
    assert torch.equal(now, then) is not inplace_norms.imitated()


def test_what_is_kept_step_by_step_stays(model: Any) -> None:
    with model.trace(PROMPT, temperature=0.0, max_tokens=4, ignore_eos=True) as tracer:
        kept, copies = nnsight.save([]), nnsight.save([])
        for _ in tracer.iter[:4]:
            for tensor in (model.layers[0].layer_output, model.logits):
                kept.append(tensor)
                copies.append(tensor.clone())
    assert len(kept) == 8
    assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def test_what_a_cache_keeps_stays(model: Any) -> None:
    with model.trace(PROMPT, **ONE_STEP) as tracer:
        cache = tracer.cache()
        outputs = nnsight.save([])
        for layer in model.layers:
            outputs.append(tuple(_copies(layer.output)))
    for layer, copies in zip(model.layers, outputs, strict=True):
        kept = tuple(_copies(cache[layer.path].output))
        assert len(kept) == len(copies) > 0
        assert all(torch.equal(a, b) for a, b in zip(kept, copies, strict=True))


def _copies(value: Any) -> list[torch.Tensor]:
    parts = [value] if isinstance(value, torch.Tensor) else list(value)
    return [part.clone() for part in parts if part is not None]


#: Addends of the stream, sandwiched and not; a multiplier that is no power of two; a bias apart.
LOSSY = {
    "llama": TINY["llama"],
    "gemma2": TINY["gemma2"],
    "granite": replace(
        TINY["granite"], config={**TINY["granite"].config, "residual_multiplier": 0.22}
    ),
    "falcon": TINY["falcon"],
}


@pytest.mark.parametrize("name", LOSSY)
def test_what_an_edit_leaves_alone_stays_to_the_bit_in_bfloat16(
    name: str, tmp_path: Path, keep: Callable[[Any], Any]
) -> None:
    path = str(checkpoints.write(LOSSY[name], tmp_path / name))
    reference = StandardizedTransformer(
        path, dispatch=True, dtype=torch.bfloat16, attn_implementation="eager"
    )
    arguments = {**TINY_ENGINE, "dtype": "bfloat16"}
    engine = keep(StandardizedVLLM(path, dispatch=True, **arguments))
    for model in (reference, engine):
        assert readings.moved(model, PROMPT) == {}


def test_two_reads_in_a_row_are_one_tensor(model: Any) -> None:
    with model.trace(PROMPT, **ONE_STEP):
        attention = model.layers[0].self_attn
        same = nnsight.save([])
        queries = attention.attention_queries
        keys = attention.attention_keys
        same.append(attention.attention_queries is queries)
        same.append(attention.attention_keys is keys)
        stream = model.layers[0].layer_output
        same.append(model.layers[0].layer_output is stream)
    assert same == [True, True, True]


def test_scores_see_an_edit_of_the_queries_they_are_computed_from(llama: Any) -> None:
    attention = llama.layers[0].self_attn
    with llama.trace(PROMPT, **ONE_STEP):
        before = attention.attention_scores.save()
        queries = attention.attention_queries
        keys = attention.attention_keys  # reading another value keeps the first one open
        queries[:] *= 2
        keys[:] *= 2
        pattern = attention.attention_probabilities.save()
        heads = attention.attention_head_outputs.save()
    expected = (before * 4).softmax(-1)
    assert relative_error(pattern, expected) < 1e-5
    with llama.trace(PROMPT, **ONE_STEP):
        values = attention.attention_values.save()
    repeated = values.repeat_interleave(pattern.shape[1] // values.shape[1], dim=1)
    assert relative_error(heads, (pattern @ repeated).transpose(1, 2)) < 1e-5


def test_a_read_after_a_write_is_what_was_written(model: Any) -> None:
    block = model.layers[0]
    with model.trace(PROMPT, **ONE_STEP):
        written = torch.full_like(block.layer_output, 0.25)
        block.layer_output = written
        at_once = block.layer_output.save()
        next_block = model.layers[1].layer_input.save()
        written.zero_()  # too late, and another tensor
    assert torch.equal(at_once, torch.full_like(at_once, 0.25))
    assert torch.equal(next_block, at_once)


def test_a_write_to_a_block_and_then_to_the_next_is_the_next_ones(model: Any) -> None:
    with model.trace(PROMPT, **ONE_STEP):
        model.layers[0].layer_output[:] = 1.0
        entering = model.layers[1].layer_input
        seen = entering.clone().save()
        entering[:] = 2.0
        leaving = model.layers[1].layer_output.save()
    assert seen.eq(1.0).all()
    with model.trace(PROMPT, **ONE_STEP):
        model.layers[1].layer_input = torch.full_like(model.layers[1].layer_input, 2.0)
        expected = model.layers[1].layer_output.save()
    assert torch.equal(leaving, expected)


@pytest.mark.parametrize("way", ["data", "numpy", "dlpack"])
def test_an_edit_that_no_counter_sees_changes_the_copy_and_not_the_model(
    llama: Any, way: str
) -> None:
    """As the documentation says; `.data`, numpy and dlpack reach memory behind torch's back."""
    with llama.trace(PROMPT, **ONE_STEP):
        clean = llama.logits.save()
    with llama.trace(PROMPT, **ONE_STEP):
        stream = llama.layers[0].layer_output
        if way == "data":
            stream.data[:] = 0
        elif way == "numpy":
            stream.numpy()[:] = 0
        else:
            torch.from_dlpack(stream)[:] = 0
        kept = stream.save()
        logits = llama.logits.save()
    assert kept.abs().max() == 0
    assert torch.equal(logits, clean)


def test_a_skipped_block_has_the_output_given_and_its_neighbour_its_own(llama: Any) -> None:
    with llama.trace(**ONE_STEP) as tracer:
        with tracer.invoke(PROMPT):
            neighbour = llama.layers[1].layer_input.save()
        with tracer.invoke(PROMPT[:7]):
            (_, hidden, _), _ = llama.layers[0].inputs
            entering = hidden.clone().save()
            llama.layers[0].skip((torch.zeros_like(hidden), hidden * 2))
            leaving = llama.layers[1].layer_input.save()
    assert torch.equal(leaving[0], entering * 2)
    with llama.trace(**ONE_STEP) as tracer:
        with tracer.invoke(PROMPT):
            alone = llama.layers[1].layer_input.save()
        with tracer.invoke(PROMPT[:7]):
            kept = llama.layers[1].layer_input.save()
    assert torch.equal(neighbour, alone)
    assert not torch.equal(kept, leaving)
