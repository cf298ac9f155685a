"""`logit_attribution`, against transformers' weights and what hooks see of its forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM

import checkpoints
from nnterp import StandardizedTransformer
from nnterp.errors import Unavailable
from nnterp.interventions import attribution, logit_attribution
from nnterp.interventions.frozen_norm import FrozenNorm, probes
from nnterp.interventions.head_shares import head_shares
from nnterp.tools.checking.compare import relative_error

CLOSE = 2e-5
PROMPTS = [
    checkpoints.PROMPT[start : start + length] for start, length in [(0, 6), (2, 15), (5, 9)]
]
TOKENS = [[33, 190], [7, 91], [5, 200]]


class Parts(NamedTuple):
    """Where a family keeps its parts: a block's from the block, the others from the model."""

    blocks: str
    attention: str
    mlp: str
    projection: str
    norm: str
    post_norm: str = ""


#: Without biases, with LayerNorms and biases, with parallel halves, with a bias of the output
#: projection, with a scale of the logits, and with norms after each half and a soft cap.
PARTS = {
    "llama": Parts("model.layers", "self_attn", "mlp", "self_attn.o_proj", "model.norm"),
    "gpt2": Parts("transformer.h", "attn", "mlp", "attn.c_proj", "transformer.ln_f"),
    "gpt_neox": Parts(
        "gpt_neox.layers", "attention", "mlp", "attention.dense", "gpt_neox.final_layer_norm"
    ),
    "phi": Parts("model.layers", "self_attn", "mlp", "self_attn.dense", "model.final_layernorm"),
    "cohere": Parts("model.layers", "self_attn", "mlp", "self_attn.o_proj", "model.norm"),
    "gemma2": Parts(
        "model.layers",
        "post_attention_layernorm",
        "post_feedforward_layernorm",
        "self_attn.o_proj",
        "model.norm",
        "post_attention_layernorm",
    ),
}


class Plain:
    """A tiny checkpoint on transformers alone, and the shares that its weights give."""

    def __init__(self, name: str, path: Path) -> None:
        load = AutoModelForCausalLM.from_pretrained
        self.name, self.parts = name, PARTS[name]
        self.model = load(path, dtype=torch.float32, attn_implementation="eager").eval()
        self.blocks = self.model.get_submodule(self.parts.blocks)
        self.head = self.model.get_output_embeddings()
        self.scale = getattr(self.model.config, "logit_scale", 1.0)

    def rows(self, prompt: list[int]) -> dict[str, list[Tensor]]:
        """What enters and leaves modules at the last position, block by block."""
        seen: dict[str, list[Tensor]] = {
            name: [] for name in ("attention", "mlp", "projection", "entering", "leaving", "post")
        }

        def keep(name: str, before: bool = False) -> Callable[..., None]:
            def see(module: Any, given: Any, out: Any = None) -> None:
                tensor = given if before else out
                tensor = tensor[0] if isinstance(tensor, tuple) else tensor
                seen[name].append(tensor.reshape(len(prompt), -1)[-1].clone())

            return see

        handles = []
        for block in self.blocks:
            handles += [
                block.register_forward_pre_hook(keep("entering", before=True)),
                block.register_forward_hook(keep("leaving")),
                block.get_submodule(self.parts.attention).register_forward_hook(keep("attention")),
                block.get_submodule(self.parts.mlp).register_forward_hook(keep("mlp")),
                block.get_submodule(self.parts.projection).register_forward_pre_hook(
                    keep("projection", before=True)
                ),
            ]
            if self.parts.post_norm:
                norm = block.get_submodule(self.parts.post_norm)
                handles.append(norm.register_forward_pre_hook(keep("post", before=True)))
        with torch.no_grad():
            self.model(torch.tensor([prompt]))
        for handle in handles:
            handle.remove()
        return seen

    def direct(self, stream: Tensor, part: Tensor, right: int, wrong: int) -> float:
        """The share of ``part`` of ``stream`` in the logit difference."""
        norm = self.model.get_submodule(self.parts.norm)
        weight = self.head.weight[right] - self.head.weight[wrong]
        gain = self.gain(norm)
        if self.centres(norm):
            scale = (stream.var(unbiased=False) + self.epsilon(norm)).rsqrt()
            part = part - part.mean()
        else:
            scale = (stream.square().mean() + self.epsilon(norm)).rsqrt()
        return float(weight @ (part * scale * gain)) * self.scale

    def bias(self, right: int, wrong: int) -> float:
        norm = self.model.get_submodule(self.parts.norm)
        found = 0.0
        if getattr(norm, "bias", None) is not None:
            found += float((self.head.weight[right] - self.head.weight[wrong]) @ norm.bias)
        if self.head.bias is not None:
            found += float(self.head.bias[right] - self.head.bias[wrong])
        return found * self.scale

    def gain(self, norm: nn.Module) -> Tensor:
        return norm.weight + (1.0 if self.name == "gemma2" else 0.0)

    def centres(self, norm: nn.Module) -> bool:
        return "LayerNorm" in type(norm).__name__

    def epsilon(self, norm: Any) -> float:
        for name in ("eps", "variance_epsilon"):
            if hasattr(norm, name):
                return getattr(norm, name)
        raise AssertionError(f"{type(norm).__name__} has no epsilon")

    def heads(self, seen: dict[str, list[Tensor]], block: int, count: int) -> list[Tensor]:
        """What each head adds to the stream."""
        module = self.blocks[block].get_submodule(self.parts.projection)
        weight = module.weight.T if isinstance(module, nn.Linear) else module.weight
        entering = seen["projection"][block]
        width = len(entering) // count
        added = [
            entering[own] @ weight[own]
            for own in (slice(head * width, (head + 1) * width) for head in range(count))
        ]
        if not self.parts.post_norm:
            return added
        norm = self.blocks[block].get_submodule(self.parts.post_norm)
        whole = seen["post"][block]
        scale = (whole.square().mean() + self.epsilon(norm)).rsqrt()
        return [one * scale * self.gain(norm) for one in added]


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


