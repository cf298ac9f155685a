"""Loops over the steps of a generation end with it, and the block goes on below them."""

from __future__ import annotations

import warnings
from typing import Any

import nnsight
import pytest
import torch
from nnsight.intervention.interleaver import OutOfOrderError

IDS = [5, 91, 17]
STEPS = 3


@pytest.fixture
def settings(either: Any) -> dict[str, Any]:
    """A run of three steps, in the engine's words."""
    if either.engine_adapter.engine == "vllm":
        return {"temperature": 0.0, "max_tokens": STEPS, "ignore_eos": True}
    return {"max_new_tokens": STEPS, "min_new_tokens": STEPS, "do_sample": False}


def tokens(model: Any, result: Any) -> list[int]:
    """The new tokens in what a run returned."""
    if model.engine_adapter.engine == "vllm":
        return list(result.outputs[0].token_ids)
    return result[0, len(IDS) :].tolist()


@pytest.fixture
def greedy(transformer: Any) -> list[int]:
    """What transformers' own ``generate`` makes of `IDS`."""
    ids = torch.tensor([IDS])
    model = transformer._module
    made = model.generate(ids, max_new_tokens=STEPS, min_new_tokens=STEPS, do_sample=False)
    return made[0, len(IDS) :].tolist()


def line_of(text: str) -> int:
    with open(__file__) as file:
        (found,) = [n for n, line in enumerate(file, 1) if text in line and "line_of" not in line]
    return found


