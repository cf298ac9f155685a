"""The ways a trace is written on vLLM: one step, a generation, several prompts; and a refusal.

On a real model, SmolLM2, and on a tiny one of Qwen2's shape.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nnsight
import pytest
import torch

from nnterp.tools.checking.compare import relative_error

PROMPT = "The Eiffel Tower is in"


@pytest.fixture(scope="module", params=["smollm2", "qwen2"])
def model(request: pytest.FixtureRequest, engine: Callable[[str], Any], smollm2: Any) -> Any:
    return smollm2 if request.param == "smollm2" else engine("qwen2")


@pytest.fixture
def tokens(model: Any) -> int:
    return len(model.tokenizer(PROMPT).input_ids)


def middle(model: Any) -> int:
    return model.num_layers // 2


def test_one_step(model: Any, tokens: int) -> None:
    block = model.layers[middle(model)]
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        x = block.layer_input.save()
        attn = block.self_attn.attention_output.save()
        mlp = block.mlp.mlp_output.save()
        out = block.layer_output.save()
        logits = model.logits.save()
    stream = (1, tokens, model.hidden_size)
    assert x.shape == attn.shape == mlp.shape == out.shape == stream
    assert logits.shape == (1, 1, model.vocab_size)
    assert relative_error(x + attn + mlp, out) < 1e-6


def test_the_stream_is_the_sum_of_the_pair_vllm_passes(model: Any) -> None:
    block = model.layers[middle(model)]
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        hidden = block.output[0].clone().save()
        residual = block.output[1].clone().save()
        stream = block.layer_output.save()
    assert torch.equal(hidden + residual, stream[0])


def test_a_generation_step_by_step(model: Any, tokens: int) -> None:
    block = model.layers[middle(model)]
    with model.trace(PROMPT, temperature=0.0, max_tokens=3, ignore_eos=True) as tracer:
        shapes = nnsight.save([])
        for _ in tracer.iter[:3]:
            shapes.append((tuple(block.layer_output.shape), tuple(model.logits.shape)))
        result = tracer.result.save()
    vocab, hidden = model.vocab_size, model.hidden_size
    assert shapes == [
        ((1, tokens, hidden), (1, 1, vocab)),
        ((1, 1, hidden), (1, 1, vocab)),
        ((1, 1, hidden), (1, 1, vocab)),
    ]
    assert len(result.outputs[0].token_ids) == 3


def test_samples_are_the_tokens_drawn_from_logits(model: Any) -> None:
    with model.trace(PROMPT, temperature=0.0, max_tokens=2, ignore_eos=True) as tracer:
        drawn, best = nnsight.save([]), nnsight.save([])
        for _ in tracer.iter[:2]:
            best.append(model.logits[0, -1].argmax().item())
            drawn.append(model.samples.item())
    assert drawn == best


def test_several_prompts_are_several_invokes_and_one_name_in_each_a_list(model: Any) -> None:
    block = model.layers[middle(model)]
    prompts = [PROMPT, "Hello", PROMPT]
    with model.trace(temperature=0.0, max_tokens=1) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                stream = block.layer_output.save()
    assert [s.shape[1] for s in stream] == [len(model.tokenizer(p).input_ids) for p in prompts]
    assert relative_error(stream[0], stream[2]) < 1e-6


def test_without_settings_a_trace_generates_vllms_default_of_16_tokens(model: Any) -> None:
    with model.trace(PROMPT, ignore_eos=True) as tracer:
        result = tracer.result.save()
    assert len(result.outputs[0].token_ids) == 16


def test_an_edit_and_an_assignment_both_reach_the_model(model: Any) -> None:
    first, second = middle(model) - 1, middle(model)
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        clean = model.logits.save()
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.layers[first].layer_output[:, -1] *= 0.5
        in_place = model.logits.save()
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.layers[first].layer_output[:, -1] *= 0.5
        model.layers[second].mlp.mlp_output = model.layers[second].mlp.mlp_output * 0
        both = model.logits.save()
    assert (in_place - clean).abs().max() > 0.1
    assert (both - in_place).abs().max() > 0.1


def test_a_shorter_value_is_refused_in_the_block_and_the_engine_carries_on(
    model: Any, tokens: int
) -> None:
    index = middle(model)
    block = model.layers[index]
    with pytest.raises(RuntimeError) as refused:
        with model.trace(PROMPT, temperature=0.0, max_tokens=1):
            block.layer_output = block.layer_output[:, :-1]
    sentence = str(refused.value).splitlines()[0]
    served, offered = (1, tokens, model.hidden_size), (1, tokens - 1, model.hidden_size)
    assert sentence.startswith(f"ValueError: model.model.layers.{index}.layer_output")
    assert str(served) in sentence
    assert str(offered) in sentence
    assert "layer_output[:, positions] = " in sentence
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        logits = model.logits.save()
    assert logits.shape == (1, 1, model.vocab_size)


def test_scores_are_the_prefills_alone(model: Any) -> None:
    attention = model.layers[0].self_attn
    with pytest.raises(RuntimeError, match=r"^Unavailable: .*attention_scores.*prefill step only"):
        with model.trace(PROMPT, temperature=0.0, max_tokens=2, ignore_eos=True) as tracer:
            for _ in tracer.iter[:2]:
                attention.attention_scores.save()


@pytest.mark.parametrize("name", ["attention_scores", "attention_probabilities"])
def test_what_the_kernel_computes_cannot_be_written(model: Any, name: str) -> None:
    attention = model.layers[0].self_attn
    with pytest.raises(RuntimeError, match=f"^ValueError: .*{name} is read-only on vllm"):
        with model.trace(PROMPT, temperature=0.0, max_tokens=1):
            setattr(attention, name, getattr(attention, name) * 0)
    with pytest.raises(RuntimeError, match=f"^ValueError: .*{name} is read-only on vllm"):
        with model.trace(PROMPT, temperature=0.0, max_tokens=1):
            getattr(attention, name)[:] = 0


def test_a_misspelt_value_names_the_nearest(model: Any) -> None:
    with pytest.raises(RuntimeError, match="did you mean 'attention_output'"):
        with model.trace(PROMPT, temperature=0.0, max_tokens=1):
            model.layers[0].self_attn.attention_ouput.save()


def test_smollm2_knows_where_the_eiffel_tower_is(smollm2: Any) -> None:
    with smollm2.trace(PROMPT, temperature=0.0, max_tokens=1):
        logits = smollm2.logits.save()
        probabilities = smollm2.next_token_probs.save()
    assert smollm2.tokenizer.decode(logits[0, -1].argmax()) == " Paris"
    assert torch.equal(logits[:, -1].softmax(-1, dtype=torch.float32), probabilities)


def test_methods_work_in_the_worker(model: Any) -> None:
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.steer(0, torch.ones(model.hidden_size), factor=3.0, positions=-1)
        steered = model.layers[0].layer_output.save()
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        plain = model.layers[0].layer_output.save()
    assert torch.allclose(steered[:, -1], plain[:, -1] + 3.0)
    assert torch.equal(steered[:, :-1], plain[:, :-1])

    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.steer(0, torch.ones(model.hidden_size), positions=[1, -1], batch_index=[0])
        steered = model.layers[0].layer_output.save()
    assert torch.allclose(steered[:, [1, -1]], plain[:, [1, -1]] + 1)
    assert torch.equal(steered[:, 2:-1], plain[:, 2:-1])
    with pytest.raises(RuntimeError, match="IndexError"):
        with model.trace(PROMPT, temperature=0.0, max_tokens=1):
            model.steer(0, torch.ones(model.hidden_size), batch_index=1)

    last = model.num_layers - 1
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        entering = model.layers[0].layer_input.save()
    with model.trace(PROMPT, temperature=0.0, max_tokens=1):
        model.skip_layers(0, last)
        leaving = model.layers[last].layer_output.save()
        texts, chances = model.get_topk_closest_tokens(leaving, k=3)
        texts, chances = nnsight.save(texts), chances.save()
        projected = model.project_on_vocab(leaving[:, -1:]).save()
        logits = model.logits.save()
    assert torch.equal(entering, leaving)
    assert relative_error(projected, logits) < 1e-6
    assert [len(position) for position in texts[0]] == [3] * entering.shape[1]
    assert chances.shape == (1, entering.shape[1], 3)
