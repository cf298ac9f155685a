"""`collect`: few values of many prompts, on either engine."""

from __future__ import annotations

import json
import pickle
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

import collects
import nnterp
from conftest import TINY_ENGINE
from nnterp import StandardizedTransformer, StandardizedVLLM
from nnterp.errors import Unavailable
from nnterp.tools.checking.compare import relative_error

CLOSE = 1e-5


@pytest.fixture
def model(either: Any) -> Any:
    return either


def test_each_choice_of_positions_keeps_what_a_trace_reads(model: Any) -> None:
    found = model.collect(collects.PROMPTS, collects.wanted(model))
    for index, prompt in enumerate(collects.PROMPTS):
        with torch.no_grad(), model.trace(prompt, **settings(model)):
            embeddings = model.token_embeddings.save()
            entering = model.layers[0].layer_input.save()
            queries = model.layers[0].self_attn.attention_queries.save()
            keys = model.layers[1].self_attn.attention_keys.save()
            pattern = model.layers[1].self_attn.attention_probabilities.save()
            heads = model.layers[1].self_attn.attention_head_outputs.save()
            mlp = model.layers[1].mlp.mlp_output.save()
            stream = model.layers[1].layer_output.save()
            logits = model.logits.save()
        mask = torch.tensor(collects.MASKS[index])
        kept = {
            "layers.1.layer_output": stream[0],
            "layers.0.layer_input": entering[0, mask],
            "layers.0.self_attn.attention_queries": queries[0, :, -1],
            "layers.1.self_attn.attention_keys": keys[0].transpose(0, 1),
            "layers.1.self_attn.attention_head_outputs": heads[0, -2],
            "layers.1.mlp.mlp_output": collects.loudest(mlp),
            "layers.1.self_attn.attention_probabilities": collects.last_row(pattern),
            "token_embeddings": embeddings[0].mean(0),
            "logits": logits[0, -1],
            "next_token_probs": logits[0, -1].softmax(-1),
        }
        for key, want in kept.items():
            assert found[key][index].shape == want.shape, key
            if want.numel():
                assert relative_error(found[key][index], want) < CLOSE, key


@pytest.mark.parametrize("form", ["text", "ids", "tensor", "batch of one", "tokenizer's output"])
def test_a_trace_takes_a_prompt_in_any_form(model: Any, form: str) -> None:
    text = "The Eiffel Tower"
    tokenized = model.tokenizer(text, return_tensors="pt")
    ids = tokenized["input_ids"]
    forms = {
        "text": text,
        "ids": ids[0].tolist(),
        "tensor": ids[0],
        "batch of one": ids,
        "tokenizer's output": tokenized,
    }
    with torch.no_grad(), model.trace(forms[form], **settings(model)):
        last = model.layers[1].layer_output[0, -1].save()
    found = model.collect([text], {"layers.1.layer_output": "last"})
    assert relative_error(found["layers.1.layer_output"][0], last) < CLOSE


def settings(model: Any) -> dict[str, Any]:
    return {"temperature": 0.0, "max_tokens": 1} if model.engine_adapter.engine == "vllm" else {}


def test_texts_and_ids_and_batches_of_any_size_are_the_same(model: Any) -> None:
    texts = ["a", "The Eiffel Tower", "is in", "Paris and not elsewhere", "b c"]
    ids = [model.tokenizer(text)["input_ids"] for text in texts]
    want = {"layers.0.layer_output": "all", "layers.1.layer_output": "last"}
    whole = model.collect(texts, want)
    assert [len(rows) for rows in whole["layers.0.layer_output"]] == [len(own) for own in ids]
    tensors = [model.tokenizer(text, return_tensors="pt") for text in texts]
    padded = model.tokenizer(texts, return_tensors="pt", padding=True)
    lists = model.tokenizer(texts)
    for prompts, size in (
        (ids, None),
        (texts, 1),
        (map(torch.tensor, ids), 2),
        (tensors, None),
        (padded, None),
        (lists, None),
    ):
        again = collects.flat(model.collect(prompts, want, batch_size=size))
        for key, rows in collects.flat(whole).items():
            assert relative_error(again[key], rows) < CLOSE


