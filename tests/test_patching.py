"""`activation_patching`, against a loop of transformers' forwards with a hook for each cell."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import checkpoints
from nnterp import StandardizedTransformer
from nnterp.interventions import activation_patching, patching
from nnterp.tools.checking.compare import relative_error

CLOSE = 2e-5
CLEAN = checkpoints.PROMPT[:7]
CORRUPTED = [5, 91, 66, 203, 44, 12, 8]
LONGER = [3, 4, *CORRUPTED]
RIGHT, WRONG = 33, 190

STREAM = "layers.*.layer_output"
MLP = "layers.*.mlp.mlp_output"
HEADS = "layers.*.self_attn.attention_head_outputs"

#: Where each family keeps its blocks, and in a block what enters the output projection and what
#: the MLP adds.
PARTS = {
    "llama": ("model.layers", "self_attn.o_proj", "mlp"),
    "gpt_neox": ("gpt_neox.layers", "attention.dense", "mlp"),
    "gemma2": ("model.layers", "self_attn.o_proj", "post_feedforward_layernorm"),
}


class Patched:
    """A tiny checkpoint on transformers alone, with a row of one run put into another."""

    def __init__(self, name: str, path: Path) -> None:
        load = AutoModelForCausalLM.from_pretrained
        self.model = load(path, dtype=torch.float32, attn_implementation="eager").eval()
        blocks, self.projection, self.mlp = PARTS[name]
        self.blocks = self.model.get_submodule(blocks)

    def run(self, prompt: list[int], value: str, block: int, change: Callable[..., None]) -> float:
        """The logit difference, when ``change`` is made to ``[positions, width]`` of a value."""
        host = self.blocks[block]

        def after(module: Any, given: Any, out: Any) -> None:
            change((out[0] if isinstance(out, tuple) else out).view(len(prompt), -1))

        def before(module: Any, given: Any) -> None:
            change(given[0].view(len(prompt), -1))

        if value == HEADS:
            handle = host.get_submodule(self.projection).register_forward_pre_hook(before)
        elif value == MLP:
            handle = host.get_submodule(self.mlp).register_forward_hook(after)
        else:
            handle = host.register_forward_hook(after)
        try:
            with torch.no_grad():
                logits = self.model(torch.tensor([prompt])).logits[0, -1]
        finally:
            handle.remove()
        return float(logits[RIGHT] - logits[WRONG])

    def cell(
        self,
        donor: list[int],
        patched: list[int],
        value: str,
        block: int,
        taken: list[int],
        put: list[int],
        columns: slice = slice(None),
    ) -> float:
        """The logit difference with some rows of ``donor``'s run in the run of ``patched``."""
        rows: list[Tensor] = []
        self.run(donor, value, block, lambda own: rows.append(own[taken].clone()))

        def change(own: Tensor) -> None:
            for row, at in zip(rows[0], put, strict=True):
                own[at, columns] = row[columns]

        return self.run(patched, value, block, change)


@pytest.fixture(
    scope="module", params=[(n, e) for n in PARTS for e in ("vllm", "transformers")], ids="-".join
)
def both(
    request: pytest.FixtureRequest,
    engine: Callable[[str], Any],
    tiny_folder: Callable[[str], Path],
) -> tuple[Any, Patched]:
    """A model on each engine, and its reference."""
    name, kind = request.param
    path = tiny_folder(name)
    if kind == "vllm":
        return engine(name), Patched(name, path)
    own = StandardizedTransformer(str(path), dispatch=True, attn_implementation="eager")
    return own, Patched(name, path)


def scaled(measured: Tensor, clean: float, corrupted: float) -> Tensor:
    return (measured - corrupted) / (clean - corrupted)


def nothing(own: Tensor) -> None:
    """Leave a value as it is."""


