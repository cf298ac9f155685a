"""Plain, traced, edited and read requests in one engine, each as if the others were plain."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch
from torch import Tensor

import checkpoints
import loras
import mixes
from conftest import TINY_ENGINE
from nnterp import Add, Edit, ProjectOut, Read, Replace, Scale, SetCoefficient, Zero
from nnterp.tools.checking.compare import relative_error

pytestmark = pytest.mark.usefixtures("one_thread")

CLOSE = 2e-5

#: Cache for two of three requests that grow past a block each.
STARVED = {"block_size": 32, "num_gpu_blocks_override": 6}
CACHING = {"block_size": 32, "enable_prefix_caching": True}
CHUNKED = {**CACHING, "enable_chunked_prefill": True, "max_num_batched_tokens": 24}
ADAPTED = {"enable_lora": True, "max_loras": 2, "max_lora_rank": 8}

GROWING = mixes.Kind(lengths=(26, 44), tokens=(3, 7))

#: Engines: the checkpoint, the arguments, what is mixed, and the number of mixes.
ENGINES: dict[str, tuple[str, dict[str, Any], mixes.Kind, int]] = {
    "ample": ("llama", {}, mixes.Kind(), 140),
    "starved": ("llama", {**STARVED, **CACHING}, GROWING, 120),
    "starved gemma2": ("gemma2", STARVED, GROWING, 50),
    "chunked": (
        "gemma2",
        {**CHUNKED, "max_num_seqs": 8},
        mixes.Kind(lengths=(3, 48), traces=False, functions=False, seeds=False),
        90,
    ),
    "bfloat16": ("llama", {**CACHING, "dtype": "bfloat16"}, mixes.Kind(lengths=(16, 48)), 60),
    "adapted": ("llama", ADAPTED, mixes.Kind(adapters=2), 70),
}


@pytest.fixture(scope="module")
def stage(
    tiny_folder: Callable[[str], Path],
    tmp_path_factory: pytest.TempPathFactory,
    keep: Callable[[Any], Any],
) -> Callable[[str], mixes.Stage]:
    """The engine of this name, ready to play mixes."""
    from nnterp import StandardizedVLLM

    started: dict[str, mixes.Stage] = {}

    def start(name: str) -> mixes.Stage:
        if name not in started:
            checkpoint, arguments, kind, _ = ENGINES[name]
            path = tiny_folder(checkpoint)
            arguments = {**TINY_ENGINE, **arguments}
            model = keep(StandardizedVLLM(str(path), dispatch=True, **arguments))
            folder = tmp_path_factory.mktemp("adapters")
            adapters = adapters_of(path, folder, kind.adapters)
            for adapter in adapters:  # so that each has its slot
                model.run([checkpoints.PROMPT], lora_request=adapter)
            started[name] = mixes.Stage(model, adapters)
        return started[name]

    return start


def adapters_of(path: Path, folder: Path, count: int) -> list[Any]:
    from vllm.lora.request import LoRARequest

    names = ("q_proj", "v_proj", "o_proj", "down_proj")
    written = [loras.write(path, folder / str(n), n, names) for n in range(1, count + 1)]
    return [LoRARequest(str(n), n, str(adapter)) for n, adapter in enumerate(written, 1)]


@pytest.fixture
def starved(stage: Callable[[str], mixes.Stage]) -> Iterator[mixes.Stage]:
    """The engine whose blocks are used again at once, with nothing cached."""
    own = stage("starved")
    own.engine.reset_prefix_cache()
    yield own
    assert own.left() == 0


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("name", ENGINES)
def test_in_a_mix_each_is_what_it_is_where_the_others_are_plain(
    name: str, stage: Callable[[str], mixes.Stage]
) -> None:
    """To the bit: outputs, rows that are read, and what blocks saw."""
    _, arguments, kind, count = ENGINES[name]
    own = stage(name)
    evicted = cached = 0
    for number in range(count):
        random = Random(f"{name} {number}")
        mix = mixes.draw(random, own.model, kind)
        blocks = mixes.blocks_of(own.model, mix)
        together = own.play(mix, blocks)
        special = [member.name for member in mix.members if not member.plain]
        only_read = [m.name for m in mix.members if m.job == mixes.READ and not m.edits]
        chosen = random.choice([[], only_read, random.sample(special, k=min(1, len(special)))])
        apart = own.play(mix, blocks, chosen, together)
        assert mixes.moved(mix, together, apart, chosen) == [], (number, chosen)
        assert own.left() == 0
        edited = {member.name for member in mix.members if member.edits}
        evicted += bool(edited & together.evicted)
        cached += any(one["cached"] for said in together.said.values() for one in said.values())
    assert evicted > 5 or "num_gpu_blocks_override" not in arguments
    assert cached > 5 or not arguments.get("enable_prefix_caching")


# -- against plain transformers --------------------------------------------------------------

STREAMS = ("layer_input", "layer_output")


def edited_mix(random: Random, model: Any, kind: mixes.Kind) -> mixes.Mix:
    """Requests with edits of streams that read their logits, among plain ones."""
    tokens = random.randint(*kind.tokens)
    settings = {"temperature": 0.0, "ignore_eos": True, "max_tokens": tokens}
    members = []
    for index in range(5):
        length = random.randint(*kind.lengths)
        prompt = mixes.TEXT[index : index + length]
        job = mixes.READ if index % 2 == 0 else None
        edits = mixes.draw_edits(random, model, prompt, STREAMS, wild=0.0) if job else ()
        name = f"{index}.{job}"
        arrives = random.choice([0, 0, 1, 3])
        members.append(mixes.Member(name, job, prompt, settings, arrives, edits=edits))
    return mixes.Mix(members, [Read("logits")], 0)


def by_hand(edit: Edit, stream: Tensor, prompt: int) -> Tensor:
    """What becomes of a whole sequence's stream, ``[tokens, hidden]``."""
    tokens = range(len(stream))
    words = {
        "all": tokens,
        "prompt": range(prompt),
        "generated": range(prompt, len(stream)),
        "last": range(prompt - 1, len(stream)),
    }
    at: Any = edit.positions
    if isinstance(at, str):
        chosen = list(words[at])
    elif isinstance(at, int):
        chosen = [at % prompt]
    elif isinstance(at[0], bool):
        chosen = [index for index, here in enumerate(at) if here]
    else:
        chosen = list(at)
    step_of = [max(0, token - prompt + 1) for token in tokens]
    steps: Any = edit.steps
    if isinstance(steps, slice):
        steps = range(10000)[steps]
    elif isinstance(steps, int):
        steps = [steps]
    if steps is not None:
        chosen = [token for token in chosen if step_of[token] in steps]
    rows = stream[chosen].double()
    if isinstance(edit, Add):
        new = rows + edit.factor * edit.vector.double()
    elif isinstance(edit, Scale):
        new = rows * edit.factor
    elif isinstance(edit, Replace):
        new = edit.rows.double().expand_as(rows)
    elif isinstance(edit, Zero):
        new = torch.zeros_like(rows)
    else:
        assert isinstance(edit, ProjectOut | SetCoefficient)
        unit = edit.direction.double() / edit.direction.double().norm()
        kept = edit.coefficient if isinstance(edit, SetCoefficient) else 0.0
        new = rows + torch.outer(kept - rows @ unit, unit)
    changed = stream.clone()
    changed[chosen] = new.to(stream.dtype)
    return changed


