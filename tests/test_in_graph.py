"""Edits and reads in a forward that could be compiled, held against transformers."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import in_graph
from conftest import TINY_ENGINE
from nnterp import Add, ProjectOut, Read, Replace, StandardizedTransformer, Unavailable, Zero

#: Kinds of families: a stream of two addends, sandwiched norms and a scaled embedding, one tensor,
#: contributions that are multiplied outside of their module.
KINDS = ("llama", "gemma2", "gpt2", "granite")

CLOSE = 2e-5

PROMPTS = [[5, 91, 17, 33], [8, 9, 10], [60, 61, 62, 63, 64]]

ADDED = "layers.1.layer_output"


@pytest.fixture(scope="module")
def serving(tiny_folder: Callable[[str], Path], keep: Callable[[Any], Any]) -> Callable[..., Any]:
    """An engine with edits and reads in its forward, which runs eagerly here."""
    from nnterp import StandardizedVLLM

    made: dict[str, Any] = {}

    def start(name: str, **arguments: Any) -> Any:
        key = json.dumps([name, arguments])
        if key not in made:
            settings = {
                "edits": in_graph.PLACES,
                "reads": in_graph.PLACES,
                "edit_slots": 24,
                "directions": True,
                "max_num_batched_tokens": 64,
                "enforce_eager": True,
                **arguments,
            }
            path = tiny_folder(name)
            made[key] = keep(StandardizedVLLM(path, dispatch=True, **{**TINY_ENGINE, **settings}))
        return made[key]

    return start


@pytest.mark.parametrize("name", KINDS)
def test_edits_and_reads_are_those_of_transformers(
    name: str, serving: Callable[..., Any], tiny_folder: Callable[[str], Path]
) -> None:
    model = serving(name)
    reference = StandardizedTransformer(
        tiny_folder(name), dtype=torch.float32, attn_implementation="eager"
    )
    for seed in range(30):
        given = in_graph.program(model, seed)
        apart = in_graph.gap(in_graph.run(model, given), in_graph.run(reference, given))
        assert apart < CLOSE, (seed, given)


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_who_stands_beside_an_edit_is_untouched(dtype: str, serving: Callable[..., Any]) -> None:
    """To the bit, and whatever the edit puts there."""
    model = serving("llama", dtype=dtype)
    streams = [Read("layers.*.layer_output", "all"), Read("logits")]
    settings = {"reads": streams, "max_tokens": 3, "ignore_eos": True}
    plain = model.run(PROMPTS, **settings)
    for value in (float("nan"), float("inf"), 3.0):
        rows = torch.full((model.hidden_size,), value)
        own = [Replace(ADDED, rows, positions=1), Zero("layers.0.layer_output", positions=2)]
        edited = model.run(PROMPTS, edits=[[], own, []], **settings)
        for place in plain.values:
            for prompt in (0, 2):
                assert torch.equal(edited[place][prompt], plain[place][prompt])
            assert torch.equal(edited[place][1][:1], plain[place][1][:1]) or place == "logits"
        assert not torch.equal(edited[ADDED][1][1], plain[ADDED][1][1])


def test_what_is_replaced_is_gone_whatever_it_was(serving: Callable[..., Any]) -> None:
    model = serving("llama")
    nan = torch.full((model.hidden_size,), float("nan"))
    done = model.run(
        PROMPTS[:1],
        reads=[Read(ADDED, "all")],
        edits=[Replace(ADDED, nan), Replace(ADDED, torch.ones(model.hidden_size))],
    )
    assert torch.equal(done[ADDED][0], torch.ones(4, model.hidden_size))


def test_prompts_wait_for_slots(serving: Callable[..., Any]) -> None:
    """More different edits than the tables hold are made in turn, and leave nothing behind."""
    model = serving("llama")
    vectors = torch.randn(70, model.hidden_size, generator=torch.Generator().manual_seed(0))
    reads = [Read(ADDED)]
    plain = model.run(PROMPTS[:1], reads=reads)[ADDED][0]
    done = model.run(
        PROMPTS[:1] * 70, reads=reads, edits=[[Add(ADDED, vector)] for vector in vectors]
    )
    torch.testing.assert_close(done[ADDED], plain + vectors)
    assert torch.equal(model.run(PROMPTS[:1], reads=reads)[ADDED][0], plain)


def test_a_shared_edit_takes_one_slot(serving: Callable[..., Any]) -> None:
    model = serving("llama")
    vector = torch.ones(model.hidden_size)
    plain = model.run(PROMPTS, reads=[Read(ADDED)])
    rows = model.run(PROMPTS * 30, reads=[Read(ADDED)], edits=[Add(ADDED, vector)])
    torch.testing.assert_close(rows[ADDED], (plain[ADDED] + vector).repeat(30, 1))


def test_a_chunked_prompt_and_a_cached_one_are_edited_alike(serving: Callable[..., Any]) -> None:
    model = serving("llama")
    prompt = [3 + i % 200 for i in range(50)]
    edits = [Add(ADDED, torch.ones(model.hidden_size), positions=[2, 31, 49])]
    reads = [Read(ADDED, "all"), Read("logits")]
    small = serving("llama", max_num_batched_tokens=16, max_num_seqs=8)
    expected = model.run([prompt], reads=reads, edits=edits)
    for _ in range(2):
        found = small.run([prompt], reads=reads, edits=edits)
        for name in (ADDED, "logits"):
            torch.testing.assert_close(found[name][0], expected[name][0], rtol=1e-4, atol=1e-5)


def test_what_is_not_declared_is_refused_before_anything_runs(serving: Callable[..., Any]) -> None:
    model = serving("llama", edits=[ADDED], reads=["layers.0.layer_output"], directions=False)
    vector = torch.ones(model.hidden_size)
    with pytest.raises(Unavailable, match=r"edits\[1\]: layers.0.layer_output is not among the ed"):
        model.run(PROMPTS, edits=[Add(ADDED, vector), Add("layers.0.layer_output", vector)])
    with pytest.raises(Unavailable, match=r"layers.1.layer_output is not among the reads="):
        model.collect(PROMPTS, {ADDED: "last"})
    with pytest.raises(ValueError, match=r"of prompt 0 at layers.1.* load it with directions=True"):
        model.run(PROMPTS, edits=[ProjectOut(ADDED, vector)])
    with pytest.raises(ValueError, match=r"no block can run beside it; use run and collect"):
        model.trace(PROMPTS[0])
    many = torch.ones(30, model.hidden_size)
    with pytest.raises(
        ValueError, match=r"prompt 0 has 30 positions .* load it with edit_slots=30"
    ):
        model.run([list(range(3, 43))], edits=[Replace(ADDED, many, positions=list(range(30)))])
    assert len(model.run(PROMPTS, edits=[Add("logits", torch.zeros(model.vocab_size))])) == 3


def test_two_directions_at_one_row_are_refused(serving: Callable[..., Any]) -> None:
    model = serving("llama")
    draw = torch.Generator().manual_seed(0)
    two = [ProjectOut(ADDED, torch.randn(model.hidden_size, generator=draw)) for _ in range(2)]
    with pytest.raises(ValueError, match=r"prompt 0 at layers.1.layer_output .* two directions"):
        model.run(PROMPTS, edits=two)
    apart = [ProjectOut(ADDED, two[0].direction, positions=0)]
    apart += [ProjectOut(ADDED, two[1].direction, positions=1)]
    rows = model.run(PROMPTS[:1], edits=apart, reads=[Read(ADDED, "all")])[ADDED][0]
    for position, edit in enumerate(two):
        assert abs(rows[position] @ edit.direction / edit.direction.norm()) < 1e-5


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"edits": ["layers.9.layer_output"]}, IndexError, "no block 9"),
        ({"edits": ["layers.*.layer_outputs"]}, ValueError, "did you mean"),
        ({"edits": ["layers.0.self_attn.attention_scores"]}, ValueError, "is read-only on vllm"),
        ({"reads": ["layers.0.self_attn.attention_scores"]}, Unavailable, "computed beside it"),
        ({"reads": ["layers.0.layer_output"], "taps": ["logits"]}, ValueError, "one or the other"),
        ({"edits": ["logits"], "mode": "async"}, NotImplementedError, "without mode='async'"),
        ({"edits": ["logits"], "tensor_parallel_size": 2}, NotImplementedError, "one device"),
    ],
)
def test_what_cannot_be_in_a_graph_is_refused_before_the_engine_starts(
    arguments: dict[str, Any],
    error: type[Exception],
    said: str,
    tiny_folder: Callable[[str], Path],
) -> None:
    from nnterp import StandardizedVLLM

    with pytest.raises(error, match=said):
        StandardizedVLLM(tiny_folder("llama"), **TINY_ENGINE, **arguments)


def test_a_compiler_keeps_what_is_in_the_forward(tiny_folder: Callable[[str], Path]) -> None:
    """In a process of its own, because this one has the compiler disabled."""
    script = Path(__file__).parent / "gpu" / "check_in_graph.py"
    command = [sys.executable, str(script), "--device", "cpu", "--names", "llama"]
    command += ["--programs", "8", "--checkpoints", str(tiny_folder("llama").parent)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
