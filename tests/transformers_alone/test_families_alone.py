"""Families on transformers alone: values, the identity, edits, and what nnsight keeps."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nnsight
import pytest
import torch

import checkpoints
from conftest import KINDS
from nnterp import StandardizedTransformer, Unavailable
from nnterp.engines.transformers import envoys
from nnterp.tools.checking import readings
from nnterp.tools.checking.compare import relative_error
from nnterp.vocabulary.values import VALUES

PROMPT = torch.tensor([checkpoints.PROMPT])

#: What is true of all families is shown of all beside their engines; this of a few.
VARIED = (*KINDS, "mistral", "qwen3", "phi3", "gemma3_text", "gemma3_text_untied")


@pytest.fixture(scope="module", params=VARIED)
def model(request: pytest.FixtureRequest, tiny_folder: Callable[[str], Path]) -> Any:
    return load(tiny_folder(request.param), attn_implementation="eager")


@pytest.fixture(scope="module")
def llama(tiny_folder: Callable[[str], Path]) -> Any:
    return load(tiny_folder("llama"), attn_implementation="eager")


def load(path: Path, **arguments: Any) -> StandardizedTransformer:
    return StandardizedTransformer(str(path), dispatch=True, dtype=torch.float32, **arguments)


def test_the_values_are_those_of_transformers_own_outputs(model: Any) -> None:
    """Against ``output_hidden_states`` and ``output_attentions``, which transformers computes."""
    found = readings.values(model, checkpoints.PROMPT)
    with torch.no_grad():
        own = model._module(PROMPT, output_hidden_states=True, output_attentions=True)
    for index in range(model.num_layers):
        assert torch.equal(found[f"{index}.layer_input"], own.hidden_states[index])
        assert torch.equal(found[f"{index}.attention_probabilities"], own.attentions[index])
    assert torch.equal(found["logits"], own.logits[:, -1:])


def test_the_embeddings_enter_block_0_unless_positions_are_added(model: Any) -> None:
    found = readings.values(model, checkpoints.PROMPT)
    learned_positions = hasattr(model._module.base_model, "wpe")
    same = torch.equal(found["token_embeddings"], found["0.layer_input"])
    assert same is not learned_positions


def test_what_attention_and_mlp_add_is_the_whole_difference_a_block_makes(model: Any) -> None:
    found = readings.values(model, checkpoints.PROMPT)
    for block in range(model.num_layers):
        added = found[f"{block}.attention_output"] + found[f"{block}.mlp_output"]
        entering, leaving = found[f"{block}.layer_input"], found[f"{block}.layer_output"]
        assert relative_error(entering + added, leaving) < 1e-6


def test_head_outputs_are_the_pattern_times_the_values(model: Any) -> None:
    found = readings.values(model, checkpoints.PROMPT)
    for block in range(model.num_layers):
        pattern = found[f"{block}.attention_probabilities"]
        values = found[f"{block}.attention_values"]
        repeated = values.repeat_interleave(pattern.shape[1] // values.shape[1], dim=1)
        heads = (pattern @ repeated).transpose(1, 2)
        assert relative_error(found[f"{block}.attention_head_outputs"], heads) < 1e-5
        scores = found[f"{block}.attention_scores"]
        assert relative_error(scores.softmax(-1), pattern) < 1e-5
        assert torch.isneginf(scores).any()


@pytest.mark.parametrize("name", [n for n, v in VALUES.items() if v.writable_on and n != "logits"])
def test_a_written_value_is_the_one_the_model_goes_on_with(model: Any, name: str) -> None:
    if name == "input_ids":
        changed = PROMPT.flip(-1)
        with torch.no_grad(), model.trace(PROMPT):
            model.input_ids = changed
            logits = model.logits[:, -1:].save()
        assert torch.equal(logits, readings.clean_logits(model, changed[0].tolist()))
        return
    clean = readings.clean_logits(model, checkpoints.PROMPT)
    host = model.host_of(VALUES[name], 0)
    with torch.no_grad(), model.trace(PROMPT):
        setattr(host, name, getattr(host, name).roll(1, -1))
        by_assignment = model.logits[:, -1:].save()
    with torch.no_grad(), model.trace(PROMPT):
        getattr(host, name)[:] = getattr(host, name).roll(1, -1).clone()
        in_place = model.logits[:, -1:].save()
    assert relative_error(by_assignment, clean) > 1e-3
    assert torch.equal(by_assignment, in_place)


def test_written_scores_change_the_pattern(model: Any) -> None:
    attention = model.layers[0].self_attn
    with torch.no_grad(), model.trace(PROMPT):
        attention.attention_scores[:, :, -1, -1] = 50.0
        pattern = attention.attention_probabilities.save()
    assert torch.allclose(pattern[0, :, -1, -1], torch.ones(model.num_heads))


def test_sizes_are_those_of_the_tensors(model: Any) -> None:
    found = readings.values(model, checkpoints.PROMPT)
    sizes = {
        "batch": 1,
        "seq": len(checkpoints.PROMPT),
        "query": len(checkpoints.PROMPT),
        "key": len(checkpoints.PROMPT),
        "hidden": model.hidden_size,
        "vocab": model.vocab_size,
        "heads": model.num_heads,
        "kv_heads": model.num_kv_heads,
        "head_dim": model.head_dim,
        "qk_head_dim": model.qk_head_dim,
    }
    for name, value in VALUES.items():
        if name == "logits" or not model.support()[name]:
            continue
        tensor = found[name if value.host == "model" else f"1.{name}"]
        assert tensor.shape == tuple(sizes[axis] for axis in value.axes), name
    assert model.num_layers == 2
    assert model.intermediate_size in (128, 256)


def test_aliases_name_the_same_modules_everywhere(model: Any) -> None:
    block = model.layers[0]
    embedding = model.embed_tokens._module
    assert embedding is model._module.get_input_embeddings()
    assert model.lm_head._module is model._module.get_output_embeddings()
    assert len(model.layers) == model.num_layers
    assert isinstance(block, envoys.Layer)
    assert isinstance(block.self_attn, envoys.Attention)
    assert isinstance(block.mlp, envoys.Mlp)
    assert "norm" in type(model.norm._module).__name__.lower()


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_padded_batch_gives_each_row_what_it_gives_alone(llama: Any, side: str) -> None:
    short = checkpoints.PROMPT[:7]
    long = checkpoints.PROMPT
    pad = [0] * (len(long) - len(short))
    ids = torch.tensor([pad + short if side == "left" else short + pad, long])
    mask = (torch.arange(len(long)) < len(short)).long()
    mask = torch.stack([mask.flip(0) if side == "left" else mask, torch.ones_like(mask)])
    where = slice(-len(short), None) if side == "left" else slice(0, len(short))
    attention = llama.layers[1].self_attn
    with torch.no_grad(), llama.trace({"input_ids": ids, "attention_mask": mask}):
        scores = attention.attention_scores.save()
        pattern = attention.attention_probabilities.save()
        stream = llama.layers[1].layer_output.save()
    alone = readings.values(llama, short)
    assert relative_error(stream[:1, where], alone["1.layer_output"]) < 1e-5
    assert relative_error(pattern[:1, :, where, where], alone["1.attention_probabilities"]) < 1e-5
    assert relative_error(scores[:1, :, where, where], alone["1.attention_scores"]) < 1e-5
    assert torch.isfinite(stream).all()


def test_writing_scores_of_padded_rows_keeps_the_model_finite(llama: Any) -> None:
    short = checkpoints.PROMPT[:5]
    ids = torch.tensor([[0] * 3 + short])
    mask = torch.tensor([[0] * 3 + [1] * 5])
    with torch.no_grad(), llama.trace({"input_ids": ids, "attention_mask": mask}):
        llama.layers[0].self_attn.attention_scores *= 0.5
        logits = llama.logits.save()
    assert torch.isfinite(logits).all()


def test_gradients_reach_what_was_read(llama: Any) -> None:
    block = llama.layers[0]
    with llama.trace(PROMPT):
        queries = block.self_attn.attention_queries
        pattern = block.self_attn.attention_probabilities
        heads = block.self_attn.attention_head_outputs
        stream = block.layer_output
        loss = llama.logits[0, -1].max()
        with loss.backward():
            by_stream = stream.grad.save()
            by_heads = heads.grad.save()
            by_pattern = pattern.grad.save()
            by_queries = queries.grad.save()
    for gradient in (by_stream, by_heads, by_pattern, by_queries):
        assert gradient.abs().max() > 0


def test_several_invokes_see_their_own_rows(llama: Any) -> None:
    block = llama.layers[0]
    with torch.no_grad(), llama.trace() as tracer:
        with tracer.invoke(PROMPT):
            block.layer_output[:, -1] *= 0
            edited = llama.layers[1].layer_input.save()
        with tracer.invoke(PROMPT):
            kept = llama.layers[1].layer_input.save()
    assert edited.shape == kept.shape == (1, len(checkpoints.PROMPT), llama.hidden_size)
    assert edited[:, -1].abs().max() == 0
    assert kept[:, -1].abs().max() > 0
    assert torch.equal(edited[:, :-1], kept[:, :-1])


def test_a_generation_serves_each_step(llama: Any) -> None:
    attention = llama.layers[0].self_attn
    tokens = len(checkpoints.PROMPT)
    with torch.no_grad(), llama.generate(PROMPT, max_new_tokens=3, do_sample=False) as tracer:
        shapes = nnsight.save([])
        for _ in tracer.iter[:3]:
            keys, scores = attention.attention_keys, attention.attention_scores
            shapes.append((keys.shape[2], tuple(scores.shape[2:]), llama.logits.shape[1]))
    assert shapes == [
        (tokens, (tokens, tokens), 1),
        (1, (1, tokens + 1), 1),
        (1, (1, tokens + 2), 1),
    ]


def test_keys_of_one_step_can_be_replaced_beside_the_cached_ones(llama: Any) -> None:
    attention = llama.layers[0].self_attn
    outcomes = []
    for factor in (1.0, 3.0):
        with torch.no_grad(), llama.generate(PROMPT, max_new_tokens=2, do_sample=False) as tracer:
            for _ in tracer.iter[1]:
                attention.attention_keys = attention.attention_keys * factor
                logits = llama.logits.save()
        outcomes.append(logits)
    assert relative_error(outcomes[1], outcomes[0]) > 1e-4


def test_an_edited_copy_of_the_model_keeps_its_edit(llama: Any) -> None:
    clean = readings.clean_logits(llama, checkpoints.PROMPT)
    with llama.edit() as (_, edited):
        edited.layers[0].layer_output[:, -1] = 0
    assert relative_error(readings.clean_logits(edited, checkpoints.PROMPT), clean) > 1e-3
    assert torch.equal(readings.clean_logits(llama, checkpoints.PROMPT), clean)


def test_an_undispatched_model_has_its_sizes_and_scans(tiny_folder: Callable[[str], Path]) -> None:
    model = StandardizedTransformer(str(tiny_folder("llama")))
    assert not model.dispatched
    assert (model.num_layers, model.hidden_size) == (2, 64)
    with model.scan(PROMPT):
        shape = nnsight.save(model.layers[0].layer_output.shape)
    assert tuple(shape) == (1, len(checkpoints.PROMPT), 64)


def test_a_loaded_module_is_taken_as_it_is(tiny_folder: Callable[[str], Path]) -> None:
    from transformers import AutoModelForCausalLM

    path = str(tiny_folder("llama"))
    loaded = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    model = StandardizedTransformer(loaded)
    assert model.family.__name__ == "nnterp.families.llama"
    assert torch.equal(
        readings.clean_logits(model, checkpoints.PROMPT),
        readings.clean_logits(load(Path(path)), checkpoints.PROMPT),
    )


def test_without_eager_only_scores_and_pattern_are_unavailable(
    tiny_folder: Callable[[str], Path],
) -> None:
    model = load(tiny_folder("llama"), attn_implementation="sdpa")
    support = model.support()
    missing = [name for name, row in support.items() if not row]
    missing = [name for name in missing if VALUES[name].host != "mlp"]
    assert missing == ["attention_scores", "attention_probabilities"]
    assert "attn_implementation='eager'" in repr(support)
    for name in missing:
        with pytest.raises(Unavailable, match="attn_implementation='eager'"), model.trace(PROMPT):
            getattr(model.layers[0].self_attn, name).save()
    eager = load(tiny_folder("llama"), attn_implementation="eager")
    found, expected = (readings.values(m, checkpoints.PROMPT) for m in (model, eager))
    assert relative_error(found["1.attention_queries"], expected["1.attention_queries"]) < 1e-5
    assert (
        relative_error(found["1.attention_head_outputs"], expected["1.attention_head_outputs"])
        < 1e-5
    )


def test_methods_do_what_they_say(llama: Any) -> None:
    with torch.no_grad(), llama.trace(PROMPT):
        plain = llama.layers[1].layer_output.save()
    vector = torch.arange(llama.hidden_size).float()
    with torch.no_grad(), llama.trace(PROMPT):
        llama.steer([-1], vector, factor=0.5, positions=[0, 3])
        steered = llama.layers[1].layer_output.save()
    added = (steered - plain)[0]
    assert torch.allclose(added[[0, 3]], (0.5 * vector).expand(2, -1), atol=1e-5)
    assert added[[1, 2]].abs().max() == 0

    with torch.no_grad(), llama.trace([checkpoints.PROMPT] * 3):
        llama.steer(0, vector, 0.5, positions=[0, -2], batch_index=[2, 0])
        first = llama.layers[0].layer_output.save()
        llama.steer(1, vector, 0.5, batch_index=slice(1, 2))
        second = llama.layers[1].layer_output.save()
    with torch.no_grad(), llama.trace([checkpoints.PROMPT] * 3):
        unsteered = llama.layers[0].layer_output.save()
    added, tokens = first - unsteered, len(checkpoints.PROMPT)
    moved = torch.zeros(3, tokens, 1)
    moved[0, [0, -2]] = moved[2, [0, -2]] = 0.5
    assert torch.allclose(added, moved * vector, atol=1e-5)
    # The second prompt was not steered before.
    assert torch.allclose(second[1] - plain[0], 0.5 * vector.expand(tokens, -1), atol=1e-5)
    with torch.no_grad(), llama.trace([checkpoints.PROMPT] * 3):
        llama.steer(0, torch.stack([vector, -vector]), positions=3, batch_index=[1, 2])
        llama.steer(0, vector, batch_index=0, positions=[True] + [False] * (tokens - 1))
        llama.steer(0, vector, batch_index=[False, True, False], positions=[1])
        third = llama.layers[0].layer_output.save()
    moved = torch.zeros(3, tokens, 1)
    moved[1, 3], moved[2, 3], moved[0, 0], moved[1, 1] = 1, -1, 1, 1
    assert torch.allclose(third - unsteered, moved * vector, atol=1e-5)
    with (
        pytest.raises(IndexError, match="3"),
        torch.no_grad(),
        llama.trace([checkpoints.PROMPT] * 3),
    ):
        llama.steer(0, vector, batch_index=3)

    with torch.no_grad(), llama.trace(PROMPT):
        llama.skip_layers(0, 1)
        skipped = llama.layers[1].layer_output.save()
    with torch.no_grad(), llama.trace(PROMPT):
        entering = llama.layers[0].layer_input.save()
    assert torch.equal(skipped, entering)

    texts, chances = llama.get_topk_closest_tokens(plain, k=2)
    logits = llama.project_on_vocab(plain)
    assert chances.shape == (1, len(checkpoints.PROMPT), 2)
    best = llama.tokenizer.decode(logits[0, -1].argmax())
    assert texts[0][-1][0] == best


@pytest.mark.parametrize("layer", [2, -3])
def test_a_block_that_is_not_there_is_named(llama: Any, layer: int) -> None:
    with pytest.raises(IndexError, match=f"no block {layer}"), llama.trace(PROMPT):
        llama.steer(layer, torch.zeros(llama.hidden_size))


def test_skipping_backwards_is_refused(llama: Any) -> None:
    with pytest.raises(ValueError, match="nothing lies between"), llama.trace(PROMPT):
        llama.skip_layers(1, 0)


def test_the_repr_lists_the_values_with_their_layouts(model: Any) -> None:
    text = repr(model)
    for name, value in VALUES.items():
        assert f"({name}) -> [{value.layout}]: {value.description}" in text


@pytest.mark.parametrize("name", ["mixtral", "zaya"])
@pytest.mark.parametrize("gradients", [False, True])
def test_an_edit_in_place_of_what_is_read_only_is_refused_as_such(
    name: str, gradients: bool, tiny_folder: Callable[[str], Path]
) -> None:
    """Computed beside the forward in Mixtral, and the forward's own tensor in ZAYA."""
    model = load(tiny_folder(name), attn_implementation="eager")
    refusal = r"router_logits is read-only on transformers, and was edited in place on a line above"
    with pytest.raises(ValueError, match=refusal):
        with torch.set_grad_enabled(gradients), model.trace(PROMPT):
            block = model.layers[1]
            block.mlp.router_logits[:] = 0
            assert block.layer_output is not None
            assert model.logits is not None
