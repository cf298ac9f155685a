"""``.grad`` of every value is the slope of the loss along it, whatever else is in the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nnsight
import pytest
import torch
from nnsight.intervention.interleaver import OutOfOrderError
from torch import Tensor
from transformers.models.recurrent_gemma import modeling_recurrent_gemma

import checkpoints
import sharp
from nnterp import StandardizedTransformer, Unavailable
from nnterp.tools.checking import readings
from nnterp.vocabulary.values import VALUES, Value
from sharp import Sharp
from tiny import TINY

PROMPT_IDS = checkpoints.PROMPT
PROMPTS = [PROMPT_IDS[:7], PROMPT_IDS, PROMPT_IDS[3:14]]
PROMPT = torch.tensor([PROMPTS[2]])

#: What runs beside the last of `PROMPTS` where prompts of other lengths cannot.
BESIDE: dict[str, list[list[int]]] = {
    # Refused in one batch, whatever their length.
    "doge_moe": [],
    # Refused where scores are padded, for they are followed by those of summed up tokens.
    "deepseek_v4": [PROMPT_IDS[:11], PROMPT_IDS[5:16]],
}

#: Values that a model keeps its own gradient from, of its early cycles.
CUT_OFF = {"hrm_text": {"0.token_embeddings"}}

#: A family whose model asks for float32 by name.
NOT_SHARP = "gpt2_upcast"

STEP = 1e-6


pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture(scope="module")
def llama(tiny_folder: Callable[[str], Path]) -> Any:
    return load(tiny_folder("llama"))


def load(path: Path, **arguments: Any) -> StandardizedTransformer:
    return StandardizedTransformer(
        str(path), dispatch=True, dtype=torch.float32, attn_implementation="eager", **arguments
    )


def noise(like: Tensor, seed: int) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(like.shape, generator=generator, dtype=torch.float64).to(like)


def loss_of(logits: Tensor) -> Tensor:
    return (logits * noise(logits, 0)).sum()


def places(model: Any) -> list[tuple[int, Value]]:
    """The values that can be moved, with their blocks, in the order the forward reaches them."""
    support = model.support()
    inside = [(block, value) for block, value in readings.served(model)]
    found = [(0, VALUES["token_embeddings"]), *inside, (0, VALUES["logits"])]
    return [(block, value) for block, value in found if support[value.name].writable]


def gradients(
    model: Any, prompts: Sequence[Sequence[int]], which: int, forwards: bool
) -> dict[str, Tensor]:
    """The gradients of the values of the invoke ``which``, asked for in either order."""
    with Sharp(), model.trace() as tracer:
        found = nnsight.save({})
        for index, prompt in enumerate(prompts):
            with tracer.invoke(torch.tensor([prompt])):
                held = {}
                for block, value in places(model):
                    host = model.host_of(value, block)
                    held[f"{block}.{value.name}"] = getattr(host, value.name)
                if index == which:
                    with loss_of(held["0.logits"]).backward():
                        for key in held if forwards else reversed(held):
                            found[key] = held[key].grad
    return found


def slopes(model: Any, prompt: Sequence[int], together: bool) -> dict[str, tuple[Tensor, Tensor]]:
    """For each value a direction, and the slope of the loss along it: a central difference.

    Args:
        model: The model.
        prompt: Token ids.
        together: Whether every change is made in one forward, to rows of their own.
    """
    moves = [
        (seed, block, value, step)
        for seed, (block, value) in enumerate(places(model))
        for step in (STEP, -STEP)
    ]
    directions, losses = {}, {}
    for forward in [moves] if together else [[move] for move in moves]:
        with torch.no_grad(), Sharp(), model.trace() as tracer:
            found = nnsight.save({})
            for seed, block, value, step in forward:
                with tracer.invoke(torch.tensor([prompt])):
                    tensor = getattr(model.host_of(value, block), value.name)
                    # A key that is not seen stays unseen.
                    along = noise(tensor, seed).masked_fill(tensor.isneginf(), 0.0)
                    tensor += step * along
                    found[f"{block}.{value.name}", step] = along, loss_of(model.logits)
        directions |= {key: along for (key, _), (along, _) in found.items()}
        losses |= {at: loss for at, (_, loss) in found.items()}
    return {
        key: (along, (losses[key, STEP] - losses[key, -STEP]) / (2 * STEP))
        for key, along in directions.items()
    }


@pytest.mark.parametrize("name", sorted(TINY.keys() - {NOT_SHARP}))
def test_a_gradient_is_the_slope_of_the_loss(
    name: str, tiny_folder: Callable[[str], Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of one invoke of three, of different lengths, and of the same prompt alone."""
    # RecurrentGemma bounds a gradient, which no slope is.
    monkeypatch.setattr(modeling_recurrent_gemma, "_MAX_SQRT_GRADIENT", 1e12)
    model = sharp.load(tiny_folder(name), TINY[name].attention)
    expected = slopes(model, PROMPTS[2], together=name not in BESIDE)
    alone = gradients(model, [PROMPTS[2]], 0, forwards=True)
    others = BESIDE.get(name, PROMPTS[:2])
    beside = gradients(model, [*others, PROMPTS[2]], len(others), forwards=False)
    assert alone.keys() == beside.keys() == expected.keys()
    for key, (along, slope) in expected.items():
        assert (alone[key] - beside[key]).norm() < 1e-6 * alone[key].norm(), key
        scale = 1e-2 * alone[key].norm() + slope.abs()
        relative_error = ((alone[key] * along).sum() - slope).abs()
        assert (
            (relative_error > 0.1 * scale)
            if key in CUT_OFF.get(name, ())
            else (relative_error < 1e-4 * scale)
        ), key


