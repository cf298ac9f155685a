"""An error inside a value's own code names the value."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

import checkpoints
from nnterp.sites.fused import FusedOutput

PROMPT = checkpoints.PROMPT
ONE_STEP = {"temperature": 0.0, "max_tokens": 1}


@pytest.fixture(scope="module")
def model(engine: Callable[[str], Any]) -> Any:
    return engine("llama")


def test_an_attribute_error_inside_a_value_is_not_blamed_on_the_value(
    model: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(FusedOutput, "read", lambda self, host, raw: raw.nothing)
    with pytest.raises(RuntimeError) as raised:
        with model.trace(PROMPT, **ONE_STEP):
            stream = model.layers[0].layer_output.save()  # noqa: F841
    said = str(raised.value).splitlines()[0]
    assert said.startswith("RuntimeError: model.model.layers.0.layer_output: AttributeError: ")
    assert "has no attribute 'nothing'" in said
