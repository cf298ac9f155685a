"""Choosing a family: by model_type, by name, by a module of one's own; and additions to it."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import checkpoints
import nnterp
from nnterp import StandardizedTransformer, UnsupportedFamily, families
from nnterp.engines.transformers.envoys import Attention, Layer, Mlp
from nnterp.families import llama
from nnterp.tools.checking import readings
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary.values import LAYER_OUTPUT


def load(path: Path, **arguments: Any) -> StandardizedTransformer:
    return StandardizedTransformer(str(path), **arguments)


def renamed(path: Path, model_type: str, to: Path) -> Path:
    """A copy of a checkpoint's config under another ``model_type``."""
    to.mkdir()
    for file in path.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    config = json.loads((path / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, "model_type": model_type}))
    return to


def test_what_vllm_serves_transformers_does_too() -> None:
    assert set(families.known("vllm")) <= set(families.known("transformers"))


@pytest.mark.parametrize("engine", ["transformers", "vllm"])
def test_a_family_is_data(engine: Any) -> None:
    for name in families.known(engine):
        family = families.find(name, None, engine)
        assert family.__doc__, name
        assert family.RENAME, name
        assert "layers.*" in family.ENVOYS, name


def test_a_family_whose_blocks_are_not_there_is_refused_at_the_load(
    tiny_folder: Callable[[str], Path],
) -> None:
    with pytest.raises(UnsupportedFamily, match=r"LlamaForCausalLM has no blocks .*transformer\.h"):
        load(tiny_folder("llama"), family="gpt2")


@pytest.mark.parametrize("load", ["StandardizedTransformer", "StandardizedVLLM"])
def test_an_unknown_model_type_names_its_relative_and_the_line_that_tries_it(
    load: str, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    path = renamed(tiny_folder("qwen2"), "novel", tmp_path / "other")
    with pytest.raises(UnsupportedFamily) as refused:
        getattr(nnterp, load)(str(path))
    message = str(refused.value)
    assert "'novel'" in message
    assert "Nearest is qwen2: it calls itself a Qwen2ForCausalLM" in message
    (line,) = [line for line in message.splitlines() if line.startswith("    ")]
    assert line.strip().startswith(f"model = {load}(")
    assert line.endswith("family='qwen2')")
    known = families.known("vllm" if load == "StandardizedVLLM" else "transformers")
    assert ", ".join(known) in message


def test_a_misspelt_family_names_the_nearest(tiny_folder: Callable[[str], Path]) -> None:
    with pytest.raises(UnsupportedFamily, match="did you mean 'llama'"):
        load(tiny_folder("llama"), family="lama")


def test_a_family_can_be_given_by_name(tiny_folder: Callable[[str], Path], tmp_path: Path) -> None:
    path = tiny_folder("llama")
    model = load(renamed(path, "cohere", tmp_path / "other"), family="llama")
    assert model.family is llama


def test_a_family_can_be_given_as_a_module_of_ones_own(
    tiny_folder: Callable[[str], Path],
) -> None:
    mine = SimpleNamespace(RENAME=dict(llama.RENAME), ENVOYS=dict(llama.ENVOYS))
    model = load(tiny_folder("llama"), family=mine, dispatch=True, dtype=torch.float32)
    assert model.family is mine
    assert readings.clean_logits(model, checkpoints.PROMPT).shape == (1, 1, 256)


def test_something_that_is_no_family_is_refused(tiny_folder: Callable[[str], Path]) -> None:
    with pytest.raises(TypeError, match="no RENAME and no ENVOYS"):
        load(tiny_folder("llama"), family=object())


def test_rename_adds_to_the_familys(tiny_folder: Callable[[str], Path]) -> None:
    model = load(tiny_folder("llama"), rename={"mlp": "feed_forward"})
    assert model.layers[0].feed_forward is model.layers[0].mlp


class Doubled(Layer):
    """A block with a value of its own, at the site of another."""

    stream = StandardValue(LAYER_OUTPUT, Layer.layer_output.site)


def test_envoys_add_to_the_familys(tiny_folder: Callable[[str], Path]) -> None:
    model = load(tiny_folder("llama"), envoys={"layers.1": Doubled}, dispatch=True)
    # The family's own key comes first in the map nnsight searches; a more exact one wins.
    assert isinstance(model.layers[1], Doubled)
    assert type(model.layers[0]) is Layer
    assert type(model.layers[1].self_attn) is Attention
    assert type(model.layers[1].mlp) is Mlp


@pytest.mark.parametrize(
    ("argument", "key", "hint"),
    [
        ("rename", "model.layrs", "model.layers"),
        ("envoys", "layers.*.self_atn", "self_attn"),
    ],
)
def test_a_key_that_names_no_module_is_refused(
    tiny_folder: Callable[[str], Path], argument: str, key: str, hint: str
) -> None:
    value = "x" if argument == "rename" else Mlp
    with pytest.raises(ValueError, match=f"{argument} key .* names no module.*{hint}"):
        load(tiny_folder("llama"), **{argument: {key: value}})