@torch.no_grad()
def test_shares_are_those_that_the_weights_give(both: tuple[Any, Plain]) -> None:
    model, plain = both
    found = logit_attribution(model, PROMPTS, TOKENS, heads=True)
    assert found.heads is not None
    for index, (prompt, pair) in enumerate(zip(PROMPTS, TOKENS, strict=True)):
        seen = plain.rows(prompt)
        stream = seen["leaving"][-1]

        def shares(parts: list[Tensor], stream: Tensor = stream, pair: Any = pair) -> Tensor:
            return torch.tensor([plain.direct(stream, part, *pair) for part in parts])

        scale = found.logits[index].abs()
        pairs = [
            (found.embedding[index, None], shares(seen["entering"][:1])),
            (found.attention[index], shares(seen["attention"])),
            (found.mlp[index], shares(seen["mlp"])),
            (found.bias[index, None], torch.tensor([plain.bias(*pair)])),
            *(
                (found.heads[index, block], shares(plain.heads(seen, block, model.num_heads)))
                for block in range(2)
            ),
        ]
        for got, want in pairs:
            assert (got - want).abs().max() < CLOSE * max(scale, want.abs().max())
        logits = plain.model(torch.tensor([prompt])).logits[0, -1, pair]
        cap = getattr(plain.model.config, "final_logit_softcapping", None)
        if cap:
            logits = plain.head(plain.model.get_submodule(plain.parts.norm)(stream))[pair]
        assert relative_error(found.logits[index], logits[0] - logits[1]) < CLOSE
    total = found.embedding + found.attention.sum(1) + found.mlp.sum(1) + found.bias
    assert (total - found.logits).abs().max() < CLOSE * found.logits.abs().max()
    assert found.prompts == PROMPTS
    assert found.tokens.tolist() == TOKENS


