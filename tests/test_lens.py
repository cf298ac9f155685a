"""`nnterp.interventions.lens`, against transformers' own modules called on its hidden states."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import checkpoints
from nnterp import Replace, StandardizedTransformer
from nnterp.interventions import (
    TargetPrompt,
    lens,
    logit_lens,
    patchscope_lens,
    repeat_prompt,
)
from nnterp.tools.checking.compare import relative_error

CLOSE = 2e-5
PROMPTS = [
    checkpoints.PROMPT[start : start + length] for start, length in [(0, 6), (2, 15), (5, 9)]
]
NORMS = {"gpt2": "transformer.ln_f", "gpt_neox": "gpt_neox.final_layer_norm"}
HEADS = {"gpt_neox": "embed_out"}
BLOCKS = {"gpt2": "transformer.h", "gpt_neox": "gpt_neox.layers"}
NAMES = ("llama", "gpt2", "gpt_neox", "gemma2", "granite")


class Plain:
    """A tiny checkpoint on transformers alone."""

    def __init__(self, name: str, path: Path) -> None:
        load = AutoModelForCausalLM.from_pretrained
        self.model = load(path, dtype=torch.float32, attn_implementation="eager").eval()
        self.norm = self.model.get_submodule(NORMS.get(name, "model.norm"))
        self.head = self.model.get_output_embeddings()
        self.blocks = self.model.get_submodule(BLOCKS.get(name, "model.layers"))

    def lens(self, prompt: list[int]) -> Tensor:
        """The probabilities after every block, ``[layers, positions, vocab]``."""
        streams: list[Tensor] = []

        def keep(module: Any, given: Any, out: Any) -> None:
            streams.append((out[0] if isinstance(out, tuple) else out).reshape(len(prompt), -1))

        handles = [block.register_forward_hook(keep) for block in self.blocks]
        with torch.no_grad():
            self.model(torch.tensor([prompt]))
            for handle in handles:
                handle.remove()
            logits = self.head(self.norm(torch.stack(streams)))
        cap = getattr(self.model.config, "final_logit_softcapping", None)
        if cap:
            logits = torch.tanh(logits / cap) * cap
        return (logits / getattr(self.model.config, "logits_scaling", 1.0)).softmax(-1)

    def patched(self, prompt: list[int], block: int, position: int, row: Tensor) -> Tensor:
        """The last position's probabilities with ``row`` put after a block, ``[vocab]``."""

        def put(module: Any, given: Any, out: Any) -> None:
            (out[0] if isinstance(out, tuple) else out).view(len(prompt), -1)[position] = row

        handle = self.blocks[block].register_forward_hook(put)
        try:
            with torch.no_grad():
                return self.model(torch.tensor([prompt])).logits[0, -1].softmax(-1)
        finally:
            handle.remove()


@pytest.fixture(scope="module")
def plain(tiny_folder: Callable[[str], Path]) -> Callable[[str], Plain]:
    return lambda name: Plain(name, tiny_folder(name))


@pytest.fixture(
    scope="module", params=[(n, e) for n in NAMES for e in ("vllm", "transformers")], ids="-".join
)
def model(
    request: pytest.FixtureRequest,
    engine: Callable[[str], Any],
    tiny_folder: Callable[[str], Path],
) -> Any:
    name, kind = request.param
    if kind == "vllm":
        return name, engine(name)
    path = str(tiny_folder(name))
    return name, StandardizedTransformer(path, dispatch=True, attn_implementation="eager")


def test_the_lens_is_the_models_own_readout(model: Any, plain: Callable[[str], Plain]) -> None:
    name, own = model
    expected = [plain(name).lens(prompt) for prompt in PROMPTS]
    last = logit_lens(own, PROMPTS)
    assert last.probabilities.shape == (3, own.num_layers, own.vocab_size)
    every = logit_lens(own, PROMPTS, "all")
    some = logit_lens(own, PROMPTS, [[0, -1], [3], [2, 4, 5]], layers=[-1, 0], tokens=[7, 91])
    best = logit_lens(own, PROMPTS, "all", top=3)
    chosen = [[0, -1], [3], [2, 4, 5]]
    for index, want in enumerate(expected):
        assert relative_error(last.probabilities[index], want[:, -1]) < CLOSE
        assert relative_error(every.probabilities[index], want) < CLOSE
        part = want[[-1, 0]][:, chosen[index]][..., [7, 91]]
        assert relative_error(some.probabilities[index], part) < CLOSE
        assert relative_error(best.probabilities[index], want.topk(3).values) < CLOSE
        assert relative_error(want.gather(-1, best.tokens[index]), want.topk(3).values) < CLOSE
        length = len(PROMPTS[index])
        assert every.positions[index] == list(range(length))
        assert some.positions[index] == [at % length for at in chosen[index]]
    assert some.layers == [own.num_layers - 1, 0]
    logits = own.collect(PROMPTS, {"logits": "last"})["logits"]
    assert relative_error(last.probabilities[:, -1], logits.softmax(-1)) < 1e-6
    top = last.top(2)
    assert torch.equal(top.ids, last.probabilities.topk(2).indices)
    assert top.texts[1][0][1] == own.tokenizer.decode(top.ids[1, 0, 1])
    assert [ids.shape for ids in every.top(4).ids] == [(own.num_layers, n, 4) for n in (6, 15, 9)]