def test_what_comes_back_can_be_trained_on(model: Any) -> None:
    rows = model.collect(["a b c", "d"], {"layers.0.layer_output": "last"})["layers.0.layer_output"]
    weight = torch.nn.Parameter(torch.ones(rows.shape[1]))
    (rows @ weight).sum().backward()
    assert torch.equal(weight.grad, rows.sum(0))
    rows += 1  # nobody else's


def test_a_refusal_says_what_to_write(model: Any) -> None:
    def refused(prompts: Any, wanted: Any, kind: type[Exception], says: str) -> None:
        with pytest.raises(kind, match=says):
            model.collect(prompts, wanted)

    two = ["a b", "c d e"]
    refused(two, {"layers.0.layer_outptu": "last"}, ValueError, "did you mean 'layers")
    refused(two, {"layer_output": "last"}, ValueError, r"'layers\.3\.layer_output'")
    refused(two, {"layers.0.mlp_output": "last"}, ValueError, r"'layers\.3\.mlp\.mlp_output'")
    refused(two, {"layers.9.layer_output": "last"}, IndexError, "this model has 2")
    refused(two, {"layers.0.layer_output": "first"}, ValueError, "'last', 'all' or 'mean'")
    refused(two, {"layers.0.layer_output": 3}, IndexError, "prompt 0 has 3 tokens")
    refused(two, {"layers.0.layer_output": 2.5}, TypeError, "not a float")
    refused(two, {"layers.0.layer_output": True}, TypeError, "not a bool")
    refused(two, {"layers.0.layer_output": [0, 5]}, IndexError, "prompt 1 has 5 tokens .*tion 5")
    refused(two, {"layers.0.layer_output": [-4, 0]}, IndexError, "prompt 0 has 3 tokens .*tion -4")
    refused(two, {"layers.0.layer_output": [0]}, ValueError, "1 positions for 2 prompts")
    refused(two, {"layers.0.layer_output": [True, False]}, ValueError, "mask of prompt 0")
    refused(two, {"layers.0.layer_output": [0.5, 1.0]}, ValueError, "mask of prompt 0")
    refused(two, {"layers.0.layer_output": [[True]]}, ValueError, "1 masks for 2 prompts")
    refused(two, {"layers.0.layer_output": [[True], [True]]}, ValueError, "mask of prompt 0")
    refused(
        two,
        {"layers.0.self_attn.attention_probabilities": "last"},
        ValueError,
        "takes a function",
    )
    refused(two, {"next_token_probs": "all"}, ValueError, "last position only")
    refused(two, {}, ValueError, "no value is asked for")
    refused([], {"logits": "last"}, ValueError, "no prompts")
    refused("a b", {"logits": "last"}, TypeError, r"\['a b'\]")
    refused([[]], {"logits": "last"}, ValueError, "prompt 0 holds no tokens")
    refused([["x"]], {"logits": "last"}, TypeError, "neither a text nor token ids")
    refused([[[1], [2]]], {"logits": "last"}, TypeError, "neither a text nor token ids")
    refused([1, 2], {"logits": "last"}, TypeError, r"write \[\[1, 2\]\]")
    refused({"ids": [1, 2]}, {"logits": "last"}, TypeError, "holds input_ids, and this ids")