def test_one_token_has_shares_of_its_own_logit(both: tuple[Any, Plain]) -> None:
    model, _ = both
    difference = logit_attribution(model, PROMPTS, [33, 190])
    one = logit_attribution(model, PROMPTS, [33])
    other = logit_attribution(model, PROMPTS, torch.tensor([190]))
    for name in ("logits", "embedding", "attention", "mlp", "bias"):
        apart = getattr(one, name) - getattr(other, name)
        assert (apart - getattr(difference, name)).abs().max() < CLOSE * 10
    cap = getattr(model._config, "final_logit_softcapping", None)
    capped = cap * torch.tanh(one.logits / cap) if cap else one.logits
    logits = model.collect(PROMPTS, {"logits": "last"})["logits"]
    assert relative_error(capped, logits[:, 33]) < CLOSE
    assert one.heads is None


def test_blocks_without_a_part_have_no_share(tiny_folder: Callable[[str], Path]) -> None:
    model = StandardizedTransformer(
        str(tiny_folder("nemotron_h")), dispatch=True, attn_implementation="eager"
    )
    found = logit_attribution(model, PROMPTS, [33, 190], heads=True)
    assert found.heads is not None
    served = model.support()
    mixing = served["attention_output"].blocks
    feeding = served["mlp_output"].blocks
    assert 0 < len(mixing) < model.num_layers
    for index in range(model.num_layers):
        assert found.attention[:, index].any() == (index in mixing)
        assert found.mlp[:, index].any() == (index in feeding)
        assert found.heads[:, index].any() == (index in served["attention_head_outputs"].blocks)
    total = found.embedding + found.attention.sum(1) + found.mlp.sum(1) + found.bias
    assert (total - found.logits).abs().max() < CLOSE * found.logits.abs().max()


