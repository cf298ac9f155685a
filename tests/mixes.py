"""Random mixes of requests in one engine: plain, traced, and edited or read as data.

A `Mix` is played step by step. It can be played again with some of its requests replaced by plain
ones that run as many tokens in each step, so that nothing else has a reason to move.
"""

from __future__ import annotations

import contextlib
import itertools
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

import nnsight
import torch
from torch import Tensor

import checkpoints
import programs
from nnterp import Add, Edit, ProjectOut, Read, Replace, Scale, SetCoefficient, Zero
from nnterp.collecting.selections import Kept

#: Those with a row for each head.
HEADED = tuple(
    f"self_attn.{name}"
    for name in (
        "attention_queries",
        "attention_keys",
        "attention_values",
        "attention_head_outputs",
    )
)

#: The values of a block by the names that an edit or a read gives.
NAMES = (
    "layer_input",
    *HEADED,
    "self_attn.attention_output",
    "mlp.mlp_output",
    "layer_output",
)

#: The prompts are pieces of this, so that they begin alike.
TEXT = checkpoints.PROMPT * 3

#: Vectors of these alone are as bad as they come.
BAD = (float("nan"), float("inf"), float("-inf"), -0.0)


@dataclass(frozen=True)
class Kind:
    """What the mixes of an engine are made of.

    Attributes:
        lengths: The least and the greatest length of a prompt.
        tokens: The least and the greatest number of tokens to generate.
        traces: Whether there are traced requests.
        functions: Whether functions read whole prompts.
        seeds: Whether requests have seeds. vLLM's CPU engine ends at one whose prompt it splits.
        adapters: The number of adapters, of which every request has one; 0 for none.
    """

    lengths: tuple[int, int] = (3, 20)
    tokens: tuple[int, int] = (2, 6)
    traces: bool = True
    functions: bool = True
    seeds: bool = True
    adapters: int = 0


@dataclass(frozen=True, eq=False)
class Member:
    """One request of a mix.

    Attributes:
        name: Its id.
        job: The job that it is of: `EDITED` has edits alone, `READ` has reads; None for no job.
        prompt: Its tokens.
        settings: Its sampling settings.
        arrives: The step before which it is added.
        leaves: The step before which it is aborted, or None.
        edits: Its edits.
        program: What its block does in every step, or None for no block.
        adapter: The number of its adapter, or None.
    """

    name: str
    job: str | None
    prompt: list[int]
    settings: Mapping[str, Any]
    arrives: int
    leaves: int | None = None
    edits: Sequence[Edit] = ()
    program: programs.Program | None = None
    adapter: int | None = None

    @property
    def plain(self) -> bool:
        return self.job is None and self.program is None


EDITED, READ = "edited", "read"


@dataclass(frozen=True)
class Mix:
    """Requests that run together.

    Attributes:
        members: The requests, in the order in which those of one step are added.
        reads: What the requests of `READ` read.
        seed: For what is sampled without a seed.
    """

    members: list[Member]
    reads: list[Read]
    seed: int

    def of_job(self, job: str) -> list[Member]:
        return [member for member in self.members if member.job == job]


@dataclass
class Played:
    """What came of a mix.

    Attributes:
        said: What each sequence of each request came to: tokens, text, why it ended, and the
            log-probabilities that it asked for.
        rows: What each request of `READ` read, by the value's name.
        saved: What each traced request saw in each step, or the error that ended its block.
        steps: What each step ran: the requests, each with its number of tokens.
        evicted: The requests that were evicted.
    """

    said: dict[str, dict[int, Any]] = field(default_factory=dict)
    rows: dict[str, dict[str, Tensor]] = field(default_factory=dict)
    saved: dict[str, Any] = field(default_factory=dict)
    steps: list[list[tuple[str, int]]] = field(default_factory=list)
    evicted: set[str] = field(default_factory=set)

    def tokens(self, name: str) -> list[int]:
        return self.said[name][0]["tokens"] if name in self.said else []