def test_a_lens_is_of_the_edited_forward_and_of_means(either: Any) -> None:
    row = torch.linspace(-1, 1, 64)
    edits = [Replace("layers.0.layer_output", row, positions="last")]
    found = logit_lens(either, PROMPTS, edits=edits).probabilities
    assert relative_error(found[0, 0], found[1, 0]) < CLOSE
    logits = either.collect(PROMPTS, {"logits": "last"}, edits=edits)["logits"]
    assert relative_error(found[:, -1], logits.softmax(-1)) < CLOSE
    mean = logit_lens(either, PROMPTS, "mean")
    assert mean.probabilities.shape == (3, 2, 256)
    assert mean.positions == [[], [], []]


def test_a_lens_in_parts_is_the_same(either: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = logit_lens(either, PROMPTS, "all", top=3)
    monkeypatch.setattr(lens, "_AT_ONCE", 4 * either.vocab_size)
    parts = logit_lens(either, PROMPTS, "all", top=3)
    for index in range(len(PROMPTS)):
        assert relative_error(parts.probabilities[index], whole.probabilities[index]) < CLOSE
        assert torch.equal(parts.tokens[index], whole.tokens[index])


def test_what_is_wrong_with_a_lens_is_said(either: Any) -> None:
    with pytest.raises(IndexError, match="no block 9"):
        logit_lens(either, PROMPTS, layers=9)
    with pytest.raises(IndexError, match="no token 256"):
        logit_lens(either, PROMPTS, tokens=[256])
    with pytest.raises(ValueError, match="where one is meant"):
        logit_lens(either, PROMPTS, tokens=["ab"])
    with pytest.raises(ValueError, match="not both"):
        logit_lens(either, PROMPTS, tokens=[1], top=1)
    with pytest.raises(ValueError, match="k is 1 to 2"):
        logit_lens(either, PROMPTS, tokens=[1, 2]).top(3)


def test_a_patchscope_is_a_loop_of_patched_forwards(
    model: Any, plain: Callable[[str], Plain]
) -> None:
    name, own = model
    reference = plain(name)
    target = TargetPrompt(checkpoints.PROMPT[7:14], -3)
    found = own.collect(PROMPTS, {"layers.*.layer_output": -2})
    for layer in (None, 0):
        seen = patchscope_lens(own, PROMPTS, target, positions=-2, target_layer=layer)
        for index in range(len(PROMPTS)):
            for block in range(own.num_layers):
                row = found[f"layers.{block}.layer_output"][index]
                at = block if layer is None else layer
                want = reference.patched(list(target.prompt), at, -3, row)
                assert relative_error(seen.probabilities[index, block], want) < CLOSE


def test_latents_may_be_given_and_texts_generated(either: Any) -> None:
    targets = [TargetPrompt(checkpoints.PROMPT[:5], 2), TargetPrompt(checkpoints.PROMPT[3:11], -1)]
    latents = either.collect(PROMPTS[:2], {"layers.1.layer_output": "last"})
    given = latents["layers.1.layer_output"][None]
    one = patchscope_lens(either, target_prompts=targets, layers=1, latents=given, max_tokens=3)
    other = patchscope_lens(either, PROMPTS[:2], targets, 1)
    assert relative_error(one.probabilities, other.probabilities) < CLOSE
    assert [len(texts) for texts in one.texts] == [1, 1]
    with pytest.raises(ValueError, match="one of them"):
        patchscope_lens(either)
    with pytest.raises(ValueError, match="2 target prompts for 3 latents"):
        patchscope_lens(either, PROMPTS, targets)


def test_the_repeating_prompt_ends_with_its_placeholder() -> None:
    made = repeat_prompt(["a", "b"], rel="=", sep=";", placeholder="x")
    assert made == TargetPrompt("a=a;b=b;x", -1)
    assert repeat_prompt().prompt.endswith("\n?")
