"""What float32 holds of a checkpoint: a check allows for that much, says so, and for no more."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import checkpoints
from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.vllm import qwen2
from nnterp.sites.mapped import scaled
from nnterp.sites.primitive import Output
from nnterp.tools.checking import command, readings, rounding
from nnterp.tools.checking.compare import relative_error
from nnterp.tools.checking.findings import Findings, examine
from nnterp.tools.checking.verdict import BEYOND_ROUNDING, CLOSE, Line, between
from tiny import TINY

#: Large where rotary embeddings hardly turn, as Qwen2.5-0.5B has them: added to every key alike
#: they change no pattern, and what the keys differ in has few digits left.
KEY_BIAS = [300.0 if feature in (15, 31) else 0.0 for feature in range(32)]


@pytest.fixture(scope="module")
def biased(tmp_path_factory: pytest.TempPathFactory) -> str:
    row = replace(TINY["qwen2"], weights={"k_proj.bias": KEY_BIAS})
    return str(checkpoints.write(row, tmp_path_factory.mktemp("biased") / "qwen2"))


@pytest.fixture
def load_and_keep(monkeypatch: pytest.MonkeyPatch, keep: Callable[[Any], Any]) -> None:
    """Have `check` keep the engines it starts."""
    load = command.load
    monkeypatch.setattr(
        command, "load", lambda *arguments, **settings: keep(load(*arguments, **settings))
    )


def check(path: str) -> tuple[list[Findings], list[Line]]:
    return command.check(path, prompt=checkpoints.PROMPT, progress=False)


def test_differences_that_rounding_makes_pass_and_are_shown_beside_it(
    biased: str, load_and_keep: None
) -> None:
    found, lines = check(biased)
    assert [line for line in lines if not line.passed] == []
    beyond = [line for line in lines if line.kind != "effect" and line.size > CLOSE]
    assert {line.kind for line in beyond} >= {"value", "edit"}
    for line in beyond:
        assert line.rounding is not None
        assert line.size < line.limit == BEYOND_ROUNDING * line.rounding < 2e-4
    said = list(command.report(found, lines))
    worst = max((line for line in beyond if line.kind == "value"), key=lambda line: line.size)
    (row,) = [text for text in said if f"  {worst.key} " in text and text[0] != " "]
    assert f"{worst.size:.1e}" in row
    assert row.endswith(f"rounding alone {worst.rounding:.1e}")


def test_a_check_within_the_limit_measures_no_rounding(
    tiny_folder: Callable[[str], Path],
    engine: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    load, loaded = command.load, []

    def loading(path: str, on: str, *arguments: Any, **settings: Any) -> Any:
        loaded.append(on)
        return engine("llama") if on == "vllm" else load(path, on, *arguments, **settings)

    monkeypatch.setattr(command, "load", loading)
    _, lines = check(str(tiny_folder("llama")))
    assert loaded == ["transformers", "vllm"]
    assert all(line.passed and line.rounding is None for line in lines)


@pytest.fixture(scope="module")
def found(biased: str) -> Findings:
    return examine(command.load(biased, "transformers", "cpu", "float32", 20), checkpoints.PROMPT)


@pytest.fixture(scope="module")
def wide(biased: str) -> Any:
    model = command.load(biased, "transformers", "cpu", "float32", 20)
    model._module.to(torch.float64)
    return model


def test_an_engine_that_is_off_by_more_than_rounding_fails(
    biased: str,
    found: Findings,
    wide: Any,
    keep: Callable[[Any], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    off = Mlp.placed(mlp_output=scaled(Output(), lambda _: 1.0001))
    monkeypatch.setitem(qwen2.ENVOYS, "layers.*.mlp", off)
    engine = keep(command.load(biased, "vllm", "cpu", "float32", 20))
    served = replace(found, values=readings.values(engine, checkpoints.PROMPT))
    beyond = [line for line in between(served, found) if not line.passed]
    alone = rounding.alone(wide, checkpoints.PROMPT, found, beyond, torch.float32)
    failed = [line for line in between(served, found, alone, 1e-3) if not line.passed]
    assert "0.mlp_output" in {line.key for line in failed}
    assert all(line.told and line.key.endswith("mlp_output") for line in failed)


KEYS = [Line("value", "logits", 1.0, 0.0, False), Line("edit", "clean", 1.0, 0.0, False)]


def test_rounding_is_what_separates_transformers_from_itself_in_float64(
    found: Findings, wide: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    with torch.no_grad():
        exact = wide._module(torch.tensor([checkpoints.PROMPT])).logits[:, -1:]
    monkeypatch.setattr(rounding, "_DRAWS", 0)
    alone = rounding.alone(wide, checkpoints.PROMPT, found, KEYS, torch.float32)
    own = relative_error(found.values["logits"], exact)
    assert alone == {("value", "logits"): own, ("edit", "clean"): own}
    assert 1e-7 < own < 1e-4


def test_one_lucky_draw_does_not_make_the_limit(found: Findings, wide: Any) -> None:
    """Findings that are exact by chance are no sign that another engine's would be."""
    lucky = deepcopy(found)
    with torch.no_grad():
        exact = wide._module(torch.tensor([checkpoints.PROMPT])).logits[:, -1:]
    lucky.values["logits"] = lucky.edits["clean"] = exact
    alone = rounding.alone(wide, checkpoints.PROMPT, lucky, KEYS, torch.float32)
    own = relative_error(found.values["logits"], exact)
    for size in alone.values():
        assert own / 5 < size < own * 5