def logits_by_hooks(plain: Any, member: mixes.Member, tokens: list[int]) -> Tensor:
    """The logits of every step, of transformers with hooks that make the member's edits."""
    blocks = plain.model.layers
    length = len(member.prompt)

    def made(stream: Tensor, name: str, block: int) -> Tensor:
        for edit in member.edits:
            if edit.value in (f"layers.{block}.{name}", f"layers.*.{name}"):
                stream = by_hand(edit, stream[0], length)[None]
        return stream

    def enter(block: int) -> Callable[..., Any]:
        return lambda _, args: (made(args[0], "layer_input", block), *args[1:])

    def leave(block: int) -> Callable[..., Any]:
        def hook(_: Any, args: Any, output: Any) -> Any:
            if isinstance(output, Tensor):
                return made(output, "layer_output", block)
            return (made(output[0], "layer_output", block), *output[1:])

        return hook

    handles = [block.register_forward_pre_hook(enter(n)) for n, block in enumerate(blocks)]
    handles += [block.register_forward_hook(leave(n)) for n, block in enumerate(blocks)]
    try:
        with torch.no_grad():
            ids = torch.tensor([member.prompt + tokens[:-1]])
            return plain(ids).logits[0, length - 1 :]
    finally:
        for handle in handles:
            handle.remove()


