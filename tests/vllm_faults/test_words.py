"""What is said, where, and of what: errors in the user's terms, warnings in their process."""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import nnsight
import pytest
import torch

import checkpoints

PROMPT = checkpoints.PROMPT
ONE_STEP = {"temperature": 0.0, "max_tokens": 1}


@pytest.fixture(scope="module")
def model(engine: Callable[[str], Any]) -> Any:
    return engine("llama")


def helper(stream: torch.Tensor) -> torch.Tensor:
    return stream @ torch.zeros(3, 3)


def line_of(text: str) -> int:
    """The number of the only line of this file that holds ``text``."""
    with open(__file__) as file:
        (found,) = [n for n, line in enumerate(file, 1) if text in line and "line_of" not in line]
    return found


def test_an_error_names_the_users_file_and_line_and_nothing_else(model: Any) -> None:
    with pytest.raises(RuntimeError) as raised:
        with model.trace(PROMPT, **ONE_STEP):
            stream = model.layers[0].layer_output
            model.layers[0].layer_output = stream[:, :3]  # too short
    lines = str(raised.value).splitlines()
    assert lines[0].startswith("ValueError: model.model.layers.0.layer_output has shape")
    frames = [line for line in lines if line.startswith("  File ")]
    assert frames == [f'  File "{__file__}", line {line_of("# too short")}, in <module>']
    assert len(lines) <= 6


def test_an_error_in_a_helper_names_both_lines(model: Any) -> None:
    with pytest.raises(RuntimeError, match="mat1 and mat2 shapes") as raised:
        with model.trace(PROMPT, **ONE_STEP):
            helper(model.layers[0].layer_output[0])  # calls the helper
    frames = [line for line in str(raised.value).splitlines() if line.startswith("  File ")]
    in_helper = inspect.getsourcelines(helper)[1] + 1
    assert f"line {line_of('# calls the helper')}," in frames[0]
    assert f"line {in_helper}, in helper" in frames[1]
    assert len(frames) == 2


def test_of_several_failures_the_first_is_raised_and_the_others_counted(model: Any) -> None:
    with pytest.raises(RuntimeError) as raised:
        with model.trace(**ONE_STEP) as tracer:
            for index in range(4):
                with tracer.invoke(PROMPT):
                    if index:
                        raise KeyError(index)
    assert str(raised.value).startswith("KeyError: 1\n")
    assert str(raised.value).endswith("2 more of the trace's requests failed")


def test_a_value_nnsight_splices_is_refused_at_the_users_line(model: Any) -> None:
    with pytest.raises(RuntimeError) as raised:
        with model.trace(PROMPT, **ONE_STEP):
            model.layers[0].output = model.layers[0].output[0]  # a bare tensor
    assert f'{__file__}", line {line_of("# a bare tensor")}' in str(raised.value)


def test_a_refusal_can_be_caught_in_the_block(model: Any) -> None:
    with model.trace(PROMPT, **ONE_STEP):
        caught = nnsight.save([])
        try:
            model.layers[0].layer_output = None
        except TypeError:
            caught.append("ours")
        try:
            model.layers[1].output = None
        except ValueError:
            caught.append("nnsight's")
        logits = model.logits.save()
    assert caught == ["ours", "nnsight's"]
    assert torch.isfinite(logits).all()


def test_a_list_shared_by_invokes_keeps_what_each_appends(model: Any) -> None:
    with model.trace(**ONE_STEP) as tracer:
        streams = nnsight.save(["first"])
        for length in (3, 5, 7):
            with tracer.invoke(PROMPT[:length]):
                streams.append(model.layers[0].layer_output)
                streams.append(length)
    assert streams[0] == "first"
    assert streams[2::2] == [3, 5, 7]
    assert [stream.shape[1] for stream in streams[1::2]] == [3, 5, 7]


def test_slots_and_dicts_shared_by_invokes_merge(model: Any) -> None:
    with model.trace(**ONE_STEP) as tracer:
        slots, named = nnsight.save([None, None]), nnsight.save({})
        for index in range(2):
            with tracer.invoke(PROMPT[: index + 3]):
                slots[index] = model.layers[0].layer_output
                named[index] = slots[index].shape[1]
    assert [slot.shape[1] for slot in slots] == [3, 4]
    assert named == {0: 3, 1: 4}


def test_anything_else_shared_by_invokes_is_warned_of(model: Any) -> None:
    with pytest.warns(UserWarning, match="several requests changed the same part of total"):
        with model.trace(**ONE_STEP) as tracer:
            total = torch.zeros(1).save()
            for length in (3, 5):
                with tracer.invoke(PROMPT[:length]):
                    total += model.layers[0].layer_output.sum()
    with pytest.warns(UserWarning, match="'total', a Tensor, was saved above several invokes"):
        with model.trace(**ONE_STEP) as tracer:
            total = torch.zeros(1).save()
            for length in (3, 5):
                with tracer.invoke(PROMPT[:length]):
                    total = total + model.layers[0].layer_output.sum()


def test_a_loop_longer_than_the_generation_warns_in_the_callers_process(model: Any) -> None:
    with pytest.warns(UserWarning, match="the loop asked for a step the run did not make") as said:
        with model.trace(PROMPT, temperature=0.0, max_tokens=2, ignore_eos=True) as tracer:
            seen = nnsight.save([])
            for _ in tracer.iter[:5]:
                seen.append(model.layers[0].layer_output.shape[1])
    assert seen == [len(PROMPT), 1]
    assert said[0].filename == __file__


