"""Requests that end as requests do on a shared engine: evicted, aborted, cancelled, mixed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import nnsight
import pytest
import torch

import apart
import checkpoints
from conftest import TINY_ENGINE
from nnterp.tools.checking.compare import relative_error

PROMPTS = [checkpoints.PROMPT[start:] + checkpoints.PROMPT[:start] for start in range(3)]
LONG = {"temperature": 0.0, "max_tokens": 30, "ignore_eos": True}


@pytest.fixture(scope="module")
def starve(tiny_folder: Callable[[str], Path], keep: Callable[[Any], Any]) -> Callable[[str], Any]:
    """An engine with cache for two of three requests that grow past a block each."""
    from nnterp import StandardizedVLLM

    block = 2 * 2 * 2 * 32 * 4 * 32  # layers, key and value, heads, width, bytes, tokens
    arguments = {**TINY_ENGINE, "kv_cache_memory_bytes": 5 * block, "block_size": 32}
    started: dict[str, Any] = {}

    def start(name: str) -> Any:
        if name not in started:
            path = str(tiny_folder(name))
            started[name] = keep(StandardizedVLLM(path, dispatch=True, **arguments))
        return started[name]

    return start


@pytest.fixture
def starved(starve: Callable[[str], Any]) -> Any:
    return starve("llama")


@pytest.fixture
def evictions(starved: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    return watch_evictions(starved, monkeypatch)


def watch_evictions(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The requests that ``model`` evicts from now on, as they are."""
    scheduler = model.vllm_entrypoint.llm_engine.engine_core.engine_core.scheduler
    evicted: list[str] = []
    real = scheduler._preempt_request

    def preempt(request: Any, *args: Any, **kwargs: Any) -> Any:
        evicted.append(request.request_id)
        return real(request, *args, **kwargs)

    monkeypatch.setattr(scheduler, "_preempt_request", preempt)
    return evicted


def read_every_step(model: Any) -> tuple[list[Any], list[Any]]:
    with model.trace() as tracer:
        streams = nnsight.save([None] * 3)
        for index, prompt in enumerate(PROMPTS):
            with tracer.invoke(prompt, **LONG):
                rows = []
                for _ in tracer.iter[:30]:
                    rows.append(model.layers[1].layer_output)
                streams[index] = rows
                result = tracer.result.save()
    return streams, [list(one.outputs[0].token_ids) for one in result]


def test_an_evicted_request_reads_what_it_would_have_read(
    starved: Any, evictions: list[str], engine: Callable[[str], Any]
) -> None:
    streams, tokens = read_every_step(starved)
    assert evictions, "nothing was evicted"
    expected, expected_tokens = read_every_step(engine("llama"))
    assert tokens == expected_tokens
    for rows, others in zip(streams, expected, strict=True):
        assert [row.shape for row in rows] == [other.shape for other in others]
        gaps = [relative_error(row, other) for row, other in zip(rows, others, strict=True)]
        assert max(gaps) < 1e-5
    assert starved.vllm_entrypoint.collective_rpc("nnsight_request_count") == [0]


def test_an_evicted_request_that_was_edited_is_refused_and_the_others_are_not(
    starved: Any, evictions: list[str], engine: Callable[[str], Any]
) -> None:
    def run(model: Any) -> tuple[list[Any], str | None]:
        said = None
        ended = None
        try:
            with model.trace() as tracer:
                ended = nnsight.save([None] * 3)
                for index, prompt in enumerate(PROMPTS):
                    with tracer.invoke(prompt, **LONG):
                        model.layers[0].layer_output[:] *= 1.5
                        for _ in tracer.iter[:30]:
                            last = model.layers[1].layer_output
                        ended[index] = last
        except RuntimeError as error:
            said = str(error)
        return ended, said

    ended, said = run(starved)
    assert evictions, "nothing was evicted"
    assert said is not None
    assert said.startswith("Preempted: vLLM ran out of cache and evicted this request")
    expected, nothing = run(engine("llama"))
    assert nothing is None
    survived = [index for index in range(3) if ended[index] is not None]
    assert survived
    for index in survived:
        assert relative_error(ended[index], expected[index]) < 1e-5
    assert starved.vllm_entrypoint.collective_rpc("nnsight_request_count") == [0]


def by_value(block: Any) -> None:
    block.layer_output[:, -1] *= 1.5


def by_assignment(block: Any) -> None:
    block.layer_output = block.layer_output * 1.5


def through_nnsights_own_handle(block: Any) -> None:
    output = block.output
    (output if isinstance(output, torch.Tensor) else output[0]).mul_(1.5)


def by_nnsights_own_assignment(block: Any) -> None:
    output = block.output
    pair = isinstance(output, tuple)
    block.output = (output[0] * 1.5, *output[1:]) if pair else output * 1.5


def by_skipping(block: Any) -> None:
    entering = block.layer_input
    pair = block.stream == "two addends"
    block.skip((torch.zeros_like(entering[0]), entering[0].clone()) if pair else entering[0])


