"""Run a fault between good requests, twice over, and harmless requests in its place.

    python fault_runs.py CHECKPOINT FILE JSON      # an engine apart, every fault

The good requests differ in length from the bad ones, so that rows in the wrong place show. Two
requests with one fault do the same thing to the same place.
"""

from __future__ import annotations

import json
import re
import sys
import warnings
from collections.abc import Mapping
from typing import Any

import nnsight
import torch

from faults import FAULTS, ONE_STEP, Fault

BEFORE = [9, 4, 201, 33, 7]
BAD = [5, 91, 17, 203, 44, 120, 8]
ALSO_BAD = [77, 3, 250, 61, 61, 9, 128]
AFTER = [61, 2, 5, 5, 140, 18, 77, 34, 90]

#: More requests at once than an engine of few blocks has blocks left.
NEXT = 8

#: The good requests outlast the bad one, so that they meet its end.
GOOD: Mapping[str, Any] = {"temperature": 0.0, "max_tokens": 6, "ignore_eos": True}


def harmless(model: Any, tracer: Any) -> None:
    return None


def batch(model: Any, fault: Fault | None, settings: Mapping[str, Any]) -> dict[str, Any]:
    """What the good requests get, and what is said of those between them."""
    act = fault.block if fault is not None else harmless
    error = None
    first = second = kept = None
    try:
        with warnings.catch_warnings(), model.trace() as tracer:
            with tracer.invoke(BEFORE, **GOOD):
                first = nnsight.save([])
                for _ in tracer.iter[:6]:
                    first.append(model.layers[0].self_attn.attention_queries)
                    model.layers[0].layer_output[:, -1] *= 1.25
                    first.append(model.layers[1].layer_output)
                    first.append(model.logits)
                    first.append(model.samples.clone())
            for bad in (BAD, ALSO_BAD):
                with tracer.invoke(bad, **settings):
                    kept = act(model, tracer)
                    nnsight.save(kept)
            with tracer.invoke(AFTER, **GOOD):
                second = nnsight.save([])
                for _ in tracer.iter[:6]:
                    switched = [torch.is_grad_enabled(), torch.get_default_dtype().itemsize]
                    switched += [torch.is_autocast_enabled(device) for device in ("cpu", "cuda")]
                    second.append(torch.tensor(switched))
                    second.append(model.layers[0].layer_input)
                    model.layers[1].mlp.mlp_output = model.layers[1].mlp.mlp_output * 0.5
                    second.append(model.layers[1].layer_output)
                    second.append(model.logits)
                    second.append(model.samples.clone())
    except RuntimeError as raised:
        error = str(raised)
    return {"first": first, "second": second, "error": error}


def outcome(model: Any, fault: Fault) -> dict[str, Any]:
    """A fault's run beside that of harmless requests, and the engine's state afterwards."""
    before = next_logits(model)
    beside_fault = batch(model, fault, fault.settings)
    after = next_logits(model)
    beside_harmless = batch(model, None, fault.harmless)
    count = model.vllm_entrypoint.collective_rpc("nnsight_request_count")
    return {
        "error": beside_fault["error"],
        "harmless_error": beside_harmless["error"],
        "served": [len(beside_fault[side] or ()) for side in ("first", "second")],
        "same": [_same(beside_fault[side], beside_harmless[side]) for side in ("first", "second")],
        "next": torch.equal(after, before),
        "left": max(count),
    }


def next_logits(model: Any) -> torch.Tensor:
    """What the engine makes of the next requests, which leave most of a block as they find it."""
    with model.trace(**ONE_STEP) as tracer:
        logits = nnsight.save([None] * NEXT)
        for row in range(NEXT):
            with tracer.invoke(BEFORE[:2]):
                logits[row] = model.logits
    return torch.cat(logits)


def wrong(fault: Fault, outcome: Mapping[str, Any]) -> str | None:
    """What an outcome shows that it must not, or None."""
    error = outcome["error"]
    if fault.said is None and error is not None:
        return f"it failed: {error}"
    if fault.said is not None and not re.match(fault.said, error or ""):
        return f"it said {error!r}"
    if error is not None and "1 more of the trace's requests failed" not in error:
        return f"the other one with the fault did not fail: {error!r}"
    if outcome["harmless_error"] is not None:
        return f"the harmless one failed: {outcome['harmless_error']}"
    if not all(outcome["served"]) or outcome["same"] != [True, True]:
        return f"the good requests got {outcome['served']}, the same: {outcome['same']}"
    if not outcome["next"]:
        return "the next request was not served what it was before"
    return f"the worker holds {outcome['left']} blocks" if outcome["left"] else None


def _same(found: Any, expected: Any) -> bool:
    return (
        found is not None
        and len(found) == len(expected)
        and all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
    )


def main(path: str, to: str, arguments: str) -> None:
    from nnterp import StandardizedVLLM

    model = StandardizedVLLM(path, dispatch=True, **json.loads(arguments))
    torch.save({name: outcome(model, fault) for name, fault in FAULTS.items()}, to)


if __name__ == "__main__":
    main(*sys.argv[1:])