def test_attention_in_float32_has_the_gradients_of_attention_in_the_models_own(
    tiny_folder: Callable[[str], Path],
) -> None:
    """Which is float32 here: the two differ in the order of their steps alone."""
    found = []
    for upcast in (True, False):
        model = load(tiny_folder(NOT_SHARP), reorder_and_upcast_attn=upcast)
        with model.trace(PROMPT):
            held = [getattr(model.host_of(value, i), value.name) for i, value in places(model)]
            with loss_of(held[-1]).backward():
                by_value = nnsight.save([value.grad for value in held])
        found.append(by_value)
    for first, second in zip(*found, strict=True):
        assert (first - second).norm() < 1e-5 * second.norm()


def test_a_key_that_is_not_seen_has_no_slope(llama: Any) -> None:
    with llama.trace(PROMPT):
        scores = llama.layers[0].self_attn.attention_scores
        with loss_of(llama.logits).backward():
            gradient = scores.grad.save()
        hidden = scores.isneginf().save()
    assert hidden.any()
    assert not gradient[hidden].any()
    assert gradient[~hidden].any()


@pytest.mark.parametrize("name", ["llama", "granite", "falcon", "gpt_oss", "opt", "zaya"])
def test_a_look_changes_no_number(name: str, tiny_folder: Callable[[str], Path]) -> None:
    """With gradients, where the model goes on with what the block was given."""
    model = load(tiny_folder(name))
    logits = []
    for looked in (False, True):
        with model.trace() as tracer:
            with tracer.invoke(torch.tensor([PROMPTS[0]])):
                for block, value in places(model)[:-1] if looked else ():
                    assert getattr(model.host_of(value, block), value.name).requires_grad
                own = model.logits.detach().save()
            with tracer.invoke(PROMPT):
                other = model.logits.detach().save()
        logits.append((own, other))
    assert all(torch.equal(*both) for both in zip(*logits, strict=True))


def test_without_gradients_values_are_the_models_own(llama: Any) -> None:
    block = llama.layers[0]
    with torch.no_grad(), llama.trace(PROMPT):
        stream = block.layer_output
        same = nnsight.save(stream is block.output)
    assert same


def test_an_edited_value_has_the_gradient_of_what_it_became(
    tiny_folder: Callable[[str], Path],
) -> None:
    """In place and by assignment, of a value that is the model's own and of one computed."""
    model = sharp.load(tiny_folder("granite"), "eager")
    block = model.layers[0]
    outcomes = {}
    for step in (None, STEP, -STEP):
        with Sharp(), model.trace() as tracer:
            with tracer.invoke(torch.tensor([PROMPTS[1]])):
                pass
            with tracer.invoke(PROMPT):
                heads = block.self_attn.attention_head_outputs
                before = heads
                heads[:, 3] *= 2
                if step is not None:
                    heads += step * noise(heads, 1)
                doubled = block.mlp.mlp_output * 2
                if step is not None:
                    doubled = doubled + step * noise(doubled, 2)
                block.mlp.mlp_output = doubled
                again = block.mlp.mlp_output
                loss = loss_of(model.logits)
                if step is None:
                    with loss.backward():
                        by_assigned = again.grad.save()
                        by_doubled = doubled.grad.save()
                        by_heads = before.grad.save()
                outcomes[step] = loss.detach()
    slope = (outcomes[STEP] - outcomes[-STEP]) / (2 * STEP)
    found = (by_heads * noise(by_heads, 1)).sum() + (by_doubled * noise(by_doubled, 2)).sum()
    assert torch.equal(by_assigned, by_doubled)
    assert (found - slope).abs() < 1e-4 * slope.abs()


