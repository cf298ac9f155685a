"""What nnsight's VLLM takes and does, through StandardizedVLLM: modes, edits, parallelism."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import nnsight
import pytest
import torch

import apart
import checkpoints
from conftest import TINY_ENGINE
from nnterp import StandardizedTransformer
from nnterp.tools.checking import readings
from nnterp.tools.checking.compare import relative_error
from tiny import NO_IMAGES, TINY

CLOSE = 1e-5
PROMPT = checkpoints.PROMPT


def test_an_undispatched_model_has_its_tree_and_starts_on_the_first_trace(
    tiny_folder: Callable[[str], Path],
    reference: Callable[[str], dict[str, Any]],
    keep: Callable[[Any], Any],
) -> None:
    from nnterp import StandardizedVLLM

    model = keep(StandardizedVLLM(str(tiny_folder("llama")), **TINY_ENGINE))
    assert not model.dispatched
    assert model.support()["layer_output"].blocks == (0, 1)
    assert (model.num_layers, model.hidden_size, model.layers[0].self_attn.num_heads) == (2, 64, 4)
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        stream = model.layers[1].layer_output.save()
    assert relative_error(stream, reference("llama")["values"]["1.layer_output"]) < CLOSE


def test_values_outside_a_trace_say_so(engine: Callable[[str], Any]) -> None:
    model = engine("llama")
    with pytest.raises(ValueError, match=r"layers\.0\.layer_output"):
        _ = model.layers[0].layer_output
    with pytest.raises(ValueError, match="project_on_vocab"):
        model.project_on_vocab(torch.zeros(1, 1, 64))


def test_generate_is_a_trace_or_a_call(engine: Callable[[str], Any]) -> None:
    model = engine("llama")
    settings = {"temperature": 0.0, "max_tokens": 3, "ignore_eos": True}
    with model.generate(PROMPT, **settings) as tracer:
        result = tracer.result.save()
    called = model.generate({"prompt_token_ids": PROMPT}, **settings)
    assert result.outputs[0].token_ids == called[0].outputs[0].token_ids


def test_samples_can_be_written(engine: Callable[[str], Any]) -> None:
    model = engine("llama")
    settings = {"temperature": 0.0, "max_tokens": 3, "ignore_eos": True}
    with model.trace(PROMPT, **settings) as tracer:
        for _ in tracer.iter[:3]:
            model.samples = torch.full_like(model.samples, 7)
        result = tracer.result.save()
    assert list(result.outputs[0].token_ids)[:2] == [7, 7]


def test_logits_can_be_written(engine: Callable[[str], Any]) -> None:
    model = engine("llama")
    with model.trace(PROMPT, temperature=0.0, max_tokens=1) as tracer:
        model.logits[0, 0, 11] = 1e4
        probabilities = model.next_token_probs.save()
        result = tracer.result.save()
    assert probabilities[0, 11] == 1.0
    assert list(result.outputs[0].token_ids) == [11]


def test_an_installed_edit_runs_on_every_request(engine: Callable[[str], Any]) -> None:
    model = engine("llama")
    clean = readings.clean_logits(model, PROMPT)
    with model.edit() as (_, edit):
        model.layers[0].layer_output[:, -1] *= 0
    try:
        edited = readings.clean_logits(model, PROMPT)
    finally:
        edit.clear()
    assert relative_error(edited, clean) > 1e-3
    assert torch.equal(readings.clean_logits(model, PROMPT), clean)


def test_a_family_can_be_given_by_name_and_added_to(
    tiny_folder: Callable[[str], Path], keep: Callable[[Any], Any]
) -> None:
    from nnterp import StandardizedVLLM

    model = keep(
        StandardizedVLLM(
            str(tiny_folder("qwen2")),
            family="llama",
            rename={"mlp": "feed_forward"},
            dispatch=True,
            **TINY_ENGINE,
        )
    )
    assert model.family.__name__ == "nnterp.families.vllm.llama"
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        added = model.layers[0].feed_forward.mlp_output.save()
    assert added.shape == (1, len(PROMPT), 64)


def test_an_unedited_read_changes_nothing(engine: Callable[[str], Any]) -> None:
    model = engine("llama")
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        bare = model.logits.save()
    readings.values(model, PROMPT)
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        for block in model.layers:
            block.layer_input.sum()
            block.self_attn.attention_queries.sum()
            block.self_attn.attention_head_outputs.sum()
            block.layer_output.sum()
        read = model.logits.save()
    assert torch.equal(bare, read)


ASYNC = """
import asyncio, sys
from nnterp import StandardizedVLLM

