"""An invoke sees and edits its own tokens, as with its prompt alone, whatever is in the batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import nnsight
import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import checkpoints
from nnterp import StandardizedTransformer, Unavailable
from nnterp.tools.checking import readings
from nnterp.tools.checking.compare import relative_error
from nnterp.vocabulary.values import VALUES, Value

pytestmark = pytest.mark.usefixtures("one_thread")

SHORT, LONG, MIDDLE = (
    checkpoints.PROMPT[:7],
    checkpoints.PROMPT,
    checkpoints.PROMPT[3:14],
)
PROMPTS = (SHORT, LONG, MIDDLE)

#: Rotary, learned and no positions, windows and caps, experts, rows without a batch axis, a
#: recurrence that skips padding and one that has to have it after the tokens.
KINDS = (
    "llama",
    "gpt2",
    "gemma2",
    "gpt_neox",
    "bloom",
    "mpt",
    "mixtral",
    "opt",
    "llama4_text",
    "bamba",
    "qwen3_next",
    "rwkv",
)


@pytest.fixture(scope="module")
def llama(tiny_folder: Callable[[str], Path]) -> Any:
    return load(tiny_folder("llama"))


@pytest.fixture(scope="module")
def gpt2(tiny_folder: Callable[[str], Path]) -> Any:
    return load(tiny_folder("gpt2"))


def load(path: Path, **arguments: Any) -> StandardizedTransformer:
    return StandardizedTransformer(
        str(path),
        dispatch=True,
        dtype=torch.float32,
        attn_implementation="eager",
        **arguments,
    )


def places(model: Any) -> list[tuple[int, Value]]:
    named = [(0, VALUES[name]) for name in ("input_ids", "token_embeddings")]
    last = [(0, VALUES[name]) for name in ("logits", "next_token_probs")]
    return [*named, *readings.served(model), *last]


def read(model: Any, prompts: Sequence[Sequence[int]]) -> list[dict[str, Tensor]]:
    """Every value of each prompt, an invoke each."""
    with model.trace() as tracer:
        found = nnsight.save([{} for _ in prompts])
        for index, prompt in enumerate(prompts):
            with tracer.invoke(torch.tensor([prompt])):
                for block, value in places(model):
                    tensor = getattr(model.host_of(value, block), value.name)
                    found[index][f"{block}.{value.name}"] = tensor.detach().clone()
    return found


def generated(model: Any, prompts: Sequence[Sequence[int]]) -> list[dict[str, Tensor]]:
    """Every value of each prompt, an invoke each, on the first steps of a generation."""
    settings = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    with model.generate(**settings) as tracer:
        found = nnsight.save([{} for _ in prompts])
        for index, prompt in enumerate(prompts):
            with tracer.invoke(torch.tensor([prompt])):
                for step in tracer.iter[:3]:
                    for block, value in places(model):
                        tensor = getattr(model.host_of(value, block), value.name)
                        found[index][f"{step}.{block}.{value.name}"] = tensor.clone()
    return found


def same(found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    assert found.keys() == expected.keys()
    for key, tensor in expected.items():
        assert found[key].shape == tensor.shape, key
        if not tensor.is_floating_point():
            assert torch.equal(found[key], tensor), key
            continue
        hidden = tensor.isneginf()
        assert torch.equal(found[key].isneginf(), hidden), key
        assert (
            relative_error(found[key].masked_fill(hidden, 0), tensor.masked_fill(hidden, 0)) < 2e-5
        ), key


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", KINDS)
def test_every_value_is_that_of_the_prompt_alone(
    name: str, side: str, tiny_folder: Callable[[str], Path]
) -> None:
    model = load(tiny_folder(name))
    model.tokenizer.padding_side = side
    with torch.no_grad():
        alone = [read(model, [prompt])[0] for prompt in PROMPTS]
        together = read(model, PROMPTS)
    with_gradients = read(model, PROMPTS)
    for own, beside, kept in zip(alone, together, with_gradients, strict=True):
        same(beside, own)
        same(kept, own)


@pytest.mark.parametrize("name", ["llama", "gpt2", "gemma2", "bloom", "opt", "bamba"])
def test_every_step_of_a_generation_is_that_of_the_prompt_alone(
    name: str, tiny_folder: Callable[[str], Path]
) -> None:
    """Keys come out of a cache there, in windows shorter than the padding."""
    model = load(tiny_folder(name))
    # A generation is padded on the left all the same.
    model.tokenizer.padding_side = "right"
    for found, prompt in zip(generated(model, PROMPTS), PROMPTS, strict=True):
        same(found, generated(model, [prompt])[0])
    assert model.tokenizer.padding_side == "right"


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("name", ["llama", "granite", "opt", "gpt_neox_japanese", "gemma2"])
def test_an_edit_reaches_its_own_tokens_and_nothing_else(
    name: str, side: str, gradients: bool, tiny_folder: Callable[[str], Path]
) -> None:
    """Each value in place at the first positions, and assigned; not scaled, which norms undo.

    It does what it does alone, and the logits of the invokes beside it keep every bit.
    """
    model = load(tiny_folder(name))
    model.tokenizer.padding_side = side
    support = model.support()
    moved = [
        (block, value)
        for block, value in places(model)
        if support[value.name].writable and value.name != "input_ids" and block == 0
    ]

    def edited(prompts: Sequence[Sequence[int]], which: int, place: Any, way: str) -> Any:
        with torch.set_grad_enabled(gradients), model.trace() as tracer:
            logits = nnsight.save([None] * len(prompts))
            for index, prompt in enumerate(prompts):
                with tracer.invoke(torch.tensor([prompt])):
                    if index == which and place is not None:
                        block, value = place
                        host = model.host_of(value, block)
                        tensor = getattr(host, value.name)
                        axis = value.token_axis
                        if way == "in place":
                            tensor.narrow(axis, 0, 2)[..., ::2] *= 2
                        else:
                            weights = torch.linspace(0.5, 1.5, tensor.shape[-1])
                            setattr(host, value.name, tensor * weights)
                    logits[index] = model.logits.detach().clone()
        return logits

    clean = edited(PROMPTS, 0, None, "")
    for place in moved:
        for way in ("in place", "assigned"):
            beside = edited(PROMPTS, 0, place, way)
            alone = edited([SHORT], 0, place, way)
            assert relative_error(beside[0], alone[0]) < 1e-5, (place, way)
            assert relative_error(beside[0], clean[0]) > 1e-4, (place, way)
            assert torch.equal(beside[1], clean[1]), (place, way)
            assert torch.equal(beside[2], clean[2]), (place, way)


@pytest.mark.parametrize("side", ["left", "right"])
def test_steering_and_skipping_count_the_invokes_own_tokens(
    llama: Any, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama.tokenizer, "padding_side", side)
    vector = torch.arange(llama.hidden_size).float()
    outcomes = []
    for prompts in ([SHORT], [SHORT, LONG]):
        with torch.no_grad(), llama.trace() as tracer:
            for index, prompt in enumerate(prompts):
                with tracer.invoke(torch.tensor([prompt])):
                    if index == 0:
                        llama.steer(0, vector, factor=0.1, positions=[0, 1])
                        steered = llama.layers[0].layer_output.save()
                        llama.skip_layers(1, 1)
                        skipped = llama.layers[1].layer_output.save()
        outcomes.append((steered, skipped))
    (alone, left_alone), (beside, left_beside) = outcomes
    assert relative_error(beside, alone) < 1e-5
    assert torch.equal(left_alone, alone)
    assert torch.equal(left_beside, beside)
    plain = read(llama, [SHORT])[0]["0.layer_output"]
    added = (beside - plain)[0]
    assert torch.allclose(added[:2], (0.1 * vector).expand(2, -1), atol=1e-4)
    assert added[2:].abs().max() < 1e-4


@pytest.mark.parametrize("gradients", [False, True])
@pytest.mark.parametrize("name", ["llama", "falcon"])
def test_a_kept_tensor_is_the_callers_whatever_becomes_of_what_it_was_assigned_to(
    name: str, gradients: bool, tiny_folder: Callable[[str], Path]
) -> None:
    """Falcon's MLP output has the attention's added to it in place."""
    model = load(tiny_folder(name))
    block = model.layers[0]
    kept = torch.randn(1, len(SHORT), model.hidden_size)
    added = torch.randn(1, len(SHORT), model.hidden_size)
    before = kept.clone(), added.clone()
    with torch.set_grad_enabled(gradients), model.trace(torch.tensor([SHORT])):
        block.mlp.mlp_output = added
        block.layer_output = kept
        block.layer_output[:, 1:] += 1
        edited = block.layer_output.detach().clone().save()
        arrived = model.layers[1].layer_input.detach().clone().save()
    assert torch.equal(kept, before[0])
    assert torch.equal(added, before[1])
    assert torch.equal(edited[:, 1:], kept[:, 1:] + 1)
    assert torch.equal(arrived, edited)


def padded(prompt: Sequence[int], before: int, after: int) -> dict[str, Tensor]:
    ids = [0] * before + list(prompt) + [0] * after
    mask = [0] * before + [1] * len(prompt) + [0] * after
    return {"input_ids": torch.tensor([ids]), "attention_mask": torch.tensor([mask])}


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize(("before", "after"), [(0, 3), (2, 0), (2, 3), (0, 0)])
@pytest.mark.parametrize("beside", [[], [LONG]])
def test_tokens_have_their_own_positions_on_whichever_side_they_are_padded(
    gpt2: Any,
    before: int,
    after: int,
    beside: list[list[int]],
    side: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In a dict that brings its padding, which is served, alone and beside a longer prompt."""
    monkeypatch.setattr(gpt2.tokenizer, "padding_side", side)
    with torch.no_grad():
        alone = read(gpt2, [SHORT])[0]["1.layer_output"]
        with gpt2.trace() as tracer:
            with tracer.invoke(padded(SHORT, before, after)):
                ids = gpt2.input_ids.clone().save()
                stream = gpt2.layers[1].layer_output.save()
            for prompt in beside:
                with tracer.invoke(torch.tensor([prompt])):
                    pass
    assert ids.tolist() == padded(SHORT, before, after)["input_ids"].tolist()
    assert relative_error(stream[:, before : before + len(SHORT)], alone) < 1e-5