@pytest.mark.parametrize("name", ["ample", "starved", "starved gemma2", "chunked"])
def test_edits_of_streams_make_the_logits_that_hooks_make(
    name: str, stage: Callable[[str], mixes.Stage], tiny_folder: Callable[[str], Path]
) -> None:
    from transformers import AutoModelForCausalLM

    checkpoint, _, kind, _ = ENGINES[name]
    plain = AutoModelForCausalLM.from_pretrained(
        tiny_folder(checkpoint), dtype=torch.float32, attn_implementation="eager"
    )
    own = stage(name)
    moving = 0
    for number in range(15):
        mix = edited_mix(Random(f"{name} {number}"), own.model, kind)
        played = own.play(mix, {})
        for member in mix.of_job(mixes.READ):
            tokens = played.tokens(member.name)
            expected = logits_by_hooks(plain, member, tokens)
            found = played.rows[member.name]["logits"]
            assert relative_error(found, expected) < CLOSE, (number, member.edits)
            without = logits_by_hooks(plain, replace(member, edits=()), tokens)
            moving += relative_error(found, without) > 0.01
    assert moving > 30


@pytest.mark.parametrize("name", ["starved", "starved gemma2"])
def test_an_evicted_request_is_edited_as_one_that_is_not(
    name: str, stage: Callable[[str], mixes.Stage], engine: Callable[[str], Any]
) -> None:
    checkpoint, *_ = ENGINES[name]
    kind = mixes.Kind(lengths=(27, 32), tokens=(6, 9))
    own, ample = stage(name), mixes.Stage(engine(checkpoint))
    evicted = 0
    for number in range(15):
        mix = edited_mix(Random(f"{name} {number}"), own.model, kind)
        once = own.play(mix, {})
        expected = ample.play(mix, {})
        assert not expected.evicted
        evicted += len({member.name for member in mix.members if member.edits} & once.evicted)
        for member in mix.members:
            assert once.tokens(member.name) == expected.tokens(member.name), member.edits
        for reader, rows in expected.rows.items():
            assert relative_error(once.rows[reader]["logits"], rows["logits"]) < CLOSE
    assert evicted > 8


# -- what an edit leaves alone ---------------------------------------------------------------


