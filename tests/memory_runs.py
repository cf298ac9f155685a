"""A thousand traced requests, and the memory of the client and its worker meanwhile.

python memory_runs.py CHECKPOINT FILE JSON [REQUESTS]
"""

from __future__ import annotations

import json
import sys
from typing import Any

import numpy as np
import psutil

import checkpoints


def resident() -> dict[str, int]:
    """The resident bytes of this process, and of the largest it has started."""
    client = psutil.Process()
    started = [child.memory_info().rss for child in client.children(recursive=True)]
    return {"client": client.memory_info().rss, "worker": max(started, default=0)}


def request(model: Any, index: int) -> None:
    """One of a mix: all values read and some edited, several invokes, steps, a failure."""
    prompt = checkpoints.PROMPT[: 4 + index % 16]
    if index % 10 == 9:
        try:
            with model.trace(prompt, temperature=0.0, max_tokens=2):
                model.layers[0].layer_output = None
        except RuntimeError:
            return
    with model.trace(prompt, temperature=0.0, max_tokens=2, ignore_eos=True) as tracer:
        for _ in tracer.iter[:2]:
            queries = model.layers[0].self_attn.attention_queries.save()
            model.layers[0].layer_output[:, -1] *= 0.9
            stream = model.layers[1].layer_output.save()
            logits = model.logits.save()
    assert queries.shape[2] == stream.shape[1] == logits.shape[1] == 1


def slope(sizes: list[int], every: int) -> float:
    """Bytes a request, by least squares."""
    return float(np.polyfit(np.arange(len(sizes)) * every, sizes, 1)[0])


def measure(model: Any, requests: int, settled: int = 100, every: int = 10) -> dict[str, float]:
    """The slope of each process's resident memory after the first ``settled`` requests."""
    readings: dict[str, list[int]] = {"client": [], "worker": []}
    for index in range(requests):
        request(model, index)
        if index >= settled and index % every == 0:
            for name, size in resident().items():
                readings[name].append(size)
    return {name: slope(sizes, every) for name, sizes in readings.items()}


def main(path: str, to: str, arguments: str, requests: str = "1000") -> None:
    from nnterp import StandardizedVLLM

    model = StandardizedVLLM(path, dispatch=True, **json.loads(arguments))
    slopes = measure(model, int(requests))
    left = max(model.vllm_entrypoint.collective_rpc("nnsight_request_count"))
    with open(to, "w") as file:
        json.dump({**slopes, "left": left}, file)
    print(f"{slopes['client']:.0f} and {slopes['worker']:.0f} bytes a request, {left} left")


if __name__ == "__main__":
    main(*sys.argv[1:])
