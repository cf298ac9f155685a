"""Families and values that users register."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from jaxtyping import Float
from torch import Tensor

import nnterp
from nnterp import VALUES, Value, families
from nnterp.families import llama
from nnterp.sites.primitive import FirstArgument, Output
from nnterp.tools.checking.verdict import CLOSE

HERE = Path(__file__).parent

OWN = Value("own", "mlp", Float[Tensor, "batch seq hidden"], "a value of one's own")


@pytest.fixture(scope="module")
def said(tiny_folder: Callable[[str], Path]) -> dict[str, Any]:
    """What registered.py, which registers for both engines, saw."""
    command = [sys.executable, str(HERE / "registered.py"), str(tiny_folder("llama"))]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_registered_value_is_read_edited_and_collected_as_plain_hooks_do(
    engine: str, said: dict[str, Any]
) -> None:
    far = said[engine]["far"]
    assert far.keys() == {"value", "logits", "collected"}
    assert {key: size for key, size in far.items() if not size < CLOSE} == {}


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_registered_value_is_in_support_and_of_its_type(
    engine: str, said: dict[str, Any]
) -> None:
    assert said[engine]["available"]
    assert said[engine]["support"] == "'batch seq intermediate'"
    assert said[engine]["is_its_type"]


def test_a_registered_family_is_found_before_the_known_one(said: dict[str, Any]) -> None:
    assert said["block"] == "OwnLayer"


def test_a_module_that_is_not_there_is_the_reason(either: Any) -> None:
    mlp = either.layers[0].mlp
    assert Output(of="nowhere").missing(mlp) == f"{mlp.path} has no module 'nowhere'"
    assert FirstArgument(of="down_proj").missing(mlp) is None


@pytest.mark.parametrize(
    ("value", "given", "says"),
    [
        (VALUES["mlp_output"], {"transformers": Output(), "after": "mlp_output"}, "taken"),
        (OWN, {"after": "mlp_output"}, "no site"),
        (OWN, {"transformers": Output(), "after": "mlp_outputs"}, "no value"),
        (
            Value("own", "model", Float[Tensor, "batch seq hidden"], "of the model"),
            {"transformers": Output(), "after": "logits"},
            "as a whole",
        ),
    ],
)
def test_what_cannot_be_registered_is_said(value: Value, given: dict[str, Any], says: str) -> None:
    before = list(VALUES)
    with pytest.raises(ValueError, match=says):
        nnterp.register_value(value, **given)
    assert list(VALUES) == before


def test_a_family_without_names_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(TypeError, match="ENVOYS"):
        nnterp.register_family("own", SimpleNamespace(RENAME={}))
    monkeypatch.setitem(families._registered["transformers"], "own", llama)
    assert families.find(None, SimpleNamespace(model_type="own"), "transformers") is llama
    assert "own" in families.known("transformers")