@pytest.mark.parametrize("name", ["bfloat16", "ample", "adapted"])
@pytest.mark.parametrize("value", mixes.NAMES)
def test_the_rows_beside_an_edited_one_are_what_they_were_to_the_bit(
    value: str, name: str, stage: Callable[[str], mixes.Stage]
) -> None:
    """Of the edited value, and of the stream at positions before it."""
    own = stage(name)
    place, at = f"layers.0.{value}", 5
    own_edit = Scale(place, -1.5, positions=at)
    settings = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 3}
    adapter = 0 if own.adapters else None

    def member(index: int, edits: list[Edit]) -> mixes.Member:
        prompt = mixes.TEXT[index : index + 9 + index]
        return mixes.Member(
            str(index), mixes.READ, prompt, settings, 0, edits=edits, adapter=adapter
        )

    reads = [Read(place, "all"), Read("layers.1.layer_output", "all")]
    members = [member(index, [own_edit] if index == 1 else []) for index in range(3)]
    without = mixes.Mix([member(index, []) for index in range(3)], reads, 0)
    edited, plain = own.play(mixes.Mix(members, reads, 0), {}), own.play(without, {})
    for index in ("0", "2"):
        assert mixes.same(edited.rows[index], plain.rows[index])
    rows, others = edited.rows["1"][place], plain.rows["1"][place]
    assert mixes.same(rows[:at], others[:at])
    assert not mixes.same(rows[at], others[at])
    length = len(members[1].prompt)
    if value not in ("layer_input", "self_attn.attention_keys"):
        assert mixes.same(rows[at + 1 : length], others[at + 1 : length])
    rows, others = (one.rows["1"]["layers.1.layer_output"] for one in (edited, plain))
    assert mixes.same(rows[:at], others[:at])
    assert not mixes.same(rows[at], others[at])


@pytest.mark.parametrize("name", ["bfloat16", "ample"])
def test_a_neighbours_negative_zeros_keep_their_sign(
    name: str, stage: Callable[[str], mixes.Stage]
) -> None:
    model = stage(name).model
    wide = model.hidden_size
    place = "layers.0.mlp.mlp_output"
    edits: list[list[Edit]] = [
        [Add(place, torch.ones(wide), positions=2)],
        [Replace(place, torch.full((wide,), -0.0))],
        [Scale(place, 2.0), Add(place, torch.ones(wide)), ProjectOut(place, torch.ones(wide))],
    ]
    for order in (edits, edits[::-1]):
        found = model.run([mixes.TEXT[:7]] * 3, reads=[Read(place, "all")], edits=order)[place]
        assert (found[1] == 0).all()
        assert found[1].signbit().all()


def spoiling(how: str, wide: int) -> list[Edit]:
    """Edits that leave in the cache what is not finite, ``how`` saying with what to be seen."""
    entering, stream = "layers.0.layer_input", "layers.0.layer_output"
    keys = "layers.0.self_attn.attention_keys"
    if how in ("nan", "inf", "-inf"):
        return [Replace(stream, torch.full((wide,), float(how)))]
    if how == "nan at one position, which later ones attend to":
        return [Replace(entering, torch.full((wide,), float("nan")), positions=2)]
    hidden = Replace(stream, torch.ones(wide))
    if how == "nan, replaced after the block":
        return [Replace(entering, torch.full((wide,), float("nan"))), hidden]
    assert how == "keys that overflow, replaced after the block"
    return [Scale(keys, torch.finfo(torch.float32).max), hidden]


@pytest.mark.parametrize(
    "how",
    [
        "nan",
        "inf",
        "-inf",
        "nan at one position, which later ones attend to",
        "nan, replaced after the block",
        "keys that overflow, replaced after the block",
    ],
)
def test_blocks_of_the_cache_are_clean_after_edits_that_are_not_finite(
    how: str, starved: mixes.Stage
) -> None:
    """Whoever is given the blocks next: while the run goes on, and after it."""
    settings = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 24, "logprobs": 3}
    spoil = spoiling(how, starved.model.hidden_size)
    prompts = [mixes.TEXT[index : index + 28 + index] for index in range(6)]

    def mix(edited: set[int], count: int = 6) -> mixes.Mix:
        members = [
            mixes.Member(
                str(index),
                mixes.EDITED if index in edited else None,
                prompt,
                settings,
                index,
                edits=spoil if index in edited else [],
            )
            for index, prompt in enumerate(prompts[:count])
        ]
        return mixes.Mix(members, [], 0)

    spoilt, clean = mix({0, 2}), mix(set())
    expected = starved.play(clean, {})
    for _ in range(2):
        beside = starved.play(spoilt, {})
        after = starved.play(clean, {})
        for index in map(str, range(6)):
            assert mixes.same(after.said[index], expected.said[index])
            if index not in "02":
                assert mixes.same(beside.said[index], expected.said[index])
        assert not starved.unclean()
    # One that is never evicted fills its last block while nothing of it may be edited.
    starved.play(mix({0}, count=1), {})
    assert not starved.unclean()
    after = starved.play(clean, {})
    assert all(mixes.same(after.said[index], own) for index, own in expected.said.items())