def test_a_position_for_each_prompt(model: Any) -> None:
    name = "layers.1.layer_output"
    whole = model.collect(collects.PROMPTS, {name: "all"})[name]
    for positions in (
        [0, 7, -2],
        (0, 7, -2),
        torch.tensor([0, 7, -2]),
        np.array([0, 7, -2]),
        [torch.tensor(0), 7, np.int64(-2)],
    ):
        rows = model.collect(collects.PROMPTS, {name: positions}, batch_size=2)[name]
        expected = torch.stack([whole[0][0], whole[1][7], whole[2][-2]])
        assert rows.shape == expected.shape
        assert relative_error(rows, expected) < CLOSE
    last = model.collect(collects.PROMPTS, {"logits": [-1, 14, 8]})["logits"]
    assert torch.equal(last, model.collect(collects.PROMPTS, {"logits": "last"})["logits"])
    pair = model.collect(collects.PROMPTS, {"layers.0.self_attn.attention_queries": [5, 0, 3]})
    assert pair["layers.0.self_attn.attention_queries"].shape == (3, 4, 32)


def test_what_was_collected_is_kept_in_files(model: Any, tmp_path: Path) -> None:
    want = {"layers.*.layer_output": "last", "layers.0.mlp.mlp_output": "all", "logits": "last"}
    found = model.collect(collects.PROMPTS, want)
    torch.save(found, tmp_path / "found.pt")
    for again in (torch.load(tmp_path / "found.pt"), pickle.loads(pickle.dumps(found))):
        assert type(again) is nnterp.Collected
        assert type(again["layers.0.mlp.mlp_output"]) is nnterp.Ragged
        assert torch.equal(again["layers.0.mlp.mlp_output"][1], found["layers.0.mlp.mlp_output"][1])
        assert repr(again) == repr(found)
        for key, rows in collects.flat(found).items():
            assert torch.equal(collects.flat(again)[key], rows)
    save_file(found.tensors(), tmp_path / "found.safetensors")
    tensors = load_file(tmp_path / "found.safetensors")
    rows, offsets = (tensors[f"layers.0.mlp.mlp_output.{part}"] for part in ("rows", "offsets"))
    assert torch.equal(nnterp.Ragged(rows, offsets)[2], found["layers.0.mlp.mlp_output"][2])
    assert torch.equal(tensors["layers.1.layer_output"], found["layers.1.layer_output"])
    assert len(tensors) == 5


def test_a_file_of_what_was_collected_is_read_by_a_process_that_ran_no_model(
    model: Any, tmp_path: Path
) -> None:
    found = model.collect(collects.PROMPTS, {"layers.0.layer_output": "all"})
    torch.save(found, tmp_path / "found.pt")
    source = f"import nnterp, torch; print(torch.load({str(tmp_path / 'found.pt')!r}))"
    ended = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=False
    )
    assert ended.stdout.strip() == repr(found), ended.stderr


def adapted(folder: Path, seed: int, module: torch.nn.Module) -> dict[str, torch.Tensor]:
    """Write an adapter of each block's output projection; what it adds to their weights."""
    generator = torch.Generator().manual_seed(seed)
    tensors, added = {}, {}
    for index, block in enumerate(module.model.layers):
        made, taken = block.self_attn.o_proj.weight.shape
        name = f"model.layers.{index}.self_attn.o_proj"
        down, up = (
            torch.randn(shape, generator=generator) * 0.3 for shape in ((4, taken), (made, 4))
        )
        tensors[f"base_model.model.{name}.lora_A.weight"] = down
        tensors[f"base_model.model.{name}.lora_B.weight"] = up
        added[f"{name}.weight"] = up @ down * (8 / 4)
    folder.mkdir()
    save_file(tensors, folder / "adapter_model.safetensors")
    config = {
        "peft_type": "LORA",
        "r": 4,
        "lora_alpha": 8,
        "target_modules": ["o_proj"],
        "bias": "none",
        "task_type": "CAUSAL_LM",
    }
    (folder / "adapter_config.json").write_text(json.dumps(config))
    return added