@pytest.mark.parametrize("name", ["llama", "gpt2"])
@pytest.mark.parametrize(
    "edit",
    [
        by_value,
        by_assignment,
        through_nnsights_own_handle,
        by_nnsights_own_assignment,
        by_skipping,
    ],
)
def test_each_of_several_that_edit_one_place_is_told_when_it_is_evicted(
    name: str,
    edit: Callable[[Any], None],
    starve: Callable[[str], Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Also the later ones, whose rows go into the copy that the first one's edit made."""
    model = starve(name)
    evicted = watch_evictions(model, monkeypatch)
    ended = None
    with pytest.raises(RuntimeError, match="Preempted: vLLM ran out of cache"):
        with model.trace() as tracer:
            ended = nnsight.save([None] * 3)
            for index, prompt in enumerate(PROMPTS):
                with tracer.invoke(prompt, **LONG):
                    edit(model.layers[0])
                    for _ in tracer.iter[:30]:
                        last = model.layers[1].layer_output
                    ended[index] = last
    assert evicted, "nothing was evicted"
    assert ended.count(None) == len(set(evicted))


CANCELLED = """
import asyncio
from nnterp import StandardizedVLLM

async def main():
    model = StandardizedVLLM({path!r}, dispatch=True, mode="async", **{engine!r})

    def start(prompt, tokens):
        with model.trace(prompt, temperature=0.0, max_tokens=tokens, ignore_eos=True) as tracer:
            for _ in tracer.iter[:tokens]:
                stream = model.layers[1].layer_output.save()
        return tracer.backend

    running = asyncio.Event()

    async def killed():
        async for output in start({prompt!r}, 40):
            running.set()
            await asyncio.sleep(0)

    async def drained(backend):
        return await backend

    doomed = asyncio.create_task(killed())
    good = asyncio.create_task(drained(start({prompt!r}, 8)))
    await running.wait()
    doomed.cancel()
    try:
        await doomed
    except asyncio.CancelledError:
        print("cancelled")
    last = await good
    print(len(last.outputs[0].token_ids), tuple(last.saves["stream"].shape))

    stream = start({prompt!r}, 40)
    iterator = stream.__aiter__()
    await iterator.__anext__()
    await iterator.aclose()

    again = await start({prompt!r}, 2)
    print(tuple(again.saves["stream"].shape))

    kept = []
    with model.trace({prompt!r} * 2, temperature=0.0, max_tokens=1) as tracer:
        kept.append(model.layers[0].layer_output)
        model.layers[0].layer_output[:] *= -2.0
    edited = await tracer.backend
    print(len(kept), tuple(kept[0].shape), edited.saves)
    (plain,) = await model.generate({{"prompt_token_ids": {prompt!r} * 2}}, max_tokens=1)
    (same,) = await model.generate({{"prompt_token_ids": {prompt!r} * 2}}, max_tokens=1)
    print("cached", plain.num_cached_tokens, same.num_cached_tokens)
    for _ in range(50):
        left = max(await model.vllm_entrypoint.collective_rpc("nnsight_request_count"))
        if not left:
            break
        await asyncio.sleep(0.1)
    print("left", left)
    model.vllm_entrypoint.shutdown()

if __name__ == "__main__":
    asyncio.run(main())
"""


def test_an_async_engine_keeps_requests_apart_and_nothing_behind(
    tiny_folder: Callable[[str], Path],
) -> None:
    source = CANCELLED.format(
        path=str(tiny_folder("llama")),
        engine={**TINY_ENGINE, "enable_prefix_caching": True, "block_size": 32},
        prompt=checkpoints.PROMPT,
    )
    printed = apart.run(["-c", source]).splitlines()
    cancelled, good, again, edited, cached, left = printed[-6:]
    assert (cancelled, good, again) == ("cancelled", "8 (1, 1, 64)", "(1, 1, 64)")
    assert edited == "1 (1, 40, 64) {}"
    assert cached == "cached 0 32"
    assert left == "left 0"


def test_a_blocks_own_draws_are_not_the_engines(engine: Callable[[str], Any]) -> None:
    model = engine("llama")
    settings = {"temperature": 1.0, "max_tokens": 8, "ignore_eos": True}

    def sampled(draws: bool) -> tuple[list[int], Any]:
        torch.manual_seed(7)
        noise = None
        with model.trace() as tracer:
            with tracer.invoke(PROMPTS[0], **settings):
                result = tracer.result.save()
            with tracer.invoke(PROMPTS[1], **settings):
                noise = nnsight.save([])
                if draws:
                    torch.manual_seed(3)
                for _ in tracer.iter[:8]:
                    model.layers[0].layer_output.sum()
                    if draws:
                        noise.append(torch.randn(4))
        return list(result.outputs[0].token_ids), noise

    quiet, _ = sampled(draws=False)
    loud, noise = sampled(draws=True)
    assert quiet == loud
    torch.manual_seed(3)
    assert torch.equal(torch.stack(noise), torch.stack([torch.randn(4) for _ in range(8)]))