def test_a_plain_request_finds_nothing_that_an_edited_one_has_cached(starved: mixes.Stage) -> None:
    settings = {"temperature": 0.0, "ignore_eos": True, "max_tokens": 2, "logprobs": 3}
    prompt = mixes.TEXT[:40]
    zero = [Zero("layers.0.layer_output")]
    twin = mixes.Member("edited", mixes.EDITED, prompt, settings, 0, edits=zero)
    later = mixes.Member("plain", None, prompt, settings, 1)
    again = mixes.Member("again", None, prompt, settings, 2)
    alone = starved.play(mixes.Mix([replace(later, arrives=0)], [], 0), {})
    beside = starved.play(mixes.Mix([twin, later, again], [], 0), {})
    assert beside.said["plain"][0]["cached"] == 0
    assert beside.said["again"][0]["cached"] == 32
    for name in ("plain", "again"):
        assert beside.tokens(name) == alone.tokens("plain")
    assert beside.tokens("edited") != alone.tokens("plain")


# -- runs that end early ---------------------------------------------------------------------


def fail(value: Tensor) -> Tensor:
    raise ValueError("of the reader")


def interrupt(value: Tensor) -> Tensor:
    raise KeyboardInterrupt


@pytest.mark.parametrize("where", ["a reader fails", "in a forward", "between steps", "too long"])
def test_a_run_that_ends_early_leaves_nothing_and_the_engine_goes_on(
    where: str, starved: mixes.Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    from vllm.exceptions import VLLMValidationError

    model, prompt = starved.model, mixes.TEXT[:40]
    plain = mixes.Mix(
        [mixes.Member("0", None, prompt, {"temperature": 0.0, "max_tokens": 3, "logprobs": 3}, 0)],
        [],
        0,
    )
    expected = starved.play(plain, {})
    starved.engine.reset_prefix_cache()
    readers = {"a reader fails": fail, "in a forward": interrupt}
    prompts, reads = [prompt, prompt[:9]], []
    if where in readers:
        reads = [Read("layers.0.layer_output", readers[where])]
    if where == "too long":
        prompts = [prompt, mixes.TEXT[:50] * 2]
    step, taken = starved.engine.step, 0

    def interrupted() -> Any:
        nonlocal taken
        taken += 1
        if where == "between steps" and taken == 2:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(starved.engine, "step", interrupted)
    with pytest.raises((RuntimeError, KeyboardInterrupt, VLLMValidationError)):
        model.run(
            prompts,
            reads=reads,
            edits=[[], [Zero("layers.0.layer_output")]],
            max_tokens=4,
            ignore_eos=True,
        )
    monkeypatch.undo()
    assert starved.left() == 0
    assert starved.engine.advance is None
    # Not by `play`, which empties the cache.
    run = model.run([prompt, prompt[:9]], max_tokens=3)
    assert run.tokens[0] == expected.tokens("0")
    assert mixes.same(starved.play(plain, {}).said, expected.said)


def test_a_trace_that_is_interrupted_leaves_nothing_and_the_engine_goes_on(
    starved: mixes.Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    model, prompt = starved.model, mixes.TEXT[:40]
    expected = model.run([prompt], max_tokens=3)
    step, taken = starved.engine.step, 0

    def interrupted() -> Any:
        nonlocal taken
        taken += 1
        if taken == 2:
            raise KeyboardInterrupt
        return step()

    monkeypatch.setattr(starved.engine, "step", interrupted)
    with pytest.raises(KeyboardInterrupt):
        with model.trace(prompt, temperature=0.0, max_tokens=4, ignore_eos=True):
            model.layers[0].layer_output[:] = 0
    monkeypatch.undo()
    assert starved.left() == 0
    assert model.run([prompt], max_tokens=3).tokens == expected.tokens


def test_the_worker_keeps_nothing_of_a_run_that_has_ended(starved: mixes.Stage) -> None:
    """Its results may be large, and no step may follow."""
    vector = torch.ones(starved.model.hidden_size)
    job = starved.model._job(
        [mixes.TEXT[:9]],
        [Read("layers.0.layer_output", "all"), Read("logits")],
        [Add("layers.0.layer_output", vector, factor=2.0)],
        2,
    )
    with starved.model._under_way(job) as run:
        (within,) = starved.runner.nnsight_requests.runs.under_way.values()
        kept = [weakref.ref(within.collector), weakref.ref(within.editor)]
        del within
        starved.engine.add_request("0", run.prompt(0), run.params(0))
        while starved.engine.has_unfinished_requests():
            starved.engine.step()
    gc.collect()
    assert [one() for one in kept] == [None, None]


# -- generations of different lengths --------------------------------------------------------


def test_what_is_read_of_a_generation_ends_with_it(starved: mixes.Stage) -> None:
    model = starved.model
    prompts = [mixes.TEXT[:5], mixes.TEXT[3:12], mixes.TEXT[7:10]]
    reads = [
        Read("layers.0.layer_output", "generated"),
        Read("layers.1.layer_output", "all"),
        Read("logits"),
    ]
    whole = model.run(prompts, reads=reads, max_tokens=8, ignore_eos=True)
    for ends in ([0, 3, 6], [0, 0, 0]):
        stops = [tokens[end] for tokens, end in zip(whole.tokens, ends, strict=True)]
        found = model.run(prompts, reads=reads, max_tokens=8, ignore_eos=True, stop_token_ids=stops)
        for index, prompt in enumerate(prompts):
            tokens = whole.tokens[index]
            count = next(n for n, token in enumerate(tokens, 1) if token in stops)
            assert found.tokens[index] == tokens[:count]
            for read, lengths in zip(
                reads, (count - 1, len(prompt) + count - 1, count), strict=True
            ):
                rows = found[read.value][index]
                assert len(rows) == lengths
                if lengths:
                    assert relative_error(rows, whole[read.value][index][:lengths]) < CLOSE


def test_what_is_read_of_steps_that_no_prompt_makes_is_nothing(starved: mixes.Stage) -> None:
    prompt = mixes.TEXT[:5]
    (first, *_) = starved.model.run([prompt]).tokens[0]
    reads = [Read("layers.0.layer_output", "generated"), Read("logits", steps=4)]
    found = starved.model.run([prompt], reads=reads, max_tokens=8, stop_token_ids=[first])
    assert [len(found[read.value][0]) for read in reads] == [0, 0]


def test_many_prompts_are_each_edited_at_every_block(starved: mixes.Stage) -> None:
    model = starved.model
    prompts = [[5, 6, 7 + index % 200] for index in range(600)]
    edit = Add("layers.*.layer_output", torch.randn(64, generator=torch.manual_seed(0)))
    how = {"reads": [Read("layers.1.layer_output")], "edits": [edit]}
    found = model.run(prompts, **how, progress=False)["layers.1.layer_output"]
    assert relative_error(found[200:], found[:200].repeat(2, 1)) < CLOSE
    few = model.run(prompts[:200], **how, progress=False)["layers.1.layer_output"]
    assert relative_error(found[:200], few) < CLOSE