def test_prompts_run_with_the_adapters_they_are_given(
    tiny_folder: Callable[[str], Path], keep: Callable[[Any], Any], tmp_path: Path
) -> None:
    """Held against transformers with the adapters' products added to the weights."""
    from vllm.lora.request import LoRARequest

    path, name = str(tiny_folder("llama")), "layers.1.layer_output"
    alone = AutoModelForCausalLM.from_pretrained(path)
    weights = dict(alone.named_parameters())
    added = [adapted(tmp_path / str(seed), seed, alone) for seed in (1, 2)]

    def last(prompt: list[int], change: dict[str, torch.Tensor]) -> torch.Tensor:
        kept: list[torch.Tensor] = []
        hook = alone.model.layers[1].register_forward_hook(
            lambda _, __, output: kept.append(output)
        )
        with torch.no_grad():
            for key, delta in change.items():
                weights[key] += delta
            alone(torch.tensor([prompt]))
            for key, delta in change.items():
                weights[key] -= delta
        hook.remove()
        return kept[0][0, -1]

    model = keep(
        StandardizedVLLM(
            path, dispatch=True, enable_lora=True, max_loras=2, max_lora_rank=8, **TINY_ENGINE
        )
    )
    one, two = (LoRARequest(str(seed), seed, str(tmp_path / str(seed))) for seed in (1, 2))
    plain: dict[str, torch.Tensor] = {}
    for requests, changes in (
        (None, [plain] * 3),
        (one, [added[0]] * 3),
        ([two, None, one], [added[1], plain, added[0]]),
    ):
        found = model.collect(collects.PROMPTS, {name: "last"}, lora_request=requests)[name]
        for row, prompt, change in zip(found, collects.PROMPTS, changes, strict=True):
            assert relative_error(row, last(prompt, change)) < CLOSE
    assert (
        relative_error(last(collects.PROMPTS[0], added[0]), last(collects.PROMPTS[0], plain)) > 0.1
    )
    with pytest.raises(ValueError, match="2 lora_requests for 3 prompts"):
        model.collect(collects.PROMPTS, {name: "last"}, lora_request=[one, two])


def test_an_adapter_that_cannot_be_had_says_how(
    engine: Callable[[str], Any], transformer: Any
) -> None:
    from vllm.exceptions import VLLMValidationError
    from vllm.lora.request import LoRARequest

    request = LoRARequest("nothing", 1, "nowhere")
    want = {"layers.0.layer_output": "last"}
    with pytest.raises(TypeError, match=r"peft='path/of/the/adapter'"):
        transformer.collect(collects.PROMPTS, want, lora_request=request)
    model = engine("llama")
    with pytest.raises(VLLMValidationError, match="LoRA is not enabled"):
        model.collect(collects.PROMPTS, want, lora_request=request)
    assert model.collect(collects.PROMPTS, want)["layers.0.layer_output"].any()


def test_logits_of_every_position_are_transformers_alone(
    engine: Callable[[str], Any], transformer: Any
) -> None:
    with pytest.raises(ValueError, match="logits is served for the last position only"):
        engine("llama").collect(["a b"], {"logits": "all"})
    with pytest.raises(ValueError, match="logits is served for the last position only"):
        engine("llama").collect(["a b", "c d e"], {"logits": [2, 3]})
    found = transformer.collect(["a b", "c d e"], {"logits": "all"})["logits"]
    assert [len(rows) for rows in found] == [3, 5]


def test_a_function_is_given_the_logits(model: Any) -> None:
    found = model.collect(
        collects.PROMPTS,
        {"logits": "last", "next_token_probs": lambda probabilities: probabilities[0].max()},
    )
    also = model.collect(collects.PROMPTS, {"logits": lambda logits: logits[0, -1]})
    assert torch.equal(also["logits"], found["logits"])
    probabilities = found["logits"].softmax(-1).amax(-1)
    assert relative_error(found["next_token_probs"], probabilities) < CLOSE


