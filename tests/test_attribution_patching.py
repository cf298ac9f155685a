"""`attribution_patching`, against autograd through transformers' own forward with hooks."""

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
from nnterp.errors import Unavailable
from nnterp.interventions import activation_patching, attribution_patching
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


class Plain:
    """A tiny checkpoint on transformers alone, with the gradients that autograd gives."""

    def __init__(self, name: str, path: Path) -> None:
        load = AutoModelForCausalLM.from_pretrained
        self.model = load(path, dtype=torch.float32, attn_implementation="eager").eval()
        blocks, self.projection, self.mlp = PARTS[name]
        self.blocks = self.model.get_submodule(blocks)

    def run(self, prompt: list[int], value: str) -> tuple[float, list[Tensor], list[Tensor]]:
        """The logit difference, and each block's rows of a value and gradients, ``[tokens, w]``."""
        seen: list[Tensor] = []

        def keep(tensor: Any) -> None:
            seen.append(tensor[0] if isinstance(tensor, tuple) else tensor)

        handles = []
        for block in self.blocks:
            if value == HEADS:
                host = block.get_submodule(self.projection)
                handles.append(host.register_forward_pre_hook(lambda _, given: keep(given)))
            else:
                path = {STREAM: "", MLP: self.mlp}.get(value, value)
                host = block.get_submodule(path)
                handles.append(host.register_forward_hook(lambda _, given, out: keep(out)))
        logits = self.model(torch.tensor([prompt])).logits[0, -1]
        for handle in handles:
            handle.remove()
        measured = logits[RIGHT] - logits[WRONG]
        gradients = torch.autograd.grad(measured, seen)

        def rows(tensors: Any) -> list[Tensor]:
            return [tensor.detach().reshape(len(prompt), -1) for tensor in tensors]

        return measured.item(), rows(seen), rows(gradients)

    def estimated(
        self, donor: list[int], patched: list[int], value: str, taken: list[int], put: list[int]
    ) -> tuple[float, float, Tensor]:
        """Both runs' metrics, and what each number patched changes, ``[layers, columns, w]``."""
        given, source, _ = self.run(donor, value)
        own, rows, gradients = self.run(patched, value)
        parts = [
            (source[block][taken] - rows[block][put]) * gradients[block][put]
            for block in range(len(rows))
        ]
        return given, own, torch.stack(parts)


@pytest.fixture(scope="module", params=list(PARTS))
def both(
    request: pytest.FixtureRequest, tiny_folder: Callable[[str], Path]
) -> tuple[StandardizedTransformer, Plain]:
    path = tiny_folder(request.param)
    own = StandardizedTransformer(str(path), dispatch=True, attn_implementation="eager")
    return own, Plain(request.param, path)


@pytest.mark.parametrize("into", ["corrupted", "clean"])
def test_a_sweep_is_gradient_times_difference(both: tuple[Any, Plain], into: Any) -> None:
    model, plain = both
    found = attribution_patching(
        model, CLEAN, CORRUPTED, [STREAM, MLP], tokens=[RIGHT, WRONG], into=into
    )
    donor, patched = (CLEAN, CORRUPTED) if into == "corrupted" else (CORRUPTED, CLEAN)
    every = list(range(7))
    for index, value in enumerate((STREAM, MLP)):
        given, own, parts = plain.estimated(donor, patched, value, every, every)
        want = own + parts.sum(-1)
        assert relative_error(found.measured[index], want) < CLOSE
        clean, corrupted = (given, own) if into == "corrupted" else (own, given)
        assert found.clean == pytest.approx(clean, rel=1e-4, abs=1e-4)
        assert found.corrupted == pytest.approx(corrupted, rel=1e-4, abs=1e-4)
        effects = (want - corrupted) / (clean - corrupted)
        assert relative_error(found.effects[index], effects) < 1e-4
    assert found.labels == [model.tokenizer.decode([token]) for token in patched]
    assert (found.layers, found.into) == ([0, 1], into)
    assert all(weight.grad is None for weight in model._module.parameters())


def test_one_head_at_a_time(both: tuple[Any, Plain]) -> None:
    model, plain = both
    found = attribution_patching(
        model, CLEAN, CORRUPTED, HEADS, [5, 2], tokens=[RIGHT, WRONG], heads=True
    )
    _, own, parts = plain.estimated(CLEAN, CORRUPTED, HEADS, [5, 2], [5, 2])
    want = own + parts.unflatten(-1, (model.num_heads, -1)).sum((1, 3))
    assert found.effects.shape == (2, model.num_heads)
    assert relative_error(found.measured, want) < CLOSE
    assert found.columns == list(range(model.num_heads))


