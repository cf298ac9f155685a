"""What an edited request leaves behind: cached keys and values, and blocks of the cache."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nnsight
import pytest
import torch

import checkpoints
from conftest import TINY_ENGINE

#: Long enough to fill a block of the cache, whose keys and values others may then use.
PROMPT = (checkpoints.PROMPT * 3)[:50]
ONE_STEP = {"temperature": 0.0, "max_tokens": 1}


@pytest.fixture(scope="module")
def caching(tiny_folder: Callable[[str], Path], keep: Callable[[Any], Any]) -> Any:
    from nnterp import StandardizedVLLM

    arguments = {**TINY_ENGINE, "enable_prefix_caching": True, "block_size": 32}
    return keep(StandardizedVLLM(str(tiny_folder("llama")), dispatch=True, **arguments))


def cached_log_probabilities(model: Any, prompt: list[int]) -> tuple[int, dict[int, float]]:
    """How many of a plain request's tokens came out of the cache, and what it made of them."""
    from vllm import SamplingParams

    (output,) = model.vllm_entrypoint.generate(
        [{"prompt_token_ids": prompt}], SamplingParams(logprobs=5, **ONE_STEP), use_tqdm=False
    )
    found = output.outputs[0].logprobs[0]
    return output.num_cached_tokens, {token: own.logprob for token, own in found.items()}


def test_a_plain_request_never_reads_what_an_edited_one_cached(
    caching: Any, engine: Callable[[str], Any]
) -> None:
    _, expected = cached_log_probabilities(engine("llama"), PROMPT)
    with caching.trace(PROMPT, **ONE_STEP):
        caching.layers[0].layer_output[:] *= -2.0
    none_cached, after_the_edit = cached_log_probabilities(caching, PROMPT)
    assert none_cached == 0
    cached, after_itself = cached_log_probabilities(caching, PROMPT)
    assert cached == 32, "nothing was cached, so nothing is shown"
    for found in (after_the_edit, after_itself):
        assert found == pytest.approx(expected, abs=1e-4)


def test_nor_what_ran_under_an_installed_edit(caching: Any, engine: Callable[[str], Any]) -> None:
    prompt = PROMPT[::-1]
    _, expected = cached_log_probabilities(engine("llama"), prompt)
    with pytest.warns(UserWarning, match="prefix caching"):
        with caching.edit() as (_, edit):
            caching.layers[0].layer_output[:] *= -2.0
    try:
        _, edited = cached_log_probabilities(caching, prompt)
    finally:
        edit.clear()
    assert edited != pytest.approx(expected, abs=0.1)
    none_cached, found = cached_log_probabilities(caching, prompt)
    assert none_cached == 0
    assert found == pytest.approx(expected, abs=1e-4)
    _, again = cached_log_probabilities(caching, prompt)
    assert again == pytest.approx(expected, abs=1e-4)


def test_a_trace_reads_every_row_of_a_prompt_that_is_cached(caching: Any) -> None:
    cached_log_probabilities(caching, PROMPT)
    with caching.trace(PROMPT, **ONE_STEP):
        stream = caching.layers[0].layer_output.save()
    assert stream.shape[1] == len(PROMPT)


@pytest.mark.parametrize("by", [float("nan"), float("inf")])
@pytest.mark.parametrize("name", ["llama", "gemma2", "gpt_neox"])
def test_blocks_of_the_cache_are_clean_when_the_next_request_is_given_them(
    name: str, by: float, engine: Callable[[str], Any]
) -> None:
    model = engine(name)
    before = three_at_once(model, edited=None, by=by)
    beside = three_at_once(model, edited=1, by=by)
    after = three_at_once(model, edited=None, by=by)
    assert not torch.isfinite(beside[1]).all()
    for row in (0, 2):
        assert torch.equal(beside[row], before[row])
    for row in range(3):
        assert torch.equal(after[row], before[row])


def three_at_once(model: Any, edited: int | None, by: float) -> list[torch.Tensor]:
    """The logits of two steps of three requests, one of which may fill a block's output."""
    with model.trace(temperature=0.0, max_tokens=2, ignore_eos=True) as tracer:
        found = nnsight.save([None] * 3)
        for row, prompt in enumerate((PROMPT[:9], PROMPT, PROMPT[4:])):
            with tracer.invoke(prompt):
                if row == edited:
                    model.layers[0].layer_output[:] = by
                logits = []
                for _ in tracer.iter[:2]:
                    logits.append(model.logits)
                found[row] = torch.cat(logits, dim=1)
    return found