def test_logits_in_parts_are_the_same(either: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = logit_attribution(either, PROMPTS, TOKENS, heads=True)
    monkeypatch.setattr(attribution, "_AT_ONCE", 4 * either.vocab_size)
    parts = logit_attribution(either, PROMPTS, TOKENS, heads=True, batch_size=2)
    assert relative_error(parts.attention, whole.attention) < CLOSE
    assert whole.heads is not None
    assert parts.heads is not None
    assert relative_error(parts.heads, whole.heads) < CLOSE


@pytest.mark.parametrize("hidden", [7, 64])
@pytest.mark.parametrize("kind", ["layer", "rms", "none"])
def test_a_frozen_norm_is_linear_and_exact(hidden: int, kind: str) -> None:
    torch.manual_seed(0)
    norm: nn.Module = nn.Identity()
    if kind == "layer":
        norm = nn.LayerNorm(hidden)
        nn.init.normal_(norm.bias)
        nn.init.normal_(norm.weight)
    elif kind == "rms":
        norm = nn.RMSNorm(hidden, eps=0.1)
        nn.init.normal_(norm.weight)
    norm = norm.double()
    rows = torch.randn(4, hidden, dtype=torch.double)
    parts = torch.randn(3, 4, hidden, dtype=torch.double)
    parts[-1] += rows - parts.sum(0)
    with torch.no_grad():
        whole = norm(rows)
        frozen = FrozenNorm.at(rows, whole, norm(probes(hidden).double()), 1e-6)
    spread = {
        "layer": rows.var(-1, unbiased=False).add(1e-5).rsqrt(),
        "rms": rows.square().mean(-1).add(0.1).rsqrt(),
        "none": torch.ones(4),
    }[kind]
    centred = parts - parts.mean(-1, keepdim=True) if kind == "layer" else parts
    want = centred * spread[:, None].double() * getattr(norm, "weight", torch.ones(hidden))
    assert relative_error(frozen.of(parts), want.detach()) < 1e-6
    assert relative_error(frozen.of(parts).sum(0) + frozen.bias, whole) < 1e-6
    assert frozen.centred == (kind == "layer")


def test_what_is_no_norm_is_refused() -> None:
    rows = torch.randn(4, 8).double()
    with pytest.raises(Unavailable, match="no norm with a gain"):
        FrozenNorm.at(rows, rows.tanh(), probes(8).double().tanh(), 1e-4)


def test_what_has_no_shares_is_refused(tiny_folder: Callable[[str], Path]) -> None:
    for name, said in [
        ("openai_gpt", "is_residual_sum"),
        ("modernbert_decoder", "no norm with a gain"),
    ]:
        model = StandardizedTransformer(str(tiny_folder(name)), dispatch=True)
        with pytest.raises(Unavailable, match=said):
            logit_attribution(model, PROMPTS, [33])
    recurrent = StandardizedTransformer(str(tiny_folder("mamba")), dispatch=True)
    with pytest.raises(Unavailable, match="no block serves attention_head_outputs"):
        logit_attribution(recurrent, PROMPTS, [33], heads=True)
    biased = StandardizedTransformer(
        str(tiny_folder("afmoe_other_attention_bias")), dispatch=True, attn_implementation="eager"
    )
    with pytest.raises(Unavailable, match="nor one that a norm without biases"):
        logit_attribution(biased, PROMPTS, [33], heads=True)
    assert logit_attribution(biased, PROMPTS, [33]).heads is None


def test_a_stream_that_is_changed_between_blocks_is_refused(
    tiny_folder: Callable[[str], Path],
) -> None:
    model = StandardizedTransformer(str(tiny_folder("llama")), dispatch=True)
    between = model._module.model.layers[1]
    handle = between.register_forward_pre_hook(lambda module, given: (given[0] * 1.5, *given[1:]))
    with pytest.raises(Unavailable, match="does not sum to the stream"):
        logit_attribution(model, PROMPTS, [33])
    handle.remove()
    assert logit_attribution(model, PROMPTS, [33]).logits.shape == (3,)


def test_attention_that_is_no_sum_over_heads_is_refused(transformer: Any) -> None:
    found = transformer.collect(
        PROMPTS, {"layers.0.self_attn.attention_output": -1, "layers.0.layer_output": -1}
    )
    row = found["layers.0.self_attn.attention_output"]
    with pytest.raises(Unavailable, match="no sum over its heads"):
        head_shares(
            transformer, PROMPTS, {0: row.flip(-1)}, {0: found["layers.0.layer_output"]}, 1e-4, None
        )


def test_heads_that_a_norm_cannot_tell_apart_are_refused(
    tiny_folder: Callable[[str], Path],
) -> None:
    model = StandardizedTransformer(str(tiny_folder("gemma2")), dispatch=True)
    projection = model._module.model.layers[1].self_attn.o_proj
    with torch.no_grad():
        projection.weight.copy_(projection.weight[:, :1] * projection.weight[:1])
    with pytest.raises(Unavailable, match="block 1 norms .* add the same direction"):
        logit_attribution(model, PROMPTS, [33], heads=True)


def test_the_readout_of_a_block_comes_in_parts(either: Any) -> None:
    with torch.no_grad(), either.trace(PROMPTS[0]):
        stream = either.layers[-1].layer_output
        normed = either.apply_final_norm(stream)
        together = either.unembed(normed).save()
        whole = either.project_on_vocab(stream).save()
    assert relative_error(together, whole) < CLOSE


def test_the_weights_of_an_engine_are_in_it(engine: Callable[[str], Any]) -> None:
    for method in ("unembed", "apply_final_norm", "project_on_vocab"):
        with pytest.raises(ValueError, match=f"^{method} needs the weights"):
            getattr(engine("llama"), method)(torch.zeros(1, 64))


def test_what_is_wrong_with_tokens_is_said(either: Any) -> None:
    for tokens, kind, said in [
        ([1, 2, 3], ValueError, "tokens are one, or the right and the wrong one"),
        ([[1], [2, 3], [4]], ValueError, "for every prompt as many"),
        ([[1], [2]], ValueError, "tokens for 2 prompts"),
        ([256], IndexError, "no token 256"),
        (["ab"], ValueError, "where one is meant"),
        ("a", TypeError, "tokens are a list"),
    ]:
        with pytest.raises(kind, match=said):
            logit_attribution(either, PROMPTS, tokens)