async def main():
    model = StandardizedVLLM({path!r}, dispatch=True, mode="async", **{engine!r})
    with model.trace({prompt!r}, temperature=0.0, max_tokens=2, ignore_eos=True) as tracer:
        stream = model.layers[1].layer_output.save()
    last = await tracer.backend
    print(tuple(last.saves["stream"].shape), len(last.outputs[0].token_ids))
    model.vllm_entrypoint.shutdown()

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_the_async_engine_streams_and_saves(tiny_folder: Callable[[str], Path]) -> None:
    source = ASYNC.format(path=str(tiny_folder("llama")), engine=TINY_ENGINE, prompt=PROMPT)
    printed = apart.run(["-c", source])
    assert f"(1, {len(PROMPT)}, 64) 2" in printed


def test_an_edit_lands_on_the_step_it_was_made_for(
    engine: Callable[[str], Any], tiny_folder: Callable[[str], Path]
) -> None:
    """The second of three steps, against the same generation on transformers."""
    model = engine("llama")
    reference = StandardizedTransformer(
        str(tiny_folder("llama")), dispatch=True, dtype=torch.float32, attn_implementation="eager"
    )
    with model.trace(PROMPT, temperature=0.0, max_tokens=3, ignore_eos=True) as tracer:
        found = nnsight.save([])
        for step in tracer.iter[:3]:
            if step == 1:
                model.layers[0].layer_output[..., ::2] *= 3
            found.append(model.logits[:, -1])
    settings = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    with torch.no_grad(), reference.generate(torch.tensor([PROMPT]), **settings) as tracer:
        expected = nnsight.save([])
        for step in tracer.iter[:3]:
            if step == 1:
                reference.layers[0].layer_output[..., ::2] *= 3
            expected.append(reference.logits[:, -1])
    with model.trace(PROMPT, temperature=0.0, max_tokens=3, ignore_eos=True) as tracer:
        clean = nnsight.save([])
        for _ in tracer.iter[:3]:
            clean.append(model.logits[:, -1])
    gaps = [relative_error(f, e) for f, e in zip(found, expected, strict=True)]
    assert max(gaps) < CLOSE
    assert torch.equal(found[0], clean[0])
    assert relative_error(found[1], clean[1]) > 1e-3


def test_an_installed_edit_beside_prefix_caching_is_warned_of(
    tiny_folder: Callable[[str], Path], keep: Callable[[Any], Any]
) -> None:
    from nnterp import StandardizedVLLM

    model = keep(
        StandardizedVLLM(
            str(tiny_folder("llama")), dispatch=True, enable_prefix_caching=True, **TINY_ENGINE
        )
    )
    with pytest.warns(UserWarning, match="prefix"):
        with model.edit() as (_, edit):
            model.layers[0].layer_output[:, -1] *= 1
    edit.clear()


def test_queries_inside_paligemma_are_turned_by_one_position_more_on_transformers(
    tmp_path: Path, keep: Callable[[Any], Any]
) -> None:
    """It counts positions from 1 there, from 0 on vLLM; what attends to what is the same."""
    from nnterp import StandardizedVLLM

    row = replace(TINY["gemma"], inside="paligemma", engine=NO_IMAGES)
    path = str(checkpoints.write(row, tmp_path / "paligemma"))
    ids = torch.tensor([PROMPT])
    from_0 = {"input_ids": ids, "position_ids": torch.arange(len(PROMPT))[None]}

    def read(model: Any, prompt: Any, **settings: Any) -> dict[str, torch.Tensor]:
        with torch.no_grad(), model.trace(prompt, **settings):
            queries = model.layers[1].self_attn.attention_queries.save()
            keys = model.layers[1].self_attn.attention_keys.save()
            pattern = model.layers[1].self_attn.attention_probabilities.save()
            stream = model.layers[1].layer_output.save()
        return {"queries": queries, "keys": keys, "pattern": pattern, "stream": stream}

    served = read(
        keep(StandardizedVLLM(path, dispatch=True, **TINY_ENGINE, **row.engine)), ids, max_tokens=1
    )
    transformer = StandardizedTransformer(path, dispatch=True, attn_implementation="eager")
    as_loaded, as_vllm = read(transformer, ids), read(transformer, from_0)
    assert all(relative_error(served[name], want) < CLOSE for name, want in as_vllm.items())
    turned = {
        name for name, want in as_loaded.items() if relative_error(served[name], want) > CLOSE
    }
    assert turned == {"queries", "keys"}
