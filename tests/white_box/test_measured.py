"""What was measured is kept, shown, and what was not, or did not hold, is said at the load."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import torch

import tiny_runs
from nnterp import StandardizedTransformer, UnverifiedWarning
from nnterp.advice import measured
from nnterp.advice.measured import Outcome, cell, doubt, dumps, engine_name, loads, merge
from nnterp.tools.checking import table
from nnterp.tools.checking.findings import Findings
from nnterp.tools.cli import main
from tiny import TINY
from tiny_runs import Run

SOME = {
    "falcon": {
        "falcon": {"vllm 0.32 cpu": Outcome(1e-6), "vllm 0.26 cuda": Outcome(3e-6)},
        "falcon_rw": {
            "vllm 0.32 cpu": Outcome(5e-6),
            "vllm 0.26 cuda": Outcome(0.4, "value 1.attention_output"),
        },
    },
    "llama": {
        "llama": {
            "transformers 5.19": Outcome(2e-7),
            "vllm 0.27 cuda": Outcome(4e-6),
            "vllm 0.32 cpu": Outcome(3e-7),
        }
    },
    "zaya": {"zaya": {"vllm 0.26 cuda": Outcome(None, "UnservableCheckpoint: no such class")}},
}


def test_a_release_is_its_minor_version_and_vllm_one_on_each_platform() -> None:
    assert engine_name("vllm", "0.32.1+cpu", "cpu") == "vllm 0.32 cpu"
    assert engine_name("vllm", "0.26.0", "cuda") == "vllm 0.26 cuda"
    assert engine_name("transformers", "5.19.0.dev0", "") == "transformers 5.19"


def test_what_held_where_it_is_loaded_is_not_doubted() -> None:
    assert doubt(SOME, "falcon", "vllm", "vllm 0.32 cpu") is None
    assert doubt(SOME, "llama", "transformers", "transformers 5.19") is None


@pytest.mark.parametrize(
    ("model_type", "engine", "on", "said"),
    [
        (
            "falcon",
            "vllm",
            "vllm 0.26 cuda",
            "falcon was measured on vllm 0.26 cuda and did not hold: "
            "falcon_rw FAILED 4e-01 (value 1.attention_output)",
        ),
        (
            "zaya",
            "vllm",
            "vllm 0.26 cuda",
            "zaya was measured on vllm 0.26 cuda and did not hold: "
            "zaya FAILED (UnservableCheckpoint: no such class)",
        ),
        (
            "llama",
            "vllm",
            "vllm 0.31 cuda",
            "llama was not measured on vllm 0.31 cuda, but on vllm 0.27 cuda: llama 4e-06",
        ),
        (
            "llama",
            "vllm",
            "vllm 0.26 cpu",
            "llama was not measured on vllm 0.26 cpu, but on vllm 0.32 cpu: llama 3e-07",
        ),
        (
            "falcon",
            "vllm",
            "vllm dev cpu",
            "falcon was not measured on vllm dev cpu, but on vllm 0.32 cpu: "
            "falcon 1e-06, falcon_rw 5e-06",
        ),
        (
            "falcon",
            "transformers",
            "transformers 5.19",
            "falcon was measured on no release of transformers",
        ),
        ("mine", "vllm", "vllm 0.32 cpu", "mine was measured on no release of vllm"),
    ],
)
def test_what_was_not_measured_or_failed_is_said_with_what_is_nearest(
    model_type: str, engine: Any, on: str, said: str
) -> None:
    assert doubt(SOME, model_type, engine, on) == said


def test_loading_what_was_not_measured_warns_once(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(measured, "_warned", set())
    monkeypatch.setattr(measured, "read", lambda: SOME)
    monkeypatch.setattr(measured, "engine_name", lambda engine, *_: f"{engine} 9.1")
    with pytest.warns(UnverifiedWarning, match=r"but on transformers 5\.19: llama 2e-07\. `nn"):
        StandardizedTransformer(str(tiny_folder("llama")))
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnverifiedWarning)
        StandardizedTransformer(str(tiny_folder("llama")))
    with pytest.warns(UnverifiedWarning, match="gpt2 was measured on no release of transformers"):
        StandardizedTransformer(str(tiny_folder("gpt2")))


def test_loading_what_failed_on_vllm_warns(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nnterp import StandardizedVLLM

    monkeypatch.setattr(measured, "_warned", set())
    monkeypatch.setattr(measured, "read", lambda: SOME)
    monkeypatch.setattr(measured, "engine_name", lambda *_: "vllm 0.26 cuda")
    with pytest.warns(UnverifiedWarning, match=r"did not hold: falcon_rw FAILED 4e-01"):
        StandardizedVLLM(str(tiny_folder("falcon")))


def test_loading_what_was_measured_here_says_nothing(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nnterp import StandardizedVLLM

    monkeypatch.setattr(measured, "_warned", set())
    with warnings.catch_warnings():
        warnings.simplefilter("error", UnverifiedWarning)
        StandardizedTransformer(str(tiny_folder("falcon")))
        StandardizedVLLM(str(tiny_folder("falcon")))


@pytest.mark.parametrize(
    ("engine", "on"), [("transformers", "transformers 5.19"), ("vllm", "vllm 0.32 cpu")]
)
def test_every_family_held_on_the_suites_own_releases(engine: Any, on: str) -> None:
    rows = [row for row in TINY.values() if engine == "transformers" or not row.not_on_vllm]
    doubts = {row.model_type: doubt(measured.read(), row.model_type, engine, on) for row in rows}
    assert {name: why for name, why in doubts.items() if why} == {}


def test_a_merge_adds_and_replaces_and_changes_neither() -> None:
    new = {
        "falcon": {"falcon_rw": {"vllm 0.26 cuda": Outcome(5e-6)}},
        "qwen2": {"qwen2": {"vllm 0.26 cuda": Outcome(2e-6)}},
    }
    before = deepcopy((SOME, new))
    merged = merge(SOME, new)
    assert (SOME, new) == before
    assert merged["falcon"]["falcon_rw"] == {
        "vllm 0.32 cpu": Outcome(5e-6),
        "vllm 0.26 cuda": Outcome(5e-6),
    }
    assert merged["falcon"]["falcon"] == SOME["falcon"]["falcon"]
    assert merged["qwen2"] == new["qwen2"]
    assert merge(merged, new) == merged


@pytest.mark.parametrize(
    ("old", "new", "kept"),
    [
        (Outcome(1e-6), Outcome(3e-6), True),
        (Outcome(1e-6), Outcome(4e-7), True),
        (Outcome(1e-6), Outcome(4e-6), False),
        (Outcome(1e-6), Outcome(2e-7), False),
        (Outcome(1e-7), Outcome(0.0), True),
        (Outcome(0.1, "value logits"), Outcome(0.2, "value logits"), True),
        (Outcome(0.1, "value logits"), Outcome(0.1, "edit clean"), False),
        (Outcome(0.1, "value logits"), Outcome(0.1), False),
        (Outcome(None, "refused"), Outcome(1e-7), False),
    ],
)
def test_a_figure_moves_when_it_is_more_than_another_machines_rounding(
    old: Outcome, new: Outcome, kept: bool
) -> None:
    merged = merge({"a": {"a": {"vllm 1.0 cpu": old}}}, {"a": {"a": {"vllm 1.0 cpu": new}}})
    assert merged["a"]["a"]["vllm 1.0 cpu"] == (old if kept else new)


def test_what_is_written_is_read_again_and_in_order() -> None:
    text = dumps(SOME)
    assert loads(text) == SOME
    assert text == dumps({key: SOME[key] for key in reversed(SOME)})
    assert '      "vllm 0.32 cpu": 3e-07\n' in text
    assert measured.FILE.read_text() == dumps(measured.read())


def test_the_table_shows_what_was_measured(capsys: pytest.CaptureFixture[str]) -> None:
    row = table.Row(table.title("falcon", "falcon_rw"), "A", "B", "", "both engines")
    text = table.with_measured(table.write([row]), SOME)
    (line,) = [line for line in text.splitlines() if line.startswith("| `")]
    shown = "vllm 0.26 cuda: FAILED 4e-01 (value 1.attention_output); vllm 0.32 cpu: 5e-06"
    assert line == f"| `falcon` (rw) | A | B |  | both engines | {shown} |"
    assert table.with_measured(text, SOME) == text
    assert main(["families", "llama"]) == 0
    said = capsys.readouterr().out
    assert cell(measured.read()["llama"]["llama"]) in said
    assert "| measured |" in said


def findings(engine: str, mlp_output: float) -> Findings:
    values = {"1.mlp_output": torch.full((1, 2), mlp_output), "logits": torch.ones(1, 2)}
    return Findings(engine, "a family", "a class", "one tensor", num_layers=0, values=values)


def test_what_came_of_a_run_is_what_it_failed_in() -> None:
    found = {"transformers": findings("transformers", 2.0), "vllm": findings("vllm", 3.0)}
    run = Run(found=found)
    assert tiny_runs.outcome("llama", run, "transformers") == Outcome(0.0)
    assert tiny_runs.outcome("llama", run, "vllm") == Outcome(0.5, "value 1.mlp_output")
    chaotic = Run(found=found, rounding={("value", "1.mlp_output"): 0.4})
    assert tiny_runs.outcome("llama", chaotic, "vllm") == Outcome(
        0.5, "cannot be told: value 1.mlp_output"
    )
    held = Run(found={"transformers": found["transformers"], "vllm": findings("vllm", 2.0)})
    assert tiny_runs.outcome("llama", held, "vllm") == Outcome(0.0)


def test_what_came_of_a_run_that_stopped_is_why_and_of_one_that_was_not_made_nothing() -> None:
    error = "Traceback:\n  x\nUnservableCheckpoint: vLLM 0.26 cannot serve /tmp/a/llama: no"
    found = {"transformers": findings("transformers", 2.0)}
    stopped = Run(found=found, error=error, stopped="vllm")
    why = Outcome(None, "UnservableCheckpoint: vLLM 0.26 cannot serve llama: no")
    assert tiny_runs.outcome("llama", stopped, "vllm") == why
    measurement = tiny_runs.measurement({"llama": stopped, "axk2": Run(unmade=True)})
    assert set(measurement) == {"llama"}
    assert set(measurement["llama"]["llama"].values()) == {why, Outcome(0.0)}
