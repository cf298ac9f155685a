"""Directions of values, against means and covariances of what hooks see in transformers."""

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
from nnterp.interventions import difference_of_means, principal_directions
from nnterp.tools.checking.compare import relative_error

CLOSE = 2e-5
TEXT = checkpoints.PROMPT
POSITIVE = [TEXT[start : start + length] for start, length in [(0, 6), (2, 15), (5, 9)]]
NEGATIVE = [TEXT[start : start + length] for start, length in [(9, 4), (1, 8)]]

MLP = "layers.*.mlp.mlp_output"
HEADS = "layers.*.self_attn.attention_head_outputs"

#: Where each family keeps its blocks, and in a block its MLP and what enters its projection.
PARTS = {
    "llama": ("model.layers", "mlp", "self_attn.o_proj"),
    "gpt2": ("transformer.h", "mlp", "attn.c_proj"),
    "gpt_neox": ("gpt_neox.layers", "mlp", "attention.dense"),
}


class Plain:
    """A tiny checkpoint on transformers alone."""

    def __init__(self, name: str, path: Path) -> None:
        load = AutoModelForCausalLM.from_pretrained
        self.model = load(path, dtype=torch.float32, attn_implementation="eager").eval()
        blocks, self.mlp, self.projection = PARTS[name]
        self.blocks = self.model.get_submodule(blocks)

    def rows(self, prompt: list[int], value: str = "") -> Tensor:
        """A value of every block, ``[layers, positions, width]``."""
        seen: list[Tensor] = []

        def keep(tensor: Any) -> None:
            tensor = tensor[0] if isinstance(tensor, tuple) else tensor
            seen.append(tensor.reshape(len(prompt), -1))

        handles = []
        for block in self.blocks:
            if value == HEADS:
                host = block.get_submodule(self.projection)
                handles.append(host.register_forward_pre_hook(lambda _, given: keep(given)))
            else:
                host = block.get_submodule(self.mlp) if value == MLP else block
                handles.append(host.register_forward_hook(lambda _, given, out: keep(out)))
        with torch.no_grad():
            self.model(torch.tensor([prompt]))
        for handle in handles:
            handle.remove()
        return torch.stack(seen)

    def steered(self, prompt: list[int], block: int, row: Tensor, at: int) -> Tensor:
        """The last position's logits with ``row`` added to what leaves a block at a position."""

        def add(module: Any, given: Any, out: Any) -> None:
            (out[0] if isinstance(out, tuple) else out).view(len(prompt), -1)[at] += row

        handle = self.blocks[block].register_forward_hook(add)
        try:
            with torch.no_grad():
                return self.model(torch.tensor([prompt])).logits[0, -1]
        finally:
            handle.remove()


@pytest.fixture(
    scope="module", params=[(n, e) for n in PARTS for e in ("vllm", "transformers")], ids="-".join
)
def both(
    request: pytest.FixtureRequest,
    engine: Callable[[str], Any],
    tiny_folder: Callable[[str], Path],
) -> tuple[Any, Plain]:
    """A model on each engine, and its reference."""
    name, kind = request.param
    path = tiny_folder(name)
    if kind == "vllm":
        return engine(name), Plain(name, path)
    own = StandardizedTransformer(str(path), dispatch=True, attn_implementation="eager")
    return own, Plain(name, path)


def test_a_difference_of_means_is_one(both: tuple[Any, Plain]) -> None:
    model, plain = both
    for value in ("layers.*.layer_output", MLP, HEADS):
        positive = [plain.rows(prompt, value) for prompt in POSITIVE]
        negative = [plain.rows(prompt, value) for prompt in NEGATIVE]

        def mean(rows: list[Tensor]) -> Tensor:
            return torch.stack(rows).mean(0)

        wants = {
            "last": mean([own[:, -1] for own in positive]) - mean([own[:, -1] for own in negative]),
            "mean": mean([own.mean(1) for own in positive])
            - mean([own.mean(1) for own in negative]),
            "all": torch.cat(positive, 1).mean(1) - torch.cat(negative, 1).mean(1),
        }
        for positions, want in wants.items():
            found = difference_of_means(model, POSITIVE, NEGATIVE, value, positions)
            assert relative_error(found.vectors.flatten(1), want) < CLOSE
            assert found.layers == [0, 1]
            assert found.values == [value.replace("*", str(block)) for block in (0, 1)]
    places = [[0, -1], [3], [2, 4, 5], [1], [0, 7]]
    found = difference_of_means(model, POSITIVE, NEGATIVE, positions=places, layers=-1)
    rows = [plain.rows(prompt)[1] for prompt in (*POSITIVE, *NEGATIVE)]
    kept = [own[at] for own, at in zip(rows, places, strict=True)]
    want = torch.cat(kept[:3]).mean(0) - torch.cat(kept[3:]).mean(0)
    assert relative_error(found.vectors, want[None]) < CLOSE
    assert found.layers == [1]