# -- drawing ---------------------------------------------------------------------------------


def draw(random: Random, model: Any, kind: Kind) -> Mix:
    """A mix of three to six requests, of which some share their edits."""
    tokens = {job: random.randint(*kind.tokens) for job in (EDITED, READ)}
    shared = draw_edits(random, model, None)
    members = []
    for index in range(random.randint(3, 6)):
        what = random.choice(["plain", "plain", EDITED, EDITED, READ, "both", "traced"])
        if what == "traced" and not kind.traces:
            what = EDITED
        job = {"both": READ, EDITED: EDITED, READ: READ}.get(what)
        settings = draw_settings(random, what)
        if not kind.seeds:
            settings.pop("seed", None)
        if kind.adapters:
            settings.pop("prompt_logprobs", None)  # which vLLM's CPU engine ends at
        settings["max_tokens"] = tokens[job] if job else random.randint(*kind.tokens)
        length = random.randint(*kind.lengths)
        start = random.choice([0, 0, 0, random.randrange(len(TEXT) - length)])
        prompt = TEXT[start : start + length]
        edits = ()
        if what in (EDITED, "both"):
            edits = shared if random.random() < 0.5 else draw_edits(random, model, prompt)
        program = None
        if what == "traced":
            numbers = programs.NOT_FINITE if random.random() < 0.2 else programs.FINITE
            program = programs.draw(random, numbers)
        arrives = random.choice([0, 0, 0, 1, 2, 4])
        stays = random.choice([*[None] * 5, 2, 4]) if what != "traced" else None
        members.append(
            Member(
                f"{index}.{what}",
                job,
                prompt,
                settings,
                arrives=arrives,
                leaves=None if stays is None else arrives + stays,
                edits=edits,
                program=program,
                adapter=random.randrange(kind.adapters) if kind.adapters else None,
            )
        )
    return Mix(members, draw_reads(random, kind), random.randrange(2**31))


def draw_settings(random: Random, what: str) -> dict[str, Any]:
    """How a request samples; all that is traced runs to its end, whatever its block does."""
    drawn: dict[str, Any] = {"temperature": 0.0, "ignore_eos": True}
    if random.random() < 0.5:
        drawn["logprobs"] = random.randint(0, 4)
    if random.random() < 0.4:
        drawn["temperature"] = random.choice([0.7, 1.5])
        if random.random() < 0.7:
            drawn["seed"] = random.randrange(1000)
    if what in ("plain", "traced") and random.random() < 0.2:
        drawn |= {"n": 2, "temperature": 0.9}
    elif what != "traced" and random.random() < 0.3:
        drawn |= {"ignore_eos": False, "stop": [random.choice("aeiou 0123")]}
    if what == "plain" and random.random() < 0.15:
        drawn["prompt_logprobs"] = 1
    return drawn


def draw_reads(random: Random, kind: Kind) -> list[Read]:
    """Some values at some positions; of each name one read."""
    words: list[Any] = ["last", "all", "prompt", "generated", "mean", 0, -1]
    if kind.functions:
        words.append(norm_of_the_last)
    names = random.sample(NAMES, k=random.randint(1, 3))
    reads = [Read(f"layers.{random.choice('01*')}.{name}", random.choice(words)) for name in names]
    return [*reads, Read("logits")]


def norm_of_the_last(value: Tensor) -> Tensor:
    return value.flatten(2)[0, -1].norm() if value.ndim < 4 else value.norm()


def draw_edits(
    random: Random,
    model: Any,
    prompt: list[int] | None,
    names: Sequence[str] = (*NAMES, "logits"),
    wild: float = 0.15,
) -> list[Edit]:
    """One to four edits.

    Args:
        random: Draws them.
        model: The model.
        prompt: The prompt that they are for; without one they are of positions that any has.
        names: The values to edit.
        wild: The share of edits with numbers that are not finite, and such.
    """
    return [draw_edit(random, model, prompt, names, wild) for _ in range(random.randint(1, 4))]


