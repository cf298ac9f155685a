"""Requests with LoRA adapters of their own, in one batch, against adapters merged into weights.

vLLM's CPU build has no adapters for mixtures of experts, so those are a GPU's to show.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import nnsight
import pytest
import torch

import checkpoints
import loras
from conftest import TINY_ENGINE
from nnterp import KnownWrongWarning, StandardizedTransformer, StandardizedVLLM
from nnterp.tools.checking import readings
from nnterp.tools.checking.compare import relative_error

CLOSE = 1e-5

#: What each checkpoint's adapters are of; one has a head, of one the embedding is the head.
NAMES = {
    "llama": ("q_proj", "v_proj", "o_proj", "down_proj", "lm_head"),
    "cohere": ("q_proj", "o_proj", "down_proj"),
}

PROMPTS = (checkpoints.PROMPT, checkpoints.PROMPT[:7], checkpoints.PROMPT[3:], [9, 4, 201])

#: The adapter of each prompt's request.
ADAPTERS = (0, 1, 0, 1)

#: For a module called by itself; more rows than any request has.
GIVEN = torch.randn(30, 128, generator=torch.Generator().manual_seed(0))


def merged(path: Path, adapter: Path) -> StandardizedTransformer:
    """The checkpoint on transformers with ``adapter`` in its weights."""
    model = StandardizedTransformer(
        str(path), dispatch=True, dtype=torch.float32, attn_implementation="eager"
    )
    loras.merge(model._module, adapter)
    return model


def rows_for(model: StandardizedTransformer) -> torch.Tensor:
    """`GIVEN`, as wide as an output projection takes it."""
    return GIVEN[:, : model.layers[1].self_attn.o_proj._module.in_features]


class Adapted(NamedTuple):
    """An engine, its two adapters, and transformers with each of them."""

    engine: StandardizedVLLM
    loaded: list[Any]
    models: list[StandardizedTransformer]


@pytest.fixture(scope="module", params=NAMES)
def adapted(
    request: pytest.FixtureRequest,
    tiny_folder: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    keep: Callable[[Any], Any],
) -> Adapted:
    from vllm.lora.request import LoRARequest

    path, folder = tiny_folder(request.param), tmp_path_factory.mktemp("adapters")
    written = [loras.write(path, folder / str(s), s, NAMES[request.param]) for s in (1, 2)]
    loaded = [LoRARequest(str(n), n, str(adapter)) for n, adapter in enumerate(written, 1)]
    models = [merged(path, adapter) for adapter in written]
    arguments = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8, **TINY_ENGINE}
    with pytest.warns(KnownWrongWarning, match="request without an adapter that shares a step"):
        engine = keep(StandardizedVLLM(str(path), dispatch=True, **arguments))
    for adapter in loaded:
        # One at a time, for vLLM gives those of one step their slots in the order of a set.
        with engine.trace(PROMPTS[0], lora_request=adapter, temperature=0.0, max_tokens=1):
            pass
    return Adapted(engine, loaded, models)


@pytest.fixture(scope="module")
def pairs(adapted: Adapted) -> list[tuple[dict[str, Any], StandardizedTransformer, list[int]]]:
    """What each request was served, transformers with its adapter, and its prompt."""
    engine, loaded, models = adapted
    places = readings.served(engine)
    given = rows_for(models[0])
    with engine.trace(temperature=0.0, max_tokens=1) as tracer:
        found = nnsight.save([None] * len(PROMPTS))
        for row, (prompt, adapter) in enumerate(zip(PROMPTS, ADAPTERS, strict=True)):
            with tracer.invoke(prompt, lora_request=loaded[adapter]):
                seen = {}
                for index, value in places:
                    host = engine.host_of(value, index)
                    seen[f"{index}.{value.name}"] = getattr(host, value.name)
                projected = engine.project_on_vocab(seen["1.layer_output"])
                normed = engine.apply_final_norm(seen["1.layer_output"])
                halves = engine.unembed(normed)
                called = engine.layers[1].self_attn.o_proj(given)
                seen["logits"] = engine.logits
                found[row] = {
                    "values": seen,
                    "projected": projected,
                    "in halves": halves,
                    "called": called[0],
                }
    used = [models[adapter] for adapter in ADAPTERS]
    return list(zip(found, used, map(list, PROMPTS), strict=True))


Pairs = list[tuple[dict[str, Any], StandardizedTransformer, list[int]]]


def test_every_request_is_served_the_values_of_its_own_adapter(pairs: Pairs) -> None:
    for found, model, prompt in pairs:
        expected = readings.values(model, prompt)
        gaps = {key: relative_error(own, expected[key]) for key, own in found["values"].items()}
        assert {key: size for key, size in gaps.items() if not size < CLOSE} == {}


def test_all_positions_of_several_requests_are_projected_with_their_adapters(pairs: Pairs) -> None:
    for found, model, prompt in pairs:
        with torch.no_grad():
            expected = model._module(torch.tensor([prompt])).logits
        assert relative_error(found["projected"], expected) < CLOSE
        assert relative_error(found["in halves"], expected) < CLOSE


def test_a_module_called_on_rows_of_a_blocks_own_applies_the_requests_adapter(pairs: Pairs) -> None:
    for found, model, _ in pairs:
        with torch.no_grad():
            expected = model.layers[1].self_attn.o_proj._module(rows_for(model))
        assert relative_error(found["called"], expected) < CLOSE
    (first, *_), (second, *_) = pairs[:2]
    assert relative_error(first["called"], second["called"]) > 0.1


def test_a_request_without_one_beside_others_has_the_last_ones_on_a_cpu(adapted: Adapted) -> None:
    """As the warning at the load says; one that shares its step with none has none."""
    engine, loaded, models = adapted
    logits = []
    for beside in ((), loaded):
        with engine.trace(temperature=0.0, max_tokens=1) as tracer:
            with tracer.invoke(PROMPTS[0]):
                own = engine.logits[0, -1].save()
            for adapter in beside:
                with tracer.invoke(PROMPTS[1], lora_request=adapter):
                    pass
        logits.append(own)
    alone, beside_others = logits
    with torch.no_grad():
        last = models[-1]._module(torch.tensor([list(PROMPTS[0])])).logits[0, -1]
    assert relative_error(beside_others, last) < CLOSE
    assert relative_error(alone, last) > 0.1
