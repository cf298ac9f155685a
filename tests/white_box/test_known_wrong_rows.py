"""The rows of what is known to be computed wrongly, and what each is met by."""

from __future__ import annotations

import warnings
from types import SimpleNamespace
from typing import Any

import pytest

from nnterp import UnverifiedWarning, families
from nnterp.advice import known_wrong
from nnterp.advice.known_wrong import KNOWN_WRONG, met_by


def config(model_type: str, **fields: Any) -> Any:
    """A decoder's config, with no other around it."""
    made = SimpleNamespace(model_type=model_type, **fields)
    made.get_text_config = lambda decoder: made
    return made


COHERE2 = config("cohere2", layer_types=["sliding_attention"], logit_scale=0.5)


DEEPSEEK = config("deepseek_v3", rope_parameters={"rope_type": "default"}, rms_norm_eps=1e-6)


YARN = config("deepseek_v3", rope_parameters={"rope_type": "yarn"}, rms_norm_eps=1e-6)


@pytest.mark.parametrize(
    ("of", "engine", "version", "platform", "met"),
    [
        (COHERE2, "vllm", "0.32.0", "cpu", True),
        (COHERE2, "vllm", "0.32.0+cpu", "cuda", True),
        (COHERE2, "vllm", "0.33.1", "cpu", False),
        (COHERE2, "transformers", "5.19.0", "", False),
        (config("cohere2", layer_types=None), "vllm", "0.32.0", "cpu", False),
        (DEEPSEEK, "vllm", "0.32.0", "cpu", True),
        (DEEPSEEK, "vllm", "0.32.0", "cuda", False),
        (YARN, "vllm", "0.32.0", "cpu", False),
    ],
)
def test_a_row_is_met_where_it_says(
    of: Any, engine: Any, version: str, platform: str, met: bool
) -> None:
    assert bool(met_by(of, engine, version, platform, {})) is met


def test_rows_of_every_family_are_met_by_what_a_load_asks_for() -> None:
    def causes(platform: str, **arguments: Any) -> list[str]:
        release = {"cpu": "0.32.0", "cuda": "0.26.0"}[platform]
        return [row.cause for row in met_by(YARN, "vllm", release, platform, arguments)]

    assert causes("cpu") == causes("cpu", enable_lora=False) == causes("cuda") == []
    assert "without an adapter" in causes("cpu", enable_lora=True)[0]
    assert "FLEX_ATTENTION" in causes("cuda", attention_backend="FLEX_ATTENTION")[0]
    assert causes("cuda", attention_backend="TRITON_ATTN", enable_lora=True) == []


def test_every_row_is_of_families_that_there_are() -> None:
    for row in KNOWN_WRONG:
        known = set(families.known("transformers")) | set(families.known("vllm"))
        assert set(row.model_types) <= known, row
        assert row.cause
        assert row.size


def test_a_release_that_was_not_tried_is_said_to_be_so(monkeypatch: pytest.MonkeyPatch) -> None:
    import vllm

    monkeypatch.setattr(vllm, "__version__", "0.26.0")
    said = r"cohere2 is known .* by vllm ==0\.32\.\*: its sliding windows .* 0\.26\.0 was not tried"
    with pytest.warns(UnverifiedWarning, match=said):
        known_wrong.warn(COHERE2, "vllm", "cuda", {})
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        known_wrong.warn(config("cohere2", layer_types=None), "vllm", "cuda", {})