def draw_edit(
    random: Random, model: Any, prompt: list[int] | None, names: Sequence[str], wild: float
) -> Edit:
    name = random.choice(names)
    where = {"positions": draw_positions(random, prompt), "steps": draw_steps(random)}
    headed = name in HEADED
    if name == "logits":
        where["positions"], width = random.choice(["all", "last"]), model.vocab_size
    else:
        width = model.head_dim if headed else model.hidden_size
        name = f"layers.{random.choice('001*')}.{name}"
    if headed and random.random() < 0.5:
        count = model.num_kv_heads if name.endswith(("keys", "values")) else model.num_heads
        where["heads"] = random.choice([0, [-1], list(range(count))])
    draw = torch.Generator().manual_seed(random.randrange(2**31))
    vector = torch.randn(width, generator=draw)
    bad = random.random() < wild
    offset = torch.full((width,), random.choice(BAD)) if bad else vector
    factor = random.choice((*BAD, 0.0) if bad else programs.FINITE)
    positions = where["positions"]
    several = isinstance(positions, list) and not isinstance(positions[0], bool)
    if several and where["steps"] in (None, 0) and not headed:
        offset = torch.stack([offset, 2 * offset])
    kinds = {
        Add: lambda: Add(name, offset, factor, **where),
        Scale: lambda: Scale(name, factor, **where),
        ProjectOut: lambda: ProjectOut(name, vector, **where),
        SetCoefficient: lambda: SetCoefficient(name, vector, factor, **where),
        Replace: lambda: Replace(name, offset, **where),
        Zero: lambda: Zero(name, **where),
    }
    return kinds[random.choice(list(kinds))]()


def draw_positions(random: Random, prompt: list[int] | None) -> Any:
    several = [0, 2] if prompt is None else sorted(random.sample(range(len(prompt)), 2))
    drawn = random.choice(["all", "all", "prompt", "generated", "last", 1, -1, several, "mask"])
    if drawn != "mask":
        return drawn
    return "all" if prompt is None else [random.random() < 0.5 for _ in prompt]


def draw_steps(random: Random) -> Any:
    return random.choice([None, None, None, None, 0, 1, [0, 2], slice(1, None), slice(0, 2)])


# -- playing ---------------------------------------------------------------------------------