def test_a_function_that_fails_ends_its_collect_alone(engine: Callable[[str], Any]) -> None:
    model = engine("llama")

    def fail(value: torch.Tensor) -> torch.Tensor:
        raise KeyError("boom")

    def grow(value: torch.Tensor) -> torch.Tensor:
        return value[0]

    want = {"layers.0.layer_output": "last"}
    before = model.collect(collects.PROMPTS, want)
    for function, says in (
        (fail, "KeyError: 'boom'"),
        (grow, r"returned shape \(15, 64\) for prompt 1"),
        (lambda value: 3, "returned 3, not a tensor"),
    ):
        with pytest.raises(RuntimeError, match=says):
            model.collect(collects.PROMPTS, {"layers.0.layer_output": function})
    after = model.collect(collects.PROMPTS, want)
    assert torch.equal(before["layers.0.layer_output"], after["layers.0.layer_output"])
    assert model.vllm_entrypoint.collective_rpc("nnsight_request_count") == [0]


def test_a_function_cannot_reach_into_the_model(engine: Callable[[str], Any]) -> None:
    model = engine("llama")

    def spoil(value: torch.Tensor) -> torch.Tensor:
        value.mul_(100)
        return value[0, -1]

    want = {"layers.1.layer_output": "last"}
    expected = model.collect(collects.PROMPTS, want)["layers.1.layer_output"]
    found = model.collect(collects.PROMPTS, {"layers.0.layer_output": spoil, **want})
    assert torch.equal(found["layers.1.layer_output"], expected)


def test_an_installed_edit_is_collected_and_a_trace_beside_it_is_not(
    engine: Callable[[str], Any],
) -> None:
    model = engine("llama")
    want = {"layers.1.layer_output": "last"}
    plain = model.collect(collects.PROMPTS, want)["layers.1.layer_output"]
    with model.edit() as (_, edit):
        model.layers[0].layer_output[:] *= 2
    edited = model.collect(collects.PROMPTS, want)["layers.1.layer_output"]
    edit.clear()
    assert relative_error(edited, plain) > 0.1
    assert torch.equal(model.collect(collects.PROMPTS, want)["layers.1.layer_output"], plain)


@pytest.fixture(scope="module")
def chunked(tiny_folder: Callable[[str], Path], keep: Callable[[Any], Any]) -> Any:
    """An engine that splits every prompt of more than eight tokens over steps."""
    return keep(
        StandardizedVLLM(
            str(tiny_folder("llama")),
            dispatch=True,
            enable_chunked_prefill=True,
            max_num_batched_tokens=8,
            max_num_seqs=2,
            **TINY_ENGINE,
        )
    )


def test_a_prompt_split_over_steps_is_collected_whole(
    chunked: Any, reference: Callable[[str], dict[str, Any]]
) -> None:
    pattern = "layers.1.self_attn.attention_probabilities"
    wanted = {k: how for k, how in collects.wanted(chunked).items() if k != pattern}
    assert callable(wanted["layers.1.mlp.mlp_output"])
    found = collects.flat(chunked.collect(collects.PROMPTS, wanted))
    expected = reference("llama")["collected"]
    for key, rows in found.items():
        assert relative_error(rows, expected[key]) < CLOSE, key
    with pytest.raises(RuntimeError, match="without enable_chunked_prefill"):
        chunked.collect(collects.PROMPTS, {pattern: collects.last_row})


def test_a_lazy_model_is_loaded_by_its_first_collect(tiny_folder: Callable[[str], Path]) -> None:
    model = StandardizedTransformer(str(tiny_folder("llama")))
    assert model.collect(["a b"], {"layers.0.layer_output": "last"})["layers.0.layer_output"].any()


def test_a_value_that_no_checkpoint_has_is_unavailable(tiny_folder: Callable[[str], Path]) -> None:
    model = StandardizedTransformer(
        str(tiny_folder("llama")), dispatch=True, attn_implementation="sdpa"
    )
    with pytest.raises(Unavailable, match="eager"):
        model.collect(
            ["a"], {"layers.0.self_attn.attention_scores": lambda scores: scores[0, 0, 0]}
        )