def test_results_are_changed_by_what_rounding_would_and_views_are_not() -> None:
    numbers = torch.linspace(-3, 5, 1000, dtype=torch.float64)
    with rounding._Rounding(2.0**-24):
        doubled = numbers * 2
        view = numbers.view(10, 100).mT
        written = numbers.clone().copy_(numbers)
        whole = torch.arange(5) + 1
    off = (doubled / (2 * numbers) - 1).abs()
    assert 2.0**-26 < off.mean() < off.max() <= 2.0**-24 * 1.001
    assert torch.equal(view, numbers.view(10, 100).mT)
    assert torch.equal(written, numbers)
    assert whole.tolist() == [1, 2, 3, 4, 5]


def test_what_rounding_alone_makes_large_cannot_be_told(found: Findings) -> None:
    other = deepcopy(found)
    other.values["logits"] = other.values["logits"] * 1.002
    lines = list(between(other, found, {("value", "logits"): 2e-3}, telling=1e-3))
    (line,) = [line for line in lines if not line.passed]
    assert (line.key, line.told) == ("logits", False)
    said = list(command.report([found, other], lines))
    assert said[-1] == ("CANNOT BE TOLD value logits: 2.0e-03, and rounding alone makes 2.0e-03")
    assert any("1 CANNOT BE TOLD; rounding alone 2.0e-03" in text for text in said)
    assert not any("FAILED" in text for text in said)


def test_where_rounding_cannot_be_measured_the_limit_stays_and_it_is_said(
    biased: str, found: Findings, monkeypatch: pytest.MonkeyPatch
) -> None:
    def no_room(*_: Any, **__: Any) -> None:
        raise torch.OutOfMemoryError("no room")

    monkeypatch.setattr(rounding, "alone", no_room)
    with pytest.warns(UserWarning, match="could not be measured: OutOfMemoryError: no room"):
        assert command._rounding(biased, "cpu", "float32", None, [5], found, KEYS) == {}


def test_below_float32_a_block_is_held_to_what_its_type_holds(
    tiny_folder: Callable[[str], Path],
) -> None:
    path = str(tiny_folder("gpt_neox"))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _, lines = command.check(path, ["transformers"], dtype="bfloat16", progress=False)
    identities = [line for line in lines if line.kind == "identity"]
    assert all(line.passed for line in lines)
    assert any(line.size > 1e-6 for line in identities)
    assert all(line.limit < 0.1 for line in identities)
