"""Values by name, and taps. What replayed graphs serve is a GPU's to show (gpu/check_graphs.py)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from nnterp import StandardizedVLLM
from nnterp.engines.vllm.client import preflight
from nnterp.errors import Unavailable
from nnterp.vocabulary.names import places
from nnterp.vocabulary.values import VALUES


@pytest.fixture
def tapped(
    tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> Callable[..., Any]:
    """A model that was given taps and loaded no further than its names."""
    monkeypatch.setenv(preflight.BREAK_GRAPHS, "1")

    def load(name: str, *taps: str) -> Any:
        model = StandardizedVLLM(str(tiny_folder(name)), taps=taps)
        model.taps = model._resolve_taps(model._module)
        return model

    return load


def test_every_value_has_a_name_that_reads_back() -> None:
    for value in VALUES.values():
        for name in {str(place) for layer in ("3", "*") for place in named(value, layer)}:
            (place,) = places(name, 5)
            assert str(place) == name
            assert place.value is value


def named(value: Any, layer: str) -> Any:
    if value.host == "model":
        return places(value.name, 5)
    host = "" if value.host == "layer" else f"{value.host}."
    return places(f"layers.{layer}.{host}{value.name}", 5)


def test_a_negative_block_counts_from_the_last() -> None:
    assert [str(place) for place in places("layers.-1.layer_output", 5)] == [
        "layers.4.layer_output"
    ]


@pytest.mark.parametrize(
    ("name", "tap", "locations"),
    [
        ("llama", "layers.*.layer_output", ["model.layers.0.output", "model.layers.1.output"]),
        ("llama", "layers.1.layer_input", ["model.layers.1.input"]),
        (
            "llama",
            "layers.0.self_attn.attention_head_outputs",
            ["model.layers.0.self_attn.attn.output"],
        ),
        ("gpt2", "layers.-1.mlp.mlp_output", ["transformer.h.1.mlp.output"]),
        ("gemma2", "layers.0.mlp.mlp_output", ["model.layers.0.post_feedforward_layernorm.output"]),
        ("llama", "model.norm.output", ["model.norm.output"]),
    ],
)
def test_a_tap_is_the_location_of_its_value(
    tapped: Callable[..., Any], name: str, tap: str, locations: list[str]
) -> None:
    assert tapped(name, tap).taps == tuple(f"model.{location}" for location in locations)


def test_support_lists_the_taps_and_says_why_not_the_rest(tapped: Callable[..., Any]) -> None:
    served = tapped("llama", "layers.1.layer_output", "logits").support()
    assert served["layer_output"].blocks == (1,)
    assert "add it to taps=" in served["layer_output"].reasons[0]
    assert served["logits"]
    assert served["next_token_probs"]
    assert not served["attention_queries"]


@pytest.mark.parametrize(
    ("tap", "kind", "says"),
    [
        ("layers.*.layer_outptu", ValueError, "did you mean 'layers"),
        ("layers.7.layer_output", IndexError, "this model has 2"),
        ("logits", ValueError, "logits need no tap"),
        ("model.layers.9.output", ValueError, "names no module"),
    ],
)
def test_a_tap_that_is_none_says_so(
    tapped: Callable[..., Any], tap: str, kind: type[Exception], says: str
) -> None:
    with pytest.raises(kind, match=says):
        tapped("llama", tap)


def test_a_value_the_family_does_not_serve_is_no_tap(
    tapped: Callable[..., Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    from nnterp.engines.vllm.envoys.layer import FusedLayer

    monkeypatch.setattr(FusedLayer, "unavailable", lambda self, name: "for want of a reason")
    with pytest.raises(Unavailable, match="layers.0.layer_output: for want of a reason"):
        tapped("llama", "layers.0.layer_output")


def test_graphs_are_broken_by_an_engine_that_starts_afresh() -> None:
    # Attention is imported here by now, and decided otherwise.
    apart = {"VLLM_ENABLE_V1_MULTIPROCESSING": "1"}
    preflight.break_graphs(apart)
    assert apart[preflight.BREAK_GRAPHS] == "1"
    assert apart["VLLM_WORKER_MULTIPROC_METHOD"] == "spawn"
    with pytest.raises(RuntimeError, match=f"set {preflight.BREAK_GRAPHS}=1 before"):
        preflight.break_graphs({"VLLM_ENABLE_V1_MULTIPROCESSING": "0"})