def test_positions_that_are_given_are_kept(gpt2: Any) -> None:
    given = torch.arange(len(SHORT))[None] + 5
    with torch.no_grad(), gpt2.trace() as tracer:
        with tracer.invoke({"input_ids": torch.tensor([SHORT]), "position_ids": given}):
            stream = gpt2.layers[1].layer_output.save()
        with tracer.invoke(torch.tensor([LONG])):
            pass
    with torch.no_grad(), gpt2.trace(torch.tensor([SHORT]), position_ids=given):
        alone = gpt2.layers[1].layer_output.save()
    assert relative_error(stream, alone) < 1e-5
    assert relative_error(stream, read(gpt2, [SHORT])[0]["1.layer_output"]) > 1e-2


@pytest.mark.parametrize("side", ["left", "right"])
def test_several_texts_in_one_invoke_keep_the_padding_of_their_own(
    llama: Any, side: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(llama.tokenizer, "padding_side", side)
    texts = ["abcdefgh", "xyz"]
    outcomes = []
    for beside in ([], ["a much longer text than both"]):
        with torch.no_grad(), llama.trace() as tracer:
            with tracer.invoke(texts):
                ids = llama.input_ids.clone().save()
                stream = llama.layers[1].layer_output.save()
            for text in beside:
                with tracer.invoke(text):
                    pass
        outcomes.append((stream, ids))
    assert outcomes[0][0].shape == (2, 8, llama.hidden_size)
    assert torch.equal(outcomes[0][1], outcomes[1][1])
    own = slice(5, 8) if side == "left" else slice(0, 3)
    for row, kept in ((0, slice(0, 8)), (1, own)):
        assert relative_error(outcomes[1][0][row, kept], outcomes[0][0][row, kept]) < 1e-5
    alone = read(llama, [outcomes[0][1][1, own].tolist()])[0]["1.layer_output"]
    assert relative_error(outcomes[1][0][1, own], alone[0]) < 1e-5


def test_an_invoke_with_no_input_sees_the_batch_as_it_is(llama: Any) -> None:
    with torch.no_grad(), llama.trace() as tracer:
        with tracer.invoke(torch.tensor([SHORT])):
            pass
        with tracer.invoke(torch.tensor([LONG])):
            pass
        with tracer.invoke():
            shape = nnsight.save(llama.layers[0].layer_output.shape)
    assert tuple(shape) == (2, len(LONG), llama.hidden_size)


def test_nnsights_own_handles_show_the_last_token_last(llama: Any) -> None:
    """They are left padded, as nnsight has them."""
    with torch.no_grad(), llama.trace() as tracer:
        with tracer.invoke(torch.tensor([SHORT])):
            own = llama.layers[0].output.save()
        with tracer.invoke(torch.tensor([LONG])):
            pass
    assert own.shape == (1, len(LONG), llama.hidden_size)
    alone = read(llama, [SHORT])[0]["0.layer_output"]
    assert relative_error(own[:, -1], alone[:, -1]) < 1e-5


def test_beams_are_the_rows_of_their_prompt(llama: Any) -> None:
    settings = {"max_new_tokens": 2, "min_new_tokens": 2, "do_sample": False, "num_beams": 2}
    outcomes = []
    for prompts in ([SHORT], [LONG, SHORT]):
        with llama.generate(**settings) as tracer:
            for prompt in prompts:
                with tracer.invoke(torch.tensor([prompt])):
                    stream = llama.layers[0].layer_output.clone().save()
        outcomes.append(stream)
    assert outcomes[0].shape == (2, len(SHORT), llama.hidden_size)
    assert relative_error(outcomes[1], outcomes[0]) < 1e-5


@pytest.mark.parametrize("name", ["rwkv", "falcon_h1"])
def test_prompts_that_later_steps_would_mix_up_are_generated_from_apart(
    name: str, tiny_folder: Callable[[str], Path]
) -> None:
    """In a batch these models broadcast rows over tokens from the second step on."""
    model = load(tiny_folder(name))
    settings = {"max_new_tokens": 3, "eos_token_id": -1}
    with pytest.raises(ValueError, match="rows of a batch for tokens .* trace one prompt at a"):
        with model.generate(**settings, do_sample=False) as tracer:
            for prompt in (SHORT, SHORT):
                with tracer.invoke(torch.tensor([prompt])):
                    pass
    done = model.run([SHORT, SHORT, LONG], max_tokens=3, eos_token_id=-1)
    alone = AutoModelForCausalLM.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()
    for prompt, tokens in zip((SHORT, SHORT, LONG), done.tokens, strict=True):
        ids = list(prompt)
        for _ in range(3):
            with torch.no_grad():
                ids.append(int(alone(torch.tensor([ids]), use_cache=False).logits[0, -1].argmax()))
        assert tokens == ids[len(prompt) :]


@pytest.mark.parametrize("name", ["minimax"])
def test_what_a_model_would_generate_wrongly_from_padded_prompts_is_refused(
    name: str, tiny_folder: Callable[[str], Path]
) -> None:
    model = load(tiny_folder(name))
    settings = {"max_new_tokens": 2, "min_new_tokens": 2, "do_sample": False}
    with pytest.raises(ValueError, match="generate from prompts of several lengths in a trace"):
        with model.generate(**settings) as tracer:
            with tracer.invoke(torch.tensor([SHORT])):
                pass
            with tracer.invoke(torch.tensor([LONG])):
                pass
    # Prompts of one length are.
    with model.generate(**settings) as tracer:
        with tracer.invoke(torch.tensor([SHORT])):
            first = model.logits.save()
        with tracer.invoke(torch.tensor([LONG[:7]])):
            second = model.logits.save()
    assert relative_error(first, second) < 1e-6


def test_prompts_that_a_model_would_mix_up_are_refused_and_collected_apart(
    tiny_folder: Callable[[str], Path],
) -> None:
    model = load(tiny_folder("doge_moe"))
    with pytest.raises(ValueError, match="scores of others in the batch; trace one prompt at a"):
        with model.trace() as tracer:
            with tracer.invoke(torch.tensor([SHORT])):
                pass
            with tracer.invoke(torch.tensor([LONG[:7]])):
                pass
    found = model.collect([SHORT, MIDDLE], {"layers.*.layer_output": "last"})
    for row, prompt in enumerate((SHORT, MIDDLE)):
        with torch.no_grad(), model.trace(torch.tensor([prompt])):
            stream = model.layers[1].layer_output[:, -1].save()
        assert relative_error(found["layers.1.layer_output"][row], stream[0]) < 1e-6


def test_keys_that_are_not_one_a_token_are_refused_beside_a_longer_prompt(
    tiny_folder: Callable[[str], Path],
) -> None:
    """DeepSeek-V4's are followed by some that each sum up several."""
    model = load(tiny_folder("deepseek_v4"))
    summing = next(iter(model.support()["attention_keys"].reasons))
    attention = model.layers[summing].self_attn
    with pytest.raises(
        Unavailable, match="attention_scores has .* key positions .* trace it alone"
    ):
        with torch.no_grad(), model.trace() as tracer:
            with tracer.invoke(torch.tensor([SHORT])):
                attention.attention_scores.sum()
            with tracer.invoke(torch.tensor([LONG])):
                pass


def test_the_padding_side_that_was_chosen_is_kept(tiny_folder: Callable[[str], Path]) -> None:
    model = StandardizedTransformer(str(tiny_folder("gpt2")), attn_implementation="eager")
    assert model.tokenizer.padding_side == "left"
    model.tokenizer.padding_side = "right"
    with torch.no_grad(), model.trace() as tracer:
        with tracer.invoke(torch.tensor([SHORT])):
            own = model.layers[1].output.save()
            stream = model.layers[1].layer_output.save()
        with tracer.invoke(torch.tensor([LONG])):
            pass
    assert model.dispatched
    assert model.tokenizer.padding_side == "right"
    assert torch.equal(own[:, : len(SHORT)], stream)
    with torch.no_grad(), model.trace(torch.tensor([SHORT])):
        alone = model.layers[1].layer_output.save()
    assert relative_error(stream, alone) < 1e-5


def test_a_module_handed_over_in_training_gives_what_loading_it_gives(
    tiny_folder: Callable[[str], Path],
) -> None:
    loaded = load(tiny_folder("gpt2"))
    config = loaded._module.config
    dropped = type(config).from_dict({**config.to_dict(), "resid_pdrop": 0.5, "embd_pdrop": 0.5})
    module = AutoModelForCausalLM.from_config(
        dropped, dtype=torch.float32, attn_implementation="eager"
    )
    module.load_state_dict(loaded._module.state_dict())
    assert module.training
    model = StandardizedTransformer(module, tokenizer=loaded.tokenizer)
    assert torch.equal(readings.clean_logits(model, SHORT), readings.clean_logits(loaded, SHORT))
    model.train()
    assert (
        relative_error(readings.clean_logits(model, SHORT), readings.clean_logits(loaded, SHORT))
        > 1e-2
    )
