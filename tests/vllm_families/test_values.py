"""Every family on vLLM against transformers: the same values, and edits that do the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nnsight
import pytest
import torch

import checkpoints
from nnterp.checking import readings
from nnterp.compare import gap
from nnterp.values import VALUES

CLOSE = 1e-5

BLOCKS = 2
VALUE_IDS = (
    "input_ids",
    "token_embeddings",
    *(f"{i}.{value.name}" for i in range(BLOCKS) for value in readings.BLOCK_VALUES),
    "logits",
    "next_token_probs",
)
EDIT_IDS = tuple(
    f"{way}.{layer}.{name}"
    for way in ("in_place", "assigned")
    for name in readings.EDITABLE
    for layer in range(BLOCKS if VALUES[name].host != "model" else 1)
)


@pytest.fixture(scope="module", params=checkpoints.TINY)
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(scope="module")
def expected(family: str, reference: Callable[[str], dict[str, Any]]) -> dict[str, Any]:
    return reference(family)


@pytest.fixture(scope="module")
def model(family: str, engine: Callable[[str], Any]) -> Any:
    return engine(family)


@pytest.fixture(scope="module")
def found(model: Any) -> dict[str, torch.Tensor]:
    return readings.values(model, checkpoints.PROMPT)


@pytest.fixture(scope="module")
def found_edits(model: Any) -> dict[str, torch.Tensor]:
    return readings.edits(model, checkpoints.PROMPT)


@pytest.mark.parametrize("name", VALUE_IDS)
def test_a_value_is_the_one_transformers_computes(
    name: str, found: dict[str, torch.Tensor], expected: dict[str, Any]
) -> None:
    assert gap(found[name], expected["values"][name]) < CLOSE


@pytest.mark.parametrize("block", range(BLOCKS))
def test_what_attention_and_mlp_add_is_the_whole_difference_a_block_makes(
    block: int, found: dict[str, torch.Tensor]
) -> None:
    entering, leaving = found[f"{block}.layer_input"], found[f"{block}.layer_output"]
    added = found[f"{block}.attention_output"] + found[f"{block}.mlp_output"]
    assert gap(entering + added, leaving) < 1e-6
    assert gap(entering, leaving) > 1e-2


def test_the_stream_leaves_one_block_as_it_enters_the_next(
    found: dict[str, torch.Tensor],
) -> None:
    assert torch.equal(found["0.layer_output"], found["1.layer_input"])


def test_the_last_block_projected_on_the_vocabulary_is_the_logits(
    found: dict[str, torch.Tensor],
) -> None:
    assert gap(found["projected"], found["logits"]) < 1e-6


@pytest.mark.parametrize("edit", EDIT_IDS)
def test_an_edit_does_what_it_does_on_transformers(
    edit: str, found_edits: dict[str, torch.Tensor], expected: dict[str, Any]
) -> None:
    there = expected["edits"]
    effect = gap(there["clean"], there[edit])
    assert effect > 1e-3, "the edit has no effect to compare"
    assert gap(found_edits[edit], there[edit]) < CLOSE


def test_a_decode_step_serves_the_new_token_alone(model: Any, expected: dict[str, Any]) -> None:
    longer = expected["longer"]
    with model.trace(checkpoints.PROMPT, temperature=0.0, max_tokens=2, ignore_eos=True) as tracer:
        steps = nnsight.save([])
        for _ in tracer.iter[:2]:
            block = model.layers[1]
            keys = block.self_attn.attention_keys
            heads = block.self_attn.attention_head_outputs
            steps.append((keys, heads, block.layer_output, model.logits))
    keys, heads, stream, logits = steps[1]
    assert gap(keys, longer["1.attention_keys"][:, :, -1:]) < CLOSE
    assert gap(heads, longer["1.attention_head_outputs"][:, -1:]) < CLOSE
    assert gap(stream, longer["1.layer_output"][:, -1:]) < CLOSE
    assert gap(logits, longer["logits"]) < CLOSE


def test_support_lists_what_was_served(model: Any, found: dict[str, torch.Tensor]) -> None:
    support = model.support()
    assert set(support) == set(VALUES)
    for name, row in support.items():
        assert row.available, name
        served = found[name] if VALUES[name].host == "model" else found[f"0.{name}"]
        assert served.ndim == len(row.layout.split())