def test_a_name_from_another_invoke_is_explained_and_two_traces_do(model: Any) -> None:
    prompts = (PROMPT, PROMPT[::-1])
    with pytest.raises(RuntimeError, match=r"name 'stream' is not defined; another invoke.*two tr"):
        with model.trace(**ONE_STEP) as tracer:
            with tracer.invoke(prompts[0]):
                stream = model.layers[0].layer_output
            with tracer.invoke(prompts[1]):
                model.layers[0].layer_output = stream
    with pytest.raises(RuntimeError, match="name 'stream' is not defined\n"):
        with model.trace(prompts[0], **ONE_STEP):
            model.layers[0].layer_output = stream  # nobody's
    with pytest.raises(NotImplementedError, match=r"barrier\(2\) would wait for ever.*two traces"):
        with model.trace(**ONE_STEP) as tracer:
            barrier = tracer.barrier(2)
            with tracer.invoke(prompts[0]):
                barrier()
    with model.trace(prompts[0], **ONE_STEP):
        stream = model.layers[0].layer_output.save()
        expected = model.logits.save()
    with model.trace(prompts[1], **ONE_STEP):
        model.layers[0].layer_output = stream
        patched = model.logits.save()
    assert torch.allclose(patched, expected)


def test_an_invoke_in_a_trace_with_a_prompt_says_where_the_prompt_goes(either: Any) -> None:
    with pytest.raises((RuntimeError, ValueError), match=r"open it as `with model\.trace\(\) as"):
        with either.trace(PROMPT) as tracer:
            with tracer.invoke(PROMPT):
                logits = either.logits.save()  # noqa: F841


def test_a_trace_in_a_trace_is_refused_and_the_next_one_runs(either: Any) -> None:
    for _ in range(2):
        with pytest.raises((RuntimeError, ValueError), match="is running already for the trace"):
            with either.trace(PROMPT):
                with either.trace(PROMPT):
                    logits = either.logits.save()
    with either.trace(PROMPT):
        logits = either.logits.save()
    assert logits.shape[-1] == 256


def test_an_edit_in_place_of_what_is_read_only_is_said_to_be_above(either: Any) -> None:
    with pytest.raises((RuntimeError, ValueError)) as refused:
        with either.trace(PROMPT):
            either.next_token_probs[:] = 0
    assert "model.next_token_probs is read-only on " in str(refused.value)
    assert ", and was edited in place on a line above: " in str(refused.value)
    with pytest.raises((RuntimeError, ValueError)) as refused:
        with either.trace(PROMPT):
            either.next_token_probs = torch.zeros(1, 256)  # replaced
    assert "in place" not in str(refused.value)


def test_an_edit_in_place_of_the_pattern_is_said_to_be_above_where_the_block_moves_on(
    model: Any,
) -> None:
    with pytest.raises(RuntimeError) as refused:
        with model.trace(PROMPT, **ONE_STEP):
            model.layers[0].self_attn.attention_probabilities[:] = 0
            model.layers[0].layer_output.sum()  # moves on
    said = str(refused.value)
    assert "attention_probabilities is read-only on vllm, and was edited in place on a" in said
    assert f'{__file__}", line {line_of("# moves on")}' in said


def test_a_save_without_a_name_warns_at_its_line(model: Any) -> None:
    with pytest.warns(UserWarning, match="is bound to no name") as said:
        with model.trace(PROMPT, **ONE_STEP):
            model.layers[0].layer_output.save()  # nameless
    assert (said[0].filename, said[0].lineno) == (__file__, line_of("# nameless"))


def test_a_save_with_a_name_does_not(model: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with model.trace(PROMPT, **ONE_STEP):
            rows = []
            rows.append(model.layers[0].layer_output)
            rows.save()
            rows[0].save()
            kept = nnsight.save(model.layers[1].layer_output)
            pair = (model.logits.save(), 1)  # noqa: F841
    assert kept.shape[1] == len(PROMPT)
    assert len(rows) == 1


def test_a_prompt_split_by_chunked_prefill_is_refused(
    engine: Callable[[str], Any], tiny_folder: Callable[[str], Path], keep: Callable[[Any], Any]
) -> None:
    from conftest import TINY_ENGINE
    from nnterp import StandardizedVLLM

    model = keep(
        StandardizedVLLM(
            str(tiny_folder("llama")),
            dispatch=True,
            enable_chunked_prefill=True,
            max_num_batched_tokens=8,
            max_num_seqs=2,
            **TINY_ENGINE,
        )
    )
    with pytest.raises(RuntimeError, match=r"20-token prompt was split .*chunked prefill"):
        with model.trace(PROMPT, **ONE_STEP):
            stream = model.layers[0].layer_output.save()
    with model.trace(PROMPT[:6], **ONE_STEP):
        stream = model.layers[0].layer_output.save()
    assert stream.shape == (1, 6, 64)


def test_a_cached_prefix_never_shortens_a_read(
    tiny_folder: Callable[[str], Path], keep: Callable[[Any], Any]
) -> None:
    from conftest import TINY_ENGINE
    from nnterp import StandardizedVLLM

    arguments = {**TINY_ENGINE, "max_model_len": 512}
    del arguments["max_model_len"]
    model = keep(
        StandardizedVLLM(
            str(tiny_folder("llama")),
            dispatch=True,
            enable_prefix_caching=True,
            block_size=32,
            max_model_len=128,
            **arguments,
        )
    )
    long = (PROMPT * 5)[:90]
    shapes = []
    for _ in range(3):
        with model.trace(long, **ONE_STEP):
            stream = model.layers[0].layer_output.save()
        shapes.append(stream.shape[1])
    assert shapes == [90, 90, 90]
