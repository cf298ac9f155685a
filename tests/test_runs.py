"""`run`: reads and edits as data, against transformers with hooks, gradients and closed forms."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

import checkpoints
import nnterp
from nnterp import (
    Add,
    Edit,
    ProjectOut,
    Read,
    Replace,
    Scale,
    SetCoefficient,
    StandardizedTransformer,
    StandardizedVLLM,
    Unavailable,
    Zero,
)
from nnterp.tools.checking.compare import relative_error

CLOSE = 2e-5

#: Of several lengths, in no order of them.
PROMPTS = [
    checkpoints.PROMPT[start : start + length] for start, length in [(0, 6), (2, 15), (5, 9)]
]

STREAM = "layers.0.layer_output"


def vectors(count: int, width: int = 64) -> Tensor:
    return torch.randn(count, width, generator=torch.Generator().manual_seed(count))


def settings(model: Any, ends: int = -1) -> dict[str, Any]:
    """What makes a generation end with the token ``ends`` and no other, on either engine."""
    if model.engine_adapter.engine == "vllm":
        return {"ignore_eos": True, "stop_token_ids": [] if ends < 0 else [ends]}
    return {"eos_token_id": ends}


class Hooked:
    """The tiny llama on transformers alone, with an edit of a block's output by a hook."""

    def __init__(self, path: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
        self.blocks = self.model.model.layers

    def generate(
        self, prompt: Sequence[int], steps: int, block: int, edit: Callable[[Tensor, int], None]
    ) -> tuple[list[int], Tensor, Tensor]:
        """The tokens, each step's last logits, and the block's output at every position.

        There is no cache: each step computes all positions over again.

        Args:
            prompt: Token ids.
            steps: The number of tokens to generate.
            block: The block.
            edit: Changes its output, ``[positions, hidden]``, in place; it is told how many of the
                positions are the prompt's.
        """
        ids, logits = list(prompt), []
        stream = torch.empty(0)

        def hook(module: Any, arguments: Any, output: Any) -> Any:
            nonlocal stream
            rows = output[0].clone()
            edit(rows, len(prompt))
            stream = rows
            return rows[None]

        handle = self.blocks[block].register_forward_hook(hook)
        try:
            for _ in range(steps):
                with torch.no_grad():
                    out = self.model(torch.tensor([ids]), use_cache=False).logits[0, -1]
                logits.append(out)
                ids.append(int(out.argmax()))
        finally:
            handle.remove()
        return ids[len(prompt) :], torch.stack(logits), stream


@pytest.fixture(scope="module")
def hooked(tiny_folder: Callable[[str], Path]) -> Hooked:
    return Hooked(tiny_folder("llama"))


def held(model: Any, hooked: Hooked, edits: Any, change: Callable[[int], Any], steps: int) -> None:
    """Hold a run of all prompts against a loop of hooked generations."""
    reads = [Read("logits"), Read(STREAM, "all")]
    done = model.run(PROMPTS, reads=reads, edits=edits, max_tokens=steps, **settings(model))
    for index, prompt in enumerate(PROMPTS):
        tokens, logits, stream = hooked.generate(prompt, steps, 0, change(index))
        assert done.tokens[index] == tokens
        assert relative_error(done["logits"][index], logits) < CLOSE
        assert relative_error(done[STREAM][index], stream) < CLOSE


def test_a_vector_of_each_prompts_own_is_added_at_every_step(either: Any, hooked: Hooked) -> None:
    own = vectors(3)

    def change(index: int) -> Any:
        return lambda rows, prompt: rows.add_(own[index], alpha=2.0)

    held(either, hooked, [[Add(STREAM, vector, 2.0)] for vector in own], change, 4)


def test_positions_and_steps_are_of_each_prompts_own_sequence(either: Any, hooked: Hooked) -> None:
    own = vectors(4)
    edits = [
        [Add(STREAM, own[0], positions="generated"), Scale(STREAM, 0.5, positions=-2)],
        [Replace(STREAM, own[:3], positions=[2, 7, 8]), Zero(STREAM, steps=2)],
        [
            Add(STREAM, own[3], steps=slice(1, 3)),
            Scale(STREAM, 3.0, positions=[True] * 4 + [False] * 5),
        ],
    ]

    def change(index: int) -> Any:
        def edit(rows: Tensor, prompt: int) -> None:
            if index == 0:
                rows[prompt:] += own[0]
                rows[prompt - 2] *= 0.5
            elif index == 1:
                rows[[2, 7, 8]] = own[:3]
                rows[prompt + 1 : prompt + 2] = 0
            else:
                rows[prompt : prompt + 2] += own[3]
                rows[:4] *= 3.0

        return edit

    held(either, hooked, edits, change, 5)


def test_edits_are_made_in_order(either: Any, hooked: Hooked) -> None:
    vector, direction = vectors(2)
    unit = direction / direction.norm()
    both = [
        [Add(STREAM, vector), Scale(STREAM, 2.0), SetCoefficient(STREAM, direction, 3.0)],
        [Scale(STREAM, 2.0), Add(STREAM, vector), ProjectOut(STREAM, 5 * direction)],
        [SetCoefficient(STREAM, direction, 3.0), Add(STREAM, vector), Scale(STREAM, 2.0)],
    ]

    def change(index: int) -> Any:
        def along(rows: Tensor) -> Tensor:
            return (rows @ unit)[:, None] * unit

        def edit(rows: Tensor, prompt: int) -> None:
            if index == 0:
                rows.copy_(2 * (rows + vector))
                rows += 3.0 * unit - along(rows)
            elif index == 1:
                rows.copy_(2 * rows + vector)
                rows -= along(rows)
            else:
                rows += 3.0 * unit - along(rows)
                rows.copy_(2 * (rows + vector))

        return edit

    held(either, hooked, both, change, 3)


def test_an_edit_for_all_may_have_positions_for_each(either: Any, hooked: Hooked) -> None:
    where = [1, -1, 4]
    vector = vectors(1)[0]

    def change(index: int) -> Any:
        def edit(rows: Tensor, prompt: int) -> None:
            rows[where[index] % prompt] += vector

        return edit

    held(either, hooked, [Add(STREAM, vector, positions=where)], change, 2)


def test_logits_are_computed_for_the_tokens_that_are_asked_for(
    transformer: Any, hooked: Hooked
) -> None:
    """Of prompts of three lengths, in a batch padded to the longest."""
    computed = []
    head = transformer._module.lm_head
    handle = head.register_forward_hook(lambda module, given, out: computed.append(out.shape[:2]))
    edits = [Add("logits", torch.ones(transformer.vocab_size), positions="last")]
    choices: list[tuple[Any, tuple[int, int]]] = [("last", (3, 3)), ("all", (3, 15))]
    try:
        for positions, expected in choices:
            done = transformer.run(PROMPTS, reads=[Read("logits", positions)], edits=edits)
            assert computed.pop() == expected
            for index, prompt in enumerate(PROMPTS):
                with torch.no_grad():
                    own = hooked.model(torch.tensor([prompt])).logits[0]
                own[-1] += 1
                assert done.tokens[index] == [int(own[-1].argmax())]
                want = own[-1] if positions == "last" else own
                assert relative_error(done["logits"][index], want) < CLOSE
        transformer.collect(PROMPTS, {"next_token_probs": "last"})
        assert computed.pop() == (3, 3)
    finally:
        handle.remove()


def test_what_an_edit_does_is_what_the_gradient_says(either: Any, hooked: Hooked) -> None:
    """The logit's derivative along a vector, by finite differences and by backpropagation."""
    prompt, vector = PROMPTS[1], vectors(1)[0]
    step = 1e-2
    edits = [[Add(STREAM, vector, sign * step, positions=3)] for sign in (1, -1)]
    done = either.run([prompt] * 2, reads=[Read("logits")], edits=edits)
    token = int(done["logits"][0].argmax())
    found = (done["logits"][0, token] - done["logits"][1, token]) / (2 * step)

    stream = torch.zeros(len(prompt), 64, requires_grad=True)
    handle = hooked.blocks[0].register_forward_hook(lambda module, given, out: out + stream)
    try:
        hooked.model(torch.tensor([prompt])).logits[0, -1, token].backward()
    finally:
        handle.remove()
    assert stream.grad is not None
    assert found.item() == pytest.approx((stream.grad[3] @ vector).item(), rel=2e-3)


def test_every_choice_of_positions_and_steps_keeps_its_rows(either: Any) -> None:
    steps = 4
    done = either.run(PROMPTS, reads=[Read(STREAM, "all")], max_tokens=steps, **settings(either))
    every = list(done[STREAM])
    masks = [[index % 2 == 0 for index in range(len(prompt))] for prompt in PROMPTS]
    choices: list[tuple[Any, Any, Callable[[Tensor, int, int], Tensor]]] = [
        ("last", None, lambda rows, length, index: rows[length - 1 :]),
        ("prompt", None, lambda rows, length, index: rows[:length]),
        ("generated", None, lambda rows, length, index: rows[length:]),
        ("all", 0, lambda rows, length, index: rows[:length]),
        ("all", slice(1, 3), lambda rows, length, index: rows[length : length + 2]),
        ("last", [0, 3], lambda rows, length, index: rows[[length - 1, length + 2]]),
        ("last", 0, lambda rows, length, index: rows[length - 1]),
        (-3, None, lambda rows, length, index: rows[length - 3]),
        ([0, 2, -1], None, lambda rows, length, index: rows[[0, 2, length - 1][index]]),
        ([[0, 3], [5], []], None, lambda rows, length, index: rows[[[0, 3], [5], []][index]]),
        (masks, None, lambda rows, length, index: rows[:length:2]),
        ("mean", None, lambda rows, length, index: rows[:length].mean(0)),
        (lambda value: value[0].amax(0), None, lambda rows, length, index: rows[:length].amax(0)),
    ]
    for positions, chosen, expected in choices:
        reads = [Read(STREAM, positions, chosen), Read("logits")]
        again = either.run(PROMPTS, reads=reads, max_tokens=steps, **settings(either))
        assert again.tokens == done.tokens
        for index, prompt in enumerate(PROMPTS):
            want = expected(every[index], len(prompt), index)
            found = again[STREAM][index]
            assert found.shape == want.shape, positions
            assert not want.numel() or relative_error(found, want) < 1e-5, positions
        assert [len(rows) for rows in again["logits"]] == [steps] * 3


def test_a_generation_that_ends_early_keeps_what_was_run(either: Any) -> None:
    long = either.run(PROMPTS, reads=[Read(STREAM, "all")], max_tokens=6, **settings(either))
    ends = long.tokens[1][2]
    runs = [own.index(ends) + 1 if ends in own else 6 for own in long.tokens]
    assert runs[1] <= 3 < max(runs)
    short = either.run(
        PROMPTS,
        reads=[Read(STREAM, "all"), Read("logits"), Read("layers.1.layer_output", "generated")],
        max_tokens=6,
        **settings(either, ends),
    )
    assert short.tokens == [own[:count] for own, count in zip(long.tokens, runs, strict=True)]
    for index, count in enumerate(runs):
        rows = short[STREAM][index]
        assert len(rows) == len(PROMPTS[index]) + count - 1
        assert relative_error(rows, long[STREAM][index][: len(rows)]) < 1e-5
        assert len(short["logits"][index]) == count
        assert len(short["layers.1.layer_output"][index]) == count - 1


@pytest.mark.parametrize("number", [2.0, float("nan"), float("inf")])
def test_an_edit_is_no_other_prompts_affair(either: Any, number: float) -> None:
    reads = [Read("layers.*.layer_output", "all"), Read("logits")]
    wild = [Add(STREAM, torch.full((64,), number)), Scale("layers.1.mlp.mlp_output", 7.0)]
    plain = either.run(PROMPTS, reads=reads, max_tokens=4, **settings(either))
    edited = either.run(
        PROMPTS, reads=reads, edits=[[], wild, []], max_tokens=4, **settings(either)
    )
    after = either.run(PROMPTS, reads=reads, max_tokens=4, **settings(either))
    for name in plain.values:
        for index in (0, 2):
            assert torch.equal(edited[name][index], plain[name][index]), name
        assert not torch.equal(edited[name][1], plain[name][1]), name
        assert torch.equal(after.values[name].rows, plain.values[name].rows), name


@pytest.fixture(scope="module", params=["vllm", "transformers"])
def in_bfloat16(
    request: pytest.FixtureRequest,
    tiny_folder: Callable[[str], Path],
    keep: Callable[[Any], Any],
) -> Iterator[Any]:
    path = str(tiny_folder("llama"))
    if request.param == "vllm":
        memory = {"max_model_len": 64, "kv_cache_memory_bytes": 50_000_000}
        yield keep(StandardizedVLLM(path, dispatch=True, dtype="bfloat16", **memory))
    else:
        yield StandardizedTransformer(path, dispatch=True, dtype=torch.bfloat16)


def test_rows_that_are_not_edited_are_the_same_to_the_bit_in_bfloat16(in_bfloat16: Any) -> None:
    reads = [Read("layers.*.layer_output", "all")]
    plain = in_bfloat16.run(PROMPTS, reads=reads, max_tokens=3, **settings(in_bfloat16))
    edit = SetCoefficient(STREAM, vectors(1)[0], 4.0, positions=3)
    found = in_bfloat16.run(
        PROMPTS, reads=reads, edits=[edit], max_tokens=3, **settings(in_bfloat16)
    )
    for index in range(3):
        rows, before = found[STREAM][index], plain[STREAM][index]
        assert rows.dtype == torch.bfloat16
        assert torch.equal(rows[:3], before[:3])
        assert not torch.equal(rows[3], before[3])
        assert torch.equal(rows[4 : len(PROMPTS[index])], before[4 : len(PROMPTS[index])])


def test_a_row_is_replaced_by_what_was_read_to_the_bit(in_bfloat16: Any) -> None:
    clean = in_bfloat16.collect(PROMPTS, {"layers.1.layer_output": 2})["layers.1.layer_output"]
    edits = [[Replace("layers.1.layer_output", row, positions=4)] for row in clean]
    found = in_bfloat16.collect(PROMPTS, {"layers.1.layer_output": 4}, edits=edits)
    assert torch.equal(found["layers.1.layer_output"], clean)


def test_heads_are_edited_apart(either: Any) -> None:
    heads = "layers.1.self_attn.attention_head_outputs"
    plain = either.collect(PROMPTS, {heads: "all"})[heads]
    own = vectors(2, plain.rows.shape[-1])
    edits = [
        [Zero(heads, heads=1)],
        [Add(heads, own, heads=[3, 0], positions="last")],
        [Replace(heads, own[0], heads=-1), Scale(heads, 2.0, heads=[0, 1])],
    ]
    found = either.collect(PROMPTS, {heads: "all"}, edits=edits)[heads]
    want = [rows.clone() for rows in plain]
    want[0][:, 1] = 0
    want[1][-1, [3, 0]] += own
    want[2][:, -1] = own[0]
    want[2][:, :2] *= 2.0
    for index in range(3):
        assert relative_error(found[index], want[index]) < 1e-6


def test_a_vector_goes_by_its_name_and_a_record_is_json(either: Any) -> None:
    records: list[Edit] = [
        Add(STREAM, vectors(1)[0], 2.0, positions=[1, -1, 4], steps=slice(0, 2)),
        SetCoefficient("layers.*.layer_output", "way", 3.0, positions="generated"),
        Zero("layers.1.self_attn.attention_head_outputs", heads=[0, 2], steps=[0, 1]),
        Replace("layers.1.mlp.mlp_output", torch.ones(64, dtype=torch.bfloat16), positions=-1),
    ]
    read = [Read("logits"), Read(STREAM, [[0, 1], [2], []], slice(0, 1))]
    either.vectors["way"] = vectors(2)[1]
    try:
        written = json.dumps([one.to_json() for one in (*records, *read)])
        again = json.loads(written)
        edits = [Edit.from_json(record) for record in again[: len(records)]]
        reads = [Read.from_json(record) for record in again[len(records) :]]
        assert [edit.to_json() for edit in edits] == again[: len(records)]
        assert reads == read
        how = {"max_tokens": 3, **settings(either)}
        one = either.run(PROMPTS, reads=read, edits=records, **how)
        other = either.run(PROMPTS, reads=reads, edits=edits, **how)
        assert one.tokens == other.tokens
        for name in one.values:
            assert torch.equal(one[name].rows, other[name].rows)
    finally:
        del either.vectors["way"]


def test_a_function_is_no_json() -> None:
    with pytest.raises(TypeError, match="function cannot be written as JSON"):
        Read(STREAM, lambda value: value).to_json()
    with pytest.raises(ValueError, match="'ad' is no kind of edit; did you mean 'add'"):
        Edit.from_json({"kind": "ad", "value": STREAM})


def test_what_cannot_be_edited_is_said_before_anything_runs(either: Any) -> None:
    vector = vectors(1)[0]

    def refused(edits: Any, kind: type[Exception], says: str) -> None:
        with pytest.raises(kind, match=says):
            either.run(PROMPTS, edits=edits)

    refused([Add("layers.0.layer_outptu", vector)], ValueError, r"^edits\[0\]: .*did you mean")
    refused([Zero(STREAM), Zero("layers.9.layer_output")], IndexError, r"^edits\[1\]: .*has 2")
    refused([Add(STREAM, vector[:5])], ValueError, r"^edits\[0\]: vector has shape \[5\].*\[64\]")
    refused([Zero("next_token_probs")], ValueError, r"^edits\[0\]: .*read-only")
    refused([Zero(STREAM, heads=0)], ValueError, r"^edits\[0\]: .*has no heads")
    heads = "layers.0.self_attn.attention_head_outputs"
    refused([Zero(heads, heads=7)], IndexError, r"^edits\[0\]: .*has 4 heads and no head 7")
    refused(
        [[], [Zero(STREAM, positions=40)], []], IndexError, r"^edits\[1\]\[0\]: prompt 1 has 15"
    )
    refused(
        [Zero(STREAM, positions=[0, 1])], ValueError, r"^edits\[0\]: there are 2 positions for 3"
    )
    refused([Zero(STREAM, positions="first")], ValueError, r"^edits\[0\]: 'first' is no choice")
    refused([Zero(STREAM, steps=-1)], ValueError, r"^edits\[0\]: steps are counted from")
    refused([Add(STREAM, "nowhere")], ValueError, r"^edits\[0\]: the model has no vector 'nowhere'")
    refused([ProjectOut(STREAM, 0 * vector)], ValueError, r"^edits\[0\]: a direction is zero")
    refused([Add(STREAM, [1.0])], TypeError, r"^edits\[0\]: vector is a tensor or the name")
    refused(Zero(STREAM), TypeError, "edits are a list")
    refused([[Zero(STREAM)]], ValueError, "edits for 1 prompts, and 3")
    refused([Zero(STREAM), []], TypeError, "not both")
    refused([Replace(STREAM, vectors(4), positions="prompt")], ValueError, r"\[4, 64\].*\[6, 64\]")
    with pytest.raises(TypeError, match="this is none: 'logits'"):
        either.run(PROMPTS, reads=["logits"])
    with pytest.raises(ValueError, match="max_tokens is the number to generate"):
        either.run(PROMPTS, max_tokens=0)


def test_what_is_served_nowhere_is_edited_nowhere(either: Any) -> None:
    with pytest.raises(Unavailable, match=r"edits\[0\]: layers.0.mlp.router_logits"):
        either.run(PROMPTS, edits=[Zero("layers.0.mlp.router_logits")])


def test_a_run_shows_its_texts(either: Any) -> None:
    done = either.run(["The Eiffel Tower", "a"], max_tokens=2, **settings(either))
    assert list(done) == done.texts
    assert len(done) == 2
    assert repr(done).startswith("0: ")
    assert isinstance(done, nnterp.Run)