@pytest.mark.parametrize("into", ["corrupted", "clean"])
def test_a_sweep_is_a_loop_over_cells(both: tuple[Any, Patched], into: Any) -> None:
    model, reference = both
    found = activation_patching(
        model, CLEAN, CORRUPTED, [STREAM, MLP], tokens=[RIGHT, WRONG], into=into
    )
    donor, patched = (CLEAN, CORRUPTED) if into == "corrupted" else (CORRUPTED, CLEAN)
    want = torch.tensor(
        [
            [
                [reference.cell(donor, patched, value, block, [at], [at]) for at in range(7)]
                for block in range(2)
            ]
            for value in (STREAM, MLP)
        ]
    )
    clean = reference.run(CLEAN, STREAM, 0, nothing)
    corrupted = reference.run(CORRUPTED, STREAM, 0, nothing)
    assert found.clean == pytest.approx(clean, rel=1e-4, abs=1e-4)
    assert found.corrupted == pytest.approx(corrupted, rel=1e-4, abs=1e-4)
    assert relative_error(found.measured, want) < CLOSE
    assert relative_error(found.effects, scaled(want, clean, corrupted)) < 1e-4
    ends = 1.0 if into == "corrupted" else 0.0
    assert found.effects[0, -1, -1].item() == pytest.approx(ends, abs=1e-5)
    assert found.effects[0, -1, :-1] == pytest.approx([1 - ends] * 6, abs=1e-5)
    assert found.labels == [model.tokenizer.decode([token]) for token in patched]
    assert found.layers == [0, 1]


def test_one_head_at_a_time(both: tuple[Any, Patched]) -> None:
    model, reference = both
    found = activation_patching(
        model, CLEAN, CORRUPTED, HEADS, [5, 2], tokens=[RIGHT, WRONG], heads=True
    )
    width = reference.blocks[0].get_submodule(reference.projection).in_features // model.num_heads
    want = torch.tensor(
        [
            [
                reference.cell(
                    CLEAN,
                    CORRUPTED,
                    HEADS,
                    block,
                    [5, 2],
                    [5, 2],
                    slice(head * width, (head + 1) * width),
                )
                for head in range(model.num_heads)
            ]
            for block in range(2)
        ]
    )
    assert found.effects.shape == (2, model.num_heads)
    assert relative_error(found.measured, want) < CLOSE
    assert found.labels == [str(head) for head in range(model.num_heads)]


def test_positions_from_the_end_and_in_groups_match_prompts_of_unequal_length(
    both: tuple[Any, Patched],
) -> None:
    model, reference = both
    found = activation_patching(
        model,
        CLEAN,
        LONGER,
        STREAM,
        [-1, [-5, 0], 1],
        metric=lambda logits: logits[:, RIGHT] - logits[:, WRONG],
        layers=[0],
    )
    pairs = [([6], [8]), ([2, 0], [4, 0]), ([1], [1])]
    want = [reference.cell(CLEAN, LONGER, STREAM, 0, taken, put) for taken, put in pairs]
    assert relative_error(found.measured, torch.tensor([want])) < CLOSE
    assert found.columns == [[8], [4, 0], [1]]


def test_a_sweep_in_parts_is_the_same(either: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = activation_patching(either, CLEAN, CORRUPTED, tokens=[RIGHT, WRONG])
    monkeypatch.setattr(patching, "_AT_ONCE", 3 * either.vocab_size)
    parts = activation_patching(either, CLEAN, CORRUPTED, tokens=[RIGHT, WRONG])
    assert relative_error(parts.measured, whole.measured) < CLOSE


def test_what_is_wrong_with_a_sweep_is_said(either: Any) -> None:
    def sweep(*given: Any, **named: Any) -> None:
        activation_patching(either, *given, **{"tokens": [RIGHT, WRONG], **named})

    with pytest.raises(ValueError, match="9 tokens, so their positions"):
        sweep(CLEAN, LONGER)
    with pytest.raises(ValueError, match="clean and on the corrupted prompt alike"):
        sweep(CLEAN, CLEAN)
    with pytest.raises(ValueError, match="has no heads"):
        sweep(CLEAN, CORRUPTED, STREAM, heads=True)
    with pytest.raises(ValueError, match="no rows of tokens in each block"):
        sweep(CLEAN, CORRUPTED, "logits")
    with pytest.raises(ValueError, match="no choice of columns"):
        sweep(CLEAN, CORRUPTED, positions="generated")
    with pytest.raises(IndexError, match="no position 7"):
        sweep(CLEAN, CORRUPTED, positions=[7])
    with pytest.raises(TypeError, match="a number for each run"):
        sweep(CLEAN, CORRUPTED, tokens=None, metric=lambda logits: logits.sum())
    with pytest.raises(TypeError, match="say what is measured"):
        sweep(CLEAN, CORRUPTED, tokens=None)