def test_a_direction_steers(both: tuple[Any, Plain]) -> None:
    model, plain = both
    found = difference_of_means(model, POSITIVE, NEGATIVE)
    for block in (0, 1):
        edit = found.add(block, factor=-1.5, positions=-1)
        logits = model.collect([TEXT], {"logits": "last"}, edits=[edit])["logits"][0]
        want = plain.steered(TEXT, block, -1.5 * found.vector(block), -1)
        assert relative_error(logits, want) < CLOSE
        unsteered = plain.steered(TEXT, block, torch.zeros(64), -1)
        assert relative_error(logits, unsteered) > 100 * CLOSE


def test_principal_directions_are_of_the_covariance(both: tuple[Any, Plain]) -> None:
    model, plain = both
    for value, positions in (("layers.*.layer_output", "all"), (HEADS, "all"), (MLP, "last")):
        prompts = [*POSITIVE, *NEGATIVE]
        seen = [plain.rows(prompt, value) for prompt in prompts]
        if positions == "last":
            seen = [own[:, -1:] for own in seen]
        rows = torch.cat(seen, 1).double()
        found = principal_directions(model, prompts, 3, value, positions)
        assert len(found.directions) == 3
        for block in (0, 1):
            varying = rows[block] - rows[block].mean(0)
            spread, along = torch.linalg.eigh(varying.T @ varying)
            share = (spread.flip(0) / spread.sum())[:3]
            assert relative_error(found.explained[:, block], share) < 1e-4
            assert relative_error(found.means.vectors[block].flatten(), rows[block].mean(0)) < CLOSE
            for index, direction in enumerate(found.directions):
                got = direction.vectors[block].flatten()
                want = along[:, -1 - index]
                want = want * want[want.abs().argmax()].sign()
                assert (got - want).norm() < 1e-3
                assert got.norm().item() == pytest.approx(1.0, abs=1e-5)
    assert found.directions[0].add(1).value == "layers.1.mlp.mlp_output"


def test_a_direction_that_rows_were_made_along_is_found(
    either: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Rows of one direction and a little of another, in place of those of the model."""
    torch.manual_seed(0)
    first, second = torch.linalg.qr(torch.randn(64, 2))[0].T
    first = first * first[first.abs().argmax()].sign()
    strengths = torch.tensor([-3.0, -1.0, 0.0, 1.0, 3.0])
    other = torch.tensor([0.1, -0.2, 0.2, -0.2, 0.1])
    rows = 5 + strengths[:, None] * first + other[:, None] * second
    monkeypatch.setattr(either, "collect", lambda ids, values, **rest: dict.fromkeys(values, rows))
    found = principal_directions(either, [[1]] * 5, 2, layers=[0])
    assert (found.directions[0].vector(0) - first).norm() < 1e-5
    assert found.explained[:, 0].tolist() == pytest.approx([20 / 20.14, 0.14 / 20.14], abs=1e-6)


def test_what_is_wrong_with_directions_is_said(either: Any) -> None:
    with pytest.raises(ValueError, match="no rows of tokens in each block"):
        difference_of_means(either, POSITIVE, NEGATIVE, "logits")
    with pytest.raises(ValueError, match="positions for 5 prompts"):
        difference_of_means(either, POSITIVE, NEGATIVE, positions=[0, 1, 2])
    with pytest.raises(ValueError, match="no position of these prompts"):
        difference_of_means(either, POSITIVE, NEGATIVE, positions=[[0], [1], [2], [], []])
    with pytest.raises(ValueError, match="count is 1 to 2, not 3"):
        principal_directions(either, POSITIVE, 3)
    with pytest.raises(ValueError, match="all the same"):
        principal_directions(either, [TEXT] * 3)
    found = difference_of_means(either, POSITIVE, NEGATIVE, layers=[1])
    with pytest.raises(IndexError, match=r"no vector of block 0; there are of \[1\]"):
        found.add(0)