def with_hooks(model: Any, change: Callable[[Tensor], Tensor]) -> Tensor:
    """Plain torch: the gradient of the embeddings, that of block 1's MLP output changed."""
    module = model._module
    embeddings: list[Tensor] = []
    hooks = [
        model.embed_tokens._module.register_forward_hook(lambda m, i, out: embeddings.append(out)),
        model.layers[1].mlp._module.register_forward_hook(
            lambda m, i, out: out.register_hook(change) and None
        ),
    ]
    loss = loss_of(module(PROMPT).logits)
    for hook in hooks:
        hook.remove()
    (gradient,) = torch.autograd.grad(loss, embeddings)
    return gradient


def test_an_assigned_gradient_flows_on(llama: Any) -> None:
    with llama.trace(PROMPT):
        embeddings, added = llama.token_embeddings, llama.layers[1].mlp.mlp_output
        with loss_of(llama.logits).backward():
            added.grad = added.grad * 3
            gradient = embeddings.grad.save()
    expected = with_hooks(llama, lambda gradient: gradient * 3)
    assert torch.allclose(gradient, expected, rtol=1e-4, atol=1e-4)


def test_a_gradient_edited_in_place_flows_on_and_down_its_own_branch_alone(llama: Any) -> None:
    """The stream it is added to has the same gradient, and keeps it."""
    with llama.trace(PROMPT):
        embeddings, added = llama.token_embeddings, llama.layers[1].mlp.mlp_output
        with loss_of(llama.logits).backward():
            added.grad[:, 2] = 0
            gradient = embeddings.grad.save()
    expected = with_hooks(llama, lambda gradient: gradient.index_fill(1, torch.tensor([2]), 0))
    unedited = with_hooks(llama, lambda gradient: gradient)
    assert torch.allclose(gradient, expected, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(gradient, unedited, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("way", ["in place", "assigned"])
def test_an_edit_of_a_gradient_that_has_passed_is_refused(llama: Any, way: str) -> None:
    with pytest.raises(OutOfOrderError, match=r"layers\.1\.layer_output had passed when it was"):
        with llama.trace(PROMPT):
            first, second = llama.layers[0].layer_output, llama.layers[1].layer_output
            with loss_of(llama.logits).backward():
                gradient = first.grad
                if way == "in place":
                    second.grad[:] = 0
                else:
                    second.grad = gradient


def test_a_gradient_of_another_shape_is_refused(llama: Any) -> None:
    with pytest.raises(ValueError, match=r"gradient of .*layer_output has shape \(1, 11, 64\)"):
        with llama.trace(PROMPT):
            stream = llama.layers[0].layer_output
            with loss_of(llama.logits).backward():
                stream.grad = stream.grad[:, 1:]


def test_whole_numbers_have_no_gradient(llama: Any) -> None:
    with pytest.raises(Unavailable, match="model.input_ids holds whole numbers"):
        with llama.trace(PROMPT):
            ids = llama.input_ids
            with loss_of(llama.logits).backward():
                ids.grad.save()


def test_what_the_loss_is_not_made_of_is_named(llama: Any) -> None:
    with pytest.raises(Unavailable, match=r"layers\.1\.layer_output .*loss is not made of it"):
        with llama.trace(PROMPT):
            early, late = llama.layers[0].layer_output, llama.layers[1].layer_output
            with early.sum().backward():
                late.grad.save()


def test_a_router_is_told_beside_the_forward_and_has_the_gradient_of_its_own_loss(
    tiny_folder: Callable[[str], Path],
) -> None:
    model = load(tiny_folder("mixtral"))
    mlp = model.layers[0].mlp
    with pytest.raises(Unavailable, match=r"router_logits .*computed beside the forward"):
        with model.trace(PROMPT):
            scores = mlp.router_logits
            with loss_of(model.logits).backward():
                scores.grad.save()
    with model.trace(PROMPT):
        stream, scores = model.layers[0].layer_input, mlp.router_logits
        with loss_of(scores).backward():
            by_scores = scores.grad.save()
            by_stream = stream.grad.save()
    assert torch.equal(by_scores, noise(by_scores, 0))
    assert by_stream.any()


def test_a_router_that_the_forward_asks_has_the_gradient_of_the_forward(
    tiny_folder: Callable[[str], Path],
) -> None:
    """ZAYA's router is a network of its own, and its scores are those it hands on."""
    model = load(tiny_folder("zaya"))
    mlp = model.layers[1].mlp
    with model.trace() as tracer:
        with tracer.invoke(torch.tensor([PROMPTS[1]])):
            pass
        with tracer.invoke(PROMPT):
            scores, weights = mlp.router_logits, mlp.expert_weights
            with loss_of(model.logits).backward():
                found = nnsight.save([weights.grad.flatten(), scores.grad.flatten()])
    kept: list[Tensor] = []
    gate = mlp._module.gate
    hooks = [
        gate.router_mlp.out_proj.register_forward_hook(lambda m, i, out: kept.append(out)),
        gate.register_forward_hook(lambda m, i, out: kept.append(out[1])),
    ]
    loss = loss_of(model._module(PROMPT).logits)
    for hook in hooks:
        hook.remove()
    by_scores, by_weights = torch.autograd.grad(loss, kept)
    assert by_scores.any()
    assert torch.allclose(found[0], by_weights.flatten(), rtol=1e-3, atol=1e-4)
    assert torch.allclose(found[1], by_scores.flatten(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("first", ["logits", "next_token_probs"])
def test_a_loss_of_probabilities_reaches_the_logits(llama: Any, first: str) -> None:
    with llama.trace() as tracer:
        with tracer.invoke(PROMPT):
            pass
        with tracer.invoke(torch.tensor([PROMPTS[0]])):
            getattr(llama, first)
            logits, chances = llama.logits, llama.next_token_probs
            with chances[0, 5].log().backward():
                by_logits = logits.grad.save()
                by_chances = chances.grad.save()
            chances = chances.detach().save()
    expected = torch.zeros_like(by_logits)
    expected[0, -1] = -chances[0]
    expected[0, -1, 5] += 1
    assert torch.allclose(by_logits, expected, atol=1e-6)
    assert by_chances[0, 5] == 1 / chances[0, 5]


def test_values_at_one_place_each_have_their_gradient(tiny_folder: Callable[[str], Path]) -> None:
    """Granite's embeddings are first held as what enters block 0."""
    model = load(tiny_folder("granite"))
    with model.trace(PROMPT):
        embeddings, stream = model.token_embeddings, model.layers[0].layer_input
        with loss_of(model.logits).backward():
            both = nnsight.save([stream.grad, embeddings.grad])
    assert torch.equal(*both)
    with model.trace(PROMPT):
        embeddings, stream = model.token_embeddings, model.layers[0].layer_input
        embeddings *= 2
        loss = loss_of(model.logits).save()
    with model.trace(PROMPT):
        model.layers[0].layer_input *= 2
        expected = loss_of(model.logits).save()
    assert torch.equal(loss, expected)


def test_a_frozen_model_has_gradients_of_a_value_that_requires_them(
    tiny_folder: Callable[[str], Path],
) -> None:
    model = load(tiny_folder("llama"))
    model._module.requires_grad_(False)
    found = []
    for beside in (0, 1):
        with model.trace() as tracer:
            for prompt in PROMPTS[:beside]:
                with tracer.invoke(torch.tensor([prompt])):
                    pass
            with tracer.invoke(PROMPT):
                scores = model.layers[0].self_attn.attention_scores
                scores.requires_grad_()
                with loss_of(model.logits).backward():
                    gradient = scores.grad.save()
        found.append(gradient)
    assert found[0].abs().max() > 0.1
    assert torch.allclose(*found, atol=1e-5)


def test_what_one_block_reads_before_another_waits_for_it_is_in_the_graph(llama: Any) -> None:
    """nnsight lets a block wait for others without putting back what it has open."""
    with llama.trace() as tracer:
        barrier = tracer.barrier(2)
        with tracer.invoke(PROMPT):
            donor = llama.token_embeddings
            barrier()
        with tracer.invoke(PROMPT.flip(-1)):
            barrier()
            llama.token_embeddings = donor
            with loss_of(llama.logits).backward():
                gradient = donor.grad.save()
    with llama.trace(PROMPT):
        embeddings = llama.token_embeddings
        with loss_of(llama.logits).backward():
            expected = embeddings.grad.save()
    assert torch.allclose(gradient, expected, rtol=1e-4, atol=1e-4)