class Stage:
    """An engine that mixes are played on.

    Args:
        model: A `StandardizedVLLM` whose engine is in this process.
        adapters: The adapters that the requests' numbers mean.
    """

    def __init__(self, model: Any, adapters: Sequence[Any] = ()) -> None:
        self.model = model
        self.adapters = adapters
        self.engine = model.vllm_entrypoint.llm_engine
        core = self.engine.engine_core.engine_core
        self.scheduler = core.scheduler
        self.runner = core.model_executor.driver_worker.worker.model_runner

    def play(
        self,
        mix: Mix,
        blocks: Mapping[str, Any],
        special: Collection[str] | None = None,
        as_in: Played | None = None,
    ) -> Played:
        """Run a mix from an empty cache.

        Args:
            mix: The mix.
            blocks: The sampling params of the traced members, with their blocks, by name.
            special: The names of those that are traced, edited or read; None for all. The others
                are plain, and end where they did in ``as_in``.
            as_in: The mix as it was played before.
        """
        chosen = {member.name for member in mix.members if not member.plain}
        if special is not None:
            chosen &= set(special)
        jobs = {job: self._job(mix, job, chosen) for job in (EDITED, READ) if mix.of_job(job)}
        self.engine.reset_prefix_cache()
        torch.manual_seed(mix.seed)
        played = Played()
        with self._watched(played), contextlib.ExitStack() as stack:
            runs = {
                name: stack.enter_context(self.model._under_way(job)) for name, job in jobs.items()
            }
            self._steps(mix, blocks, chosen, as_in, runs, played)
        if READ in jobs:
            self._take_rows(mix, chosen, jobs[READ], runs[READ].rows, played)
        return played

    def _job(self, mix: Mix, job: str, chosen: set[str]) -> Any:
        """The job of this name, in which those that are not chosen have no edits."""
        members = mix.of_job(job)
        return self.model._job(
            [member.prompt for member in members],
            mix.reads if job == READ else [],
            [list(member.edits) if member.name in chosen else [] for member in members],
            members[0].settings["max_tokens"],
        )

    def _steps(
        self,
        mix: Mix,
        blocks: Mapping[str, Any],
        chosen: set[str],
        as_in: Played | None,
        runs: Mapping[str, Any],
        played: Played,
    ) -> None:
        """Step the engine until every member has come and gone."""
        last = max(member.arrives for member in mix.members)
        for step in itertools.count():
            for member in mix.members:
                if member.arrives == step:
                    prompt, params = self._request(mix, member, blocks, chosen, as_in, runs)
                    adapter = None if member.adapter is None else self.adapters[member.adapter]
                    self.engine.add_request(member.name, prompt, params, lora_request=adapter)
                if member.leaves == step:
                    self.engine.abort_request([member.name])
            if self.engine.has_unfinished_requests():
                for output in self.engine.step():
                    self._take(output, played)
            elif step >= last:
                return
            assert step < 300, "the mix does not end"

    def _request(
        self,
        mix: Mix,
        member: Member,
        blocks: Mapping[str, Any],
        chosen: set[str],
        as_in: Played | None,
        runs: Mapping[str, Any],
    ) -> tuple[Any, Any]:
        """The prompt and the sampling params of a member, or of the plain one in its place."""
        from vllm import SamplingParams

        tokens = {"prompt_token_ids": member.prompt}
        if member.plain:
            return tokens, SamplingParams(**member.settings)
        if member.name in chosen:
            if member.job is None:
                return tokens, blocks[member.name]
            index = mix.of_job(member.job).index(member)
            own = {key: value for key, value in member.settings.items() if key != "max_tokens"}
            run = runs[member.job]
            return run.prompt(index), run.params(index, **own)
        settings = {**member.settings, "ignore_eos": True, "stop": None}
        ended = as_in.said.get(member.name, {}) if as_in is not None else {}
        if len(ended) == 1 and ended[0]["ended"] is not None:
            settings["max_tokens"] = len(ended[0]["tokens"])
        if member.edits or member.program is not None:
            tokens["cache_salt"] = uuid.uuid4().hex
        return tokens, SamplingParams(**settings, skip_reading_prefix_cache=True)

    @staticmethod
    def _take(output: Any, played: Played) -> None:
        """Keep what an output says."""
        said = played.said.setdefault(output.request_id, {})
        for own in output.outputs:
            said[own.index] = {
                "tokens": list(own.token_ids),
                "text": own.text,
                "ended": own.finish_reason,
                "logprobs": _numbers(own.logprobs),
                "of the prompt": _numbers(output.prompt_logprobs),
                "cached": output.num_cached_tokens,
            }
        if output.finished and hasattr(output, "saves"):
            error = output.nnsight_error
            played.saved[output.request_id] = (
                error["message"] if error else [own.saves["found"] for own in output.outputs]
            )

    @staticmethod
    def _take_rows(mix: Mix, chosen: set[str], job: Any, rows: Any, played: Played) -> None:
        """Keep what each member read, of the tokens that it has run."""
        members = mix.of_job(READ)
        made = [len(played.tokens(member.name)) for member in members]
        each = zip(members, made, strict=True)
        run = [len(member.prompt) + count - 1 if count else 0 for member, count in each]
        for index, member in enumerate(members):
            if member.name not in chosen or not run[index]:
                continue
            own = played.rows[member.name] = {}
            for place, kept in job.wanted.items():
                if place in rows:
                    part = rows[place].split(kept.counts())[index]
                    is_kept = isinstance(kept, Kept)
                    own[str(place)] = part[: kept.counts_of(run)[index]] if is_kept else part

    @contextlib.contextmanager
    def _watched(self, played: Played) -> Iterator[None]:
        """Record what each step runs, and who is evicted."""
        schedule, preempt = self.scheduler.schedule, self.scheduler._preempt_request

        def scheduled(*args: Any, **kwargs: Any) -> Any:
            made = schedule(*args, **kwargs)
            spans = made.num_scheduled_tokens.items()
            played.steps.append([(name.rpartition("-")[0], tokens) for name, tokens in spans])
            return made

        def preempted(request: Any, *args: Any, **kwargs: Any) -> Any:
            played.evicted.add(request.request_id.rpartition("-")[0])
            return preempt(request, *args, **kwargs)

        self.scheduler.schedule, self.scheduler._preempt_request = scheduled, preempted
        try:
            yield
        finally:
            del self.scheduler.schedule, self.scheduler._preempt_request

    def unclean(self) -> set[int]:
        """The KV cache blocks with what is not finite, that are not to be cleared either."""
        cache = self.runner._edited_blocks
        count = self.runner.kv_cache_config.num_blocks
        found: set[int] = set()
        for tensor in cache._tensors():
            blocks = tensor.movedim(tensor.shape.index(count), 0).flatten(1)
            found.update((~blocks.isfinite()).any(1).nonzero().flatten().tolist())
        return found - cache._held

    def left(self) -> int:
        """How much of requests and runs is left in the worker and the engine."""
        requests = self.runner.nnsight_requests
        return (
            len(requests.requests)
            + len(requests.runs.under_way)
            + bool(requests.runs)
            + self.engine.get_num_unfinished_requests()
        )


