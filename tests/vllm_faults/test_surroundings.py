"""What a block does to the objects around it: on vLLM as on transformers, in the caller's process.

Every case is run on both engines, and what it gives back has to be the same.
"""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import nnsight
import numpy as np
import pytest
import torch

import checkpoints
from nnterp import StandardizedTransformer
from nnterp.tools.checking.compare import relative_error

PROMPTS = [checkpoints.PROMPT, checkpoints.PROMPT[::-1]]
ONE_STEP = {"temperature": 0.0, "max_tokens": 1}

CASES: dict[str, Callable[[Any, Any], Any]] = {}

SEEN: list[Any] = []


@dataclass(eq=False)
class Recorder:
    """An object that keeps what it is handed."""

    rows: list[Any] = field(default_factory=list)
    last: Any = None

    def record(self, value: Any) -> None:
        self.rows.append(value)
        self.last = value


def case(run: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    CASES[run.__name__] = run
    return run


@case
def a_plain_list(model: Any, trace: Any) -> Any:
    kept: list[Any] = []
    with trace(PROMPTS[0]):
        for layer in model.layers:
            kept.append(layer.layer_output)
    return kept


@case
def values_saved_into_a_plain_list(model: Any, trace: Any) -> Any:
    kept: list[Any] = []
    with trace(PROMPTS[0]):
        for layer in model.layers:
            kept.append(layer.layer_output.save())
    return kept


@case
def a_list_made_of_saved_values(model: Any, trace: Any) -> Any:
    with trace(PROMPTS[0]):
        kept = [layer.layer_output.save() for layer in model.layers]
        by_name = {"deep": [(model.logits.save(),)]}
    return [kept, by_name["deep"][0][0].shape[-1]]


@case
def a_plain_dict_in_a_dict(model: Any, trace: Any) -> Any:
    kept: dict[str, Any] = {"streams": {}, "gone": 1}
    with trace(PROMPTS[0]):
        kept["streams"][0] = model.layers[0].layer_output
        kept["streams"][1] = [model.layers[1].layer_output]
        del kept["gone"]
    return kept


@case
def a_set(model: Any, trace: Any) -> Any:
    kept = {1, 2}
    with trace(PROMPTS[0]):
        kept.add(model.layers[0].layer_output.shape[1])
        kept.discard(2)
    return sorted(kept)


@case
def other_containers(model: Any, trace: Any) -> Any:
    queue: deque[Any] = deque([0])
    counted: Counter[str] = Counter(a=1)
    grouped: defaultdict[str, list[Any]] = defaultdict(list)
    ordered: OrderedDict[str, Any] = OrderedDict(b=1)
    with trace(PROMPTS[0]):
        stream = model.layers[0].layer_output
        queue.append(stream)
        counted["a"] += 2
        grouped["x"].append(stream)
        ordered["c"] = stream
    return [list(queue), dict(counted), dict(grouped), dict(ordered)]


@case
def a_tensor_filled(model: Any, trace: Any) -> Any:
    kept = torch.zeros(2, 20, 64)
    kept[1, 0, 0] = float("nan")
    with trace(PROMPTS[0]):
        kept[0] = model.layers[0].layer_output[0]
    return [kept[0], kept[1, 1:]]


@case
def a_view_of_a_tensor_filled(model: Any, trace: Any) -> Any:
    whole = torch.zeros(3, 64)
    row = whole[1]
    with trace(PROMPTS[0]):
        row.copy_(model.layers[0].layer_output[0, -1])
    return whole


@case
def an_array_filled(model: Any, trace: Any) -> Any:
    kept = np.zeros((2, 64), dtype="float32")
    with trace(PROMPTS[0]):
        kept[1] = model.layers[0].layer_output[0, -1].numpy()
    return torch.from_numpy(kept)


@case
def attributes_of_an_object(model: Any, trace: Any) -> Any:
    kept = SimpleNamespace(inner=SimpleNamespace(n=0), gone=1)
    with trace(PROMPTS[0]):
        kept.stream = model.layers[0].layer_output
        kept.inner.n += 3
        del kept.gone
    return [kept.stream, kept.inner.n, hasattr(kept, "gone")]


@case
def a_method_of_an_object(model: Any, trace: Any) -> Any:
    kept = Recorder()
    record = kept.record
    with trace(PROMPTS[0]):
        kept.record(model.layers[0].layer_output)
        record(model.layers[1].layer_output)
    return [kept.rows, kept.last, kept.last is kept.rows[-1]]


@case
def a_global(model: Any, trace: Any) -> Any:
    SEEN.clear()
    with trace(PROMPTS[0]):
        SEEN.append(model.layers[0].layer_output)
    return list(SEEN)


@case
def a_list_that_is_reordered_and_shortened(model: Any, trace: Any) -> Any:
    first, second = [1], [2]
    kept = [first, second, [3], 4]
    with trace(PROMPTS[0]):
        model.layers[0].layer_output.sum()
        kept.pop()
        kept.reverse()
        kept[0].append("new")
    return [kept, kept[1] is second, kept[2] is first]


@case
def one_object_under_two_names(model: Any, trace: Any) -> Any:
    kept: list[Any] = []
    also = {"rows": kept}
    with trace(PROMPTS[0]):
        also["rows"].append(model.layers[0].layer_output)
        also["self"] = also
    return [kept, also["rows"] is kept, also["self"] is also]


@case
def a_saved_list_of_lists_shared_by_invokes(model: Any, trace: Any) -> Any:
    with trace() as tracer:
        kept = nnsight.save([[], [[]]])
        for index, prompt in enumerate(PROMPTS):
            with tracer.invoke(prompt):
                kept[0].append(index)
                kept[1][0].append(model.layers[0].layer_output[0, 0])
    return [kept[0], kept[1][0]]


@case
def a_saved_dict_of_lists_shared_by_invokes(model: Any, trace: Any) -> Any:
    with trace() as tracer:
        kept = nnsight.save({"streams": [], "named": {}})
        for index, prompt in enumerate(PROMPTS):
            with tracer.invoke(prompt):
                kept["streams"].append(model.layers[0].layer_output)
                kept["named"][index] = [model.layers[1].layer_output]
    return kept


@case
def plain_containers_shared_by_invokes(model: Any, trace: Any) -> Any:
    rows: list[Any] = []
    slots: list[Any] = [None, None]
    table = torch.zeros(2, 64)
    with trace() as tracer:
        for index, prompt in enumerate(PROMPTS):
            with tracer.invoke(prompt):
                last = model.layers[0].layer_output[0, -1]
                rows.append(last.clone())
                slots[index] = {"last": last.clone()}
                table[index] = last
    return [rows, slots, table]


@case
def a_list_that_is_saved_in_the_block(model: Any, trace: Any) -> Any:
    kept: list[Any] = []
    same = kept
    with trace(PROMPTS[0]):
        kept.append(model.layers[0].layer_output)
        nnsight.save(kept)
        alias = nnsight.save([kept])
    return [kept, kept is same, alias[0] is same]


@case
def objects_put_into_a_set_and_taken_out(model: Any, trace: Any) -> Any:
    one, other = Recorder(), Recorder()
    chosen = {other}
    with trace(PROMPTS[0]):
        one.record(model.layers[0].layer_output[0, -1])
        chosen.add(one)
        chosen.discard(other)
    return [len(chosen), one in chosen, other in chosen, len(one.rows)]


def alike(found: Any, expected: Any) -> bool:
    if isinstance(expected, torch.Tensor):
        return relative_error(found.cpu(), expected) < 1e-5
    if isinstance(expected, dict):
        return found.keys() == expected.keys() and all(alike(found[k], expected[k]) for k in found)
    if isinstance(expected, (list, tuple)):
        return len(found) == len(expected) and all(map(alike, found, expected))
    return bool(found == expected)


@pytest.fixture(scope="module")
def transformers(tiny_folder: Callable[[str], Path]) -> Any:
    return StandardizedTransformer(
        str(tiny_folder("llama")), dispatch=True, dtype=torch.float32, attn_implementation="eager"
    )


@pytest.fixture(params=["here", "apart"])
def vllm(request: pytest.FixtureRequest, engine: Callable[[str], Any]) -> Any:
    """The engine in this process, handing over its values as to another process where asked."""
    if request.param == "apart":
        elsewhere(request)
    return engine("llama")


def elsewhere(request: pytest.FixtureRequest) -> None:
    from nnterp.engines.vllm.transport.address import Address

    patch = request.getfixturevalue("monkeypatch")
    patch.setattr(Address, "nearby", property(lambda address: False))


@pytest.mark.filterwarnings("error::UserWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_objects_around_a_block_are_changed_as_they_are_on_transformers(
    name: str, vllm: Any, transformers: Any
) -> None:
    def on_transformers(*prompt: Any) -> Any:
        return transformers.trace(*prompt)

    def on_vllm(*prompt: Any) -> Any:
        return vllm.trace(*prompt, **ONE_STEP)

    with torch.no_grad():
        expected = CASES[name](transformers, on_transformers)
    assert alike(CASES[name](vllm, on_vllm), expected)


def test_changes_of_several_steps_and_sequences_all_come_home(vllm: Any) -> None:
    kept: list[Any] = []
    with vllm.trace(
        PROMPTS[0], temperature=0.5, seed=1, n=2, max_tokens=3, ignore_eos=True
    ) as tracer:
        for step in tracer.iter[:3]:
            kept.append((step, vllm.layers[0].layer_output.shape[1]))
    assert kept == [(0, 20), (1, 1), (2, 1)] * 2


def test_two_invokes_that_change_one_part_are_warned_of_at_the_traces_line(vllm: Any) -> None:
    total = torch.zeros(64)
    counts = {"rows": 0}
    with pytest.warns(UserWarning, match="several requests changed the same part of") as said:
        with vllm.trace(**ONE_STEP) as tracer:
            for prompt in PROMPTS:
                with tracer.invoke(prompt):
                    total += vllm.layers[0].layer_output[0, -1]
                    counts["rows"] += 1
    named = {str(warning.message).split()[7].rstrip(",") for warning in said}
    assert named == {"total", "counts"}
    assert {warning.filename for warning in said} == {__file__}
    assert counts == {"rows": 1}


def test_what_cannot_be_sent_back_is_that_requests_error_and_the_rest_is_kept(vllm: Any) -> None:
    bad: list[Any] = []
    good: list[Any] = []
    with pytest.raises(RuntimeError, match=r"TypeError: what was put into bad cannot be sent back"):
        with vllm.trace(PROMPTS[0], **ONE_STEP):
            good.append(vllm.layers[0].layer_output)
            bad.append(n for n in range(3))
    assert bad == []
    assert len(good) == 1


def test_a_container_that_holds_itself_ends_nothing(vllm: Any) -> None:
    with vllm.trace(PROMPTS[0], **ONE_STEP):
        ring: list[Any] = [vllm.layers[0].layer_output.save()]
        ring.append(ring)
        nnsight.save(ring)
    assert ring[1] is ring
    assert ring[0].shape == (1, 20, 64)
