"""A check sees what is wrong with what an engine serves."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import checkpoints
from nnterp.engines.transformers import envoys
from nnterp.families import llama
from nnterp.tools.checking import command
from nnterp.tools.checking.findings import Findings, examine
from nnterp.tools.checking.verdict import Line, between, on_its_own


@pytest.fixture(scope="module")
def found(tiny_folder: Callable[[str], Path]) -> Findings:
    path = str(tiny_folder("gemma2"))
    return examine(command.load(path, "transformers", "cpu", "float32", 20), checkpoints.PROMPT)


def failed(lines: Any) -> set[tuple[str, str]]:
    return {(line.kind, line.key) for line in lines if not line.passed}


def test_what_is_right_passes(found: Findings) -> None:
    assert failed(on_its_own(found)) == set()
    assert failed(between(found, found)) == set()
    assert {line.kind for line in on_its_own(found)} == {
        "identity", "stream", "projection", "effect", "untouched",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("key", "kinds"),
    [
        ("1.attention_output", {("identity", "1")}),
        ("1.mlp_output", {("identity", "1")}),
        ("1.layer_input", {("identity", "1"), ("stream", "0")}),
        ("projected", {("projection", "logits")}),
    ],
)
def test_a_wrong_value_fails_what_defines_it(
    found: Findings, key: str, kinds: set[tuple[str, str]]
) -> None:
    other = deepcopy(found)
    other.values[key] = other.values[key] * 1.001
    assert failed(on_its_own(other)) == kinds


def test_a_part_that_is_not_served_leaves_the_identity_unknown(found: Findings) -> None:
    other = deepcopy(found)
    del other.values["0.mlp_output"]
    assert failed(on_its_own(other)) == {("identity", "0")}


def test_an_edit_without_effect_fails(found: Findings) -> None:
    other = deepcopy(found)
    other.edits["assigned.0.mlp_output"] = other.edits["clean"]
    assert failed(on_its_own(other)) == {("effect", "assigned.0.mlp_output")}


def test_a_row_that_moves_though_it_is_left_alone_fails(found: Findings) -> None:
    other = deepcopy(found)
    other.moved["in_place.1.layer_output"] = 1e-9
    assert failed(on_its_own(other)) == {("untouched", "in_place.1.layer_output")}


@pytest.mark.parametrize(
    ("engine", "key", "size", "passes"),
    [
        ("transformers", "in_place.1.layer_output", 1e-7, True),
        ("transformers", "assigned.1.mlp_output", 1e-7, True),
        ("transformers", "in_place.1.layer_output", 1e-5, False),
        ("transformers", "in_place.1.layer_output", float("nan"), False),
        ("transformers", "equal.1.layer_output", 1e-7, False),
        ("transformers", "in_place.1.attention_output", 1e-7, False),
        ("transformers", "in_place.0.layer_output", 1e-7, False),
        ("vllm", "in_place.1.layer_output", 1e-7, False),
    ],
)
def test_only_what_experts_compute_may_round_by_the_number_of_their_rows(
    found: Findings, engine: str, key: str, size: float, passes: bool
) -> None:
    other = replace(deepcopy(found), engine=engine)
    other.values["1.router_logits"] = torch.zeros(1)
    other.moved[key] = size
    assert failed(on_its_own(other)) == (set() if passes else {("untouched", key)})


def test_a_request_that_is_disturbed_fails(found: Findings) -> None:
    other = deepcopy(found)
    other.disturbed.append("first after nan")
    assert failed(on_its_own(other)) == {("neighbours", "first after nan")}


@pytest.mark.parametrize("kind", ["values", "edits", "decoded"])
def test_what_the_other_engine_says_otherwise_fails(found: Findings, kind: str) -> None:
    other = deepcopy(found)
    keys = sorted(getattr(other, kind).keys() - {"projected", "input_ids"})
    for key in keys:
        tensors = getattr(other, kind)
        tensors[key] = tensors[key] * (1 + 1e-4)
    (name,) = {"values": ["value"], "edits": ["edit"], "decoded": ["decoded"]}[kind]
    assert failed(between(other, found)) == {(name, key) for key in keys}


def test_a_shape_of_its_own_is_infinitely_far(found: Findings) -> None:
    other = deepcopy(found)
    other.values["logits"] = other.values["logits"][0]
    (line,) = [line for line in between(other, found) if not line.passed]
    assert line == Line("value", "logits", float("inf"), line.limit, False)


def test_a_reason_that_is_another_when_asked_for_is_found(
    tiny_folder: Callable[[str], Path],
) -> None:
    reasons = iter(f"reason {number}" for number in range(1000))

    class Fickle(envoys.Attention):
        def unavailable(self, name: str) -> str | None:
            if name == "attention_scores":
                return next(reasons)
            return super().unavailable(name)

    family = SimpleNamespace(
        RENAME=llama.RENAME, ENVOYS=llama.ENVOYS | {"layers.*.self_attn": Fickle}
    )
    path = str(tiny_folder("llama"))
    model = command.load(path, "transformers", "cpu", "float32", 20, family=family)
    lines = on_its_own(examine(model, checkpoints.PROMPT))
    assert {kind for kind, _ in failed(lines)} == {"support"}


def test_a_text_is_the_checkpoints_own_tokens(tiny_folder: Callable[[str], Path]) -> None:
    ids = command._ids(str(tiny_folder("llama")), "abc")
    assert len(ids) == 3
    assert all(0 <= token < 256 for token in ids)