def blocks_of(model: Any, mix: Mix) -> dict[str, Any]:
    """The sampling params of the traced members, with their blocks, by name."""
    members = [member for member in mix.members if member.program is not None]
    if not members:
        return {}
    taken: list[Any] = []

    def take(
        prompts: list[Any], params: list[Any], adapters: list[Any], **kwargs: Any
    ) -> list[Any]:
        model._attach_mediators(params, **kwargs)
        taken.extend(params)
        raise Taken

    model._call = take
    try:
        with model.trace() as tracer:
            found = nnsight.save([])
            for member in members:
                program, tokens = member.program, member.settings["max_tokens"]
                with tracer.invoke(member.prompt, **member.settings):
                    for _ in tracer.iter[:tokens]:
                        found.append(programs.perform(model, program))
    except Taken:
        pass
    finally:
        del model._call
    return {member.name: params for member, params in zip(members, taken, strict=True)}


class Taken(Exception):
    """Ends a trace whose requests are made, and not sent."""


def _numbers(logprobs: Any) -> list[Any]:
    """The log-probabilities of each token, by token."""
    return [
        {token: own.logprob for token, own in one.items()} if one else None
        for one in logprobs or ()
    ]


# -- comparing -------------------------------------------------------------------------------


def same(one: Any, other: Any) -> bool:
    """Whether two things are the same to the bit, tensors and numbers alike."""
    if isinstance(one, Tensor):
        return (
            one.shape == other.shape
            and one.dtype == other.dtype
            and torch.equal(
                one.contiguous().flatten().view(torch.uint8),
                other.contiguous().flatten().view(torch.uint8),
            )
        )
    if isinstance(one, Mapping):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and one != one:
        return bool(other != other)
    return bool(one == other)


def moved(mix: Mix, one: Played, other: Played, special: Collection[str]) -> list[str]:
    """What is not the same of the plain members and of those that are special in both."""
    found = [] if one.steps == other.steps else ["the steps"]
    for member in mix.members:
        name = member.name
        if member.plain or name in special:
            found += [
                f"{name}: {what}"
                for what, a, b in (
                    ("outputs", one.said.get(name), other.said.get(name)),
                    ("rows", one.rows.get(name), other.rows.get(name)),
                    ("saves", one.saved.get(name), other.saved.get(name)),
                )
                if not same(a, b)
            ]
    return found