def test_values_whose_tokens_are_behind_their_heads(tiny_folder: Callable[[str], Path]) -> None:
    path = tiny_folder("llama")
    model, plain = StandardizedTransformer(str(path), dispatch=True), Plain("llama", path)
    name = "layers.*.self_attn.attention_values"
    _, own, parts = plain.estimated(CLEAN, CORRUPTED, "self_attn.v_proj", [2, 4], [2, 4])
    found = attribution_patching(model, CLEAN, CORRUPTED, name, [2, 4], tokens=[RIGHT, WRONG])
    assert relative_error(found.measured, own + parts.sum(-1)) < CLOSE
    by_head = attribution_patching(
        model, CLEAN, CORRUPTED, name, [2, 4], tokens=[RIGHT, WRONG], heads=True
    )
    want = own + parts.unflatten(-1, (model.num_kv_heads, -1)).sum((1, 3))
    assert relative_error(by_head.measured, want) < CLOSE


def test_groups_match_prompts_of_unequal_length(both: tuple[Any, Plain]) -> None:
    model, plain = both
    found = attribution_patching(
        model,
        CLEAN,
        LONGER,
        STREAM,
        [-1, [-5, 0], 1],
        metric=lambda logits: logits[:, RIGHT] - logits[:, WRONG],
        layers=[0],
    )
    _, own, parts = plain.estimated(CLEAN, LONGER, STREAM, [6, 2, 0, 1], [8, 4, 0, 1])
    each = parts[0].sum(-1)
    want = own + torch.stack([each[0], each[1] + each[2], each[3]])
    assert relative_error(found.measured[0], want) < CLOSE
    assert found.columns == [[8], [4, 0], [1]]


def test_weights_may_be_frozen_and_gradients_off(tiny_folder: Callable[[str], Path]) -> None:
    path = str(tiny_folder("llama"))
    free, frozen = (StandardizedTransformer(path, dispatch=True) for _ in range(2))
    frozen._module.requires_grad_(False)
    want = attribution_patching(free, CLEAN, CORRUPTED, tokens=[RIGHT])
    with torch.no_grad():
        found = attribution_patching(frozen, CLEAN, CORRUPTED, tokens=[RIGHT])
    assert relative_error(found.measured, want.measured) < 1e-6


def test_a_small_patch_is_what_was_estimated(transformer: Any) -> None:
    """A metric of two runs that hardly differ is linear between them."""
    near = transformer._module.get_input_embeddings().weight
    kept = near.detach().clone()
    with torch.no_grad():
        near[66] = near[17] + 1e-2 * (near[66] - near[17])
        near[12] = near[120] + 1e-2 * (near[12] - near[120])
    try:
        prompts = CLEAN, CORRUPTED
        found = attribution_patching(transformer, *prompts, tokens=[RIGHT, WRONG])
        made = activation_patching(transformer, *prompts, tokens=[RIGHT, WRONG])
    finally:
        with torch.no_grad():
            near.copy_(kept)
    assert made.effects.abs().max() > 0.5
    assert (found.effects - made.effects).abs().max() < 0.05


def test_what_is_wrong_with_a_sweep_is_said(transformer: Any, engine: Callable[[str], Any]) -> None:
    def sweep(*given: Any, **named: Any) -> None:
        attribution_patching(transformer, *given, **{"tokens": [RIGHT, WRONG], **named})

    with pytest.raises(Unavailable, match="vLLM computes none"):
        attribution_patching(engine("llama"), CLEAN, CORRUPTED, tokens=[RIGHT])
    with pytest.raises(ValueError, match="clean and on the corrupted prompt alike"):
        sweep(CLEAN, CLEAN)
    with pytest.raises(ValueError, match="9 tokens, so their positions"):
        sweep(CLEAN, LONGER)
    with pytest.raises(ValueError, match="no rows of tokens in each block"):
        sweep(CLEAN, CORRUPTED, "logits")
    with pytest.raises(ValueError, match="two columns share a position"):
        sweep(CLEAN, CORRUPTED, positions=[1, [2, -6]])
    with pytest.raises(TypeError, match="has no gradient"):
        sweep(CLEAN, CORRUPTED, tokens=None, metric=lambda logits: logits.detach()[:, 0])
    elsewhere = torch.ones(1, requires_grad=True)
    with pytest.raises(Unavailable, match="layers.0.layer_output: the metric is not computed"):
        sweep(CLEAN, CORRUPTED, tokens=None, metric=lambda logits: 2 * elsewhere)
    with pytest.raises(ValueError, match="not 'both'"):
        sweep(CLEAN, CORRUPTED, into="both")