def test_the_result_is_read_below_a_loop_without_an_end(
    either: Any, settings: dict[str, Any], greedy: list[int]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with either.generate(IDS, **settings) as tracer:
            best, rows = nnsight.save([]), nnsight.save([])
            for _ in tracer.iter[:]:
                rows.append(either.layers[0].layer_output.shape[1])
                best.append(either.logits[0, -1].argmax().item())
            else:
                best.append("its end")
            best.append("below")
            result = tracer.result.save()
    assert rows == [3, 1, 1]
    assert best == [*greedy, "its end", "below"]
    assert tokens(either, result) == greedy


def test_all_and_what_is_made_of_a_loop_end_alike(either: Any, settings: dict[str, Any]) -> None:
    with either.generate(IDS, **settings) as tracer:
        seen = nnsight.save([])
        for index, step in enumerate(tracer.all()):
            for block in either.layers[:2]:
                seen.append((index, step, block.layer_output.shape[1]))
        result = tracer.result.save()
    assert seen == [(step, step, rows) for step, rows in enumerate((3, 1, 1)) for _ in range(2)]
    assert len(tokens(either, result)) == STEPS


def test_an_edit_in_the_last_step_of_a_loop_lands(either: Any, settings: dict[str, Any]) -> None:
    forced = 7
    with either.generate(IDS, **settings) as tracer:
        for _ in tracer.iter[:]:
            either.logits[:, -1, forced] = 1e4
        result = tracer.result.save()
    assert tokens(either, result) == [forced] * STEPS


@pytest.mark.parametrize("stop", [None, 2])
def test_a_loop_that_reads_the_result_ends_with_it(
    either: Any, settings: dict[str, Any], stop: int | None
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with either.generate(IDS, **settings) as tracer:
            steps = nnsight.save([])
            for step in tracer.iter[:stop]:
                result = tracer.result.save()
                steps.append(step)
            steps.append("below")
    assert steps == [0, "below"]
    assert len(tokens(either, result)) == STEPS


def test_a_loop_with_a_later_end_than_the_run_warns_and_goes_on_below(
    either: Any, settings: dict[str, Any]
) -> None:
    with pytest.warns(UserWarning, match=r"did not make, at .*\.i3, and ended there") as said:
        with either.generate(IDS, **settings) as tracer:  # outruns it
            rows = nnsight.save([])
            for _ in tracer.iter[:5]:
                rows.append(either.layers[0].layer_output.shape[1])
            result = tracer.result.save()
    assert rows == [3, 1, 1]
    assert len(tokens(either, result)) == STEPS
    assert [(w.filename, w.lineno) for w in said] == [(__file__, line_of("# outruns it"))]


def test_a_loop_that_the_run_is_as_long_as_says_nothing(
    either: Any, settings: dict[str, Any]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        with either.generate(IDS, **settings) as tracer:
            for _ in tracer.iter[:STEPS]:
                either.layers[0].layer_output.sum()
            result = tracer.result.save()
    assert len(tokens(either, result)) == STEPS


def test_a_loop_within_a_loop_and_one_below_are_over_too(
    either: Any, settings: dict[str, Any]
) -> None:
    with either.generate(IDS, **settings) as tracer:
        seen = nnsight.save([])
        for _ in range(2):
            for _ in tracer.iter[:]:
                seen.append(either.layers[0].layer_output.shape[1])
        for step in tracer.iter[:]:
            seen.append(step)
        result = tracer.result.save()
    assert seen == [3, 1, 1]
    assert len(tokens(either, result)) == STEPS


def test_a_block_that_leaves_its_loop_itself_is_left_alone(
    either: Any, settings: dict[str, Any]
) -> None:
    with either.generate(IDS, **settings) as tracer:
        seen = nnsight.save([])
        for step in tracer.iter[:]:
            if step == 1:
                continue
            seen.append(either.layers[0].layer_output.shape[1])
            if step == 2:
                break
        result = tracer.result.save()
    assert seen == [3, 1]
    assert len(tokens(either, result)) == STEPS


def test_every_invoke_has_its_own_end(either: Any, settings: dict[str, Any]) -> None:
    with either.generate(**settings) as tracer:
        counts = nnsight.save([None, None])
        for index, prompt in enumerate((IDS, [5, 6])):
            with tracer.invoke(prompt):
                made = 0
                for _ in tracer.iter[:]:
                    made += either.layers[0].layer_output.shape[0]
                counts[index] = made
    assert counts == [STEPS, STEPS]


def test_what_fails_below_a_loop_names_its_line(either: Any, settings: dict[str, Any]) -> None:
    with pytest.raises((KeyError, RuntimeError), match="late") as raised:
        with either.generate(IDS, **settings) as tracer:
            for _ in tracer.iter[:]:
                either.layers[0].layer_output.sum()
            raise KeyError("late")  # below the loop
    if either.engine_adapter.engine == "vllm":
        assert f'{__file__}", line {line_of("# below the loop")}' in str(raised.value)
    else:
        assert raised.traceback[-1].lineno + 1 == line_of("# below the loop")


def test_stopping_below_a_loop_stops_nothing_else(either: Any, settings: dict[str, Any]) -> None:
    with either.generate(IDS, **settings) as tracer:
        rows = nnsight.save([])
        for _ in tracer.iter[:]:
            rows.append(either.layers[0].layer_output.shape[1])
        tracer.stop()
    assert rows == [3, 1, 1]


def looped(model: Any, tracer: Any, rows: list[int]) -> None:
    for _ in tracer.iter[:]:
        rows.append(model.layers[0].layer_output.shape[1])


def test_a_loop_in_a_function_keeps_what_it_saved_and_says_what_to_write(
    either: Any, settings: dict[str, Any]
) -> None:
    with pytest.warns(UserWarning, match=r"as in tracer\.iter\[:3\]") as said:
        with either.generate(IDS, **settings) as tracer:  # calls a function
            rows = nnsight.save([])
            looped(either, tracer, rows)
            rows.append("below")
    assert rows == [3, 1, 1]
    assert [(w.filename, w.lineno) for w in said] == [(__file__, line_of("# calls a function"))]


def test_a_value_that_never_came_by_in_a_first_step_is_still_an_error(
    either: Any, settings: dict[str, Any]
) -> None:
    with pytest.raises((RuntimeError, OutOfOrderError), match="ran past it"):
        with either.generate(IDS, **settings) as tracer:
            for _ in tracer.iter[:]:
                late, early = either.layers[1].output, either.layers[0].output  # noqa: F841
