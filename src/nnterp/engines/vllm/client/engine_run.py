"""Begins a run in an engine's workers, makes the requests of its prompts, and ends it."""

from __future__ import annotations

import copy
import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from nnsight.intervention.errors import raise_deferred
from nnsight.intervention.serialization import dumps
from torch import Tensor

from nnterp.collecting.selections import Apply, Selection
from nnterp.editing.request import Changes
from nnterp.engines.runs import Job
from nnterp.engines.vllm.client.engine import salted
from nnterp.engines.vllm.transport.in_graph import GraphEdits
from nnterp.engines.vllm.transport.keys import RUN_KEY
from nnterp.engines.vllm.transport.packed_changes import pack_changes
from nnterp.engines.vllm.transport.plan import Plan
from nnterp.vocabulary.names import Place

#: The most bytes of a plan that are sent along with each request.
_SHORT = 1 << 13


class EngineRun:
    """An `EngineRun` is a job that is under way on an engine.

    It is a context manager: within, the workers know of the job, and make its edits and reads in
    the requests that name it. How the requests reach the engine is the caller's affair::

        with EngineRun(engine, job, sampling) as run:
            engine.add_request("0", run.prompt(0), run.params(0))
            while engine.has_unfinished_requests():
                engine.step()
        run.rows

    Args:
        engine: vLLM's synchronous engine.
        job: The job.
        sampling: Makes a request's sampling params of settings by name.
        in_graph: The changes that are made in the engine's compiled forward.
        beside: The other changes.

    Attributes:
        rows: What was kept at each place that a forward reached, once the run has ended.
    """

    def __init__(
        self,
        engine: Any,
        job: Job,
        sampling: Callable[..., Any],
        in_graph: GraphEdits,
        beside: Changes,
    ) -> None:
        self.rows: Mapping[Place, Tensor] = {}
        self._engine = engine
        self._job = job
        self._sampling = sampling
        self._in_graph = in_graph
        self._beside = beside
        self._id = uuid.uuid4().hex
        self._armed: set[int] = set()
        self._riding: bytes | None = None
        self._base: Any = None
        self._edited = {prompt for own in job.changes.values() for prompt in own}

    def __enter__(self) -> EngineRun:
        """Tell the workers of the run, or have its requests do so, if it reads or edits anything.

        Asking the engine takes longer than a short plan does as part of each request.
        """
        job = self._job
        self._base = self._sampling()
        if not (job.wanted or job.changes):
            return self
        plan = Plan(
            {str(place): kept for place, kept in job.wanted.items()},
            pack_changes({str(place): own for place, own in self._beside.items()}),
            self._in_graph,
            [length.run for length in job.lengths],
            _sees_gpu(),
        )
        packed = dumps(plan)
        if job.changes or len(packed) > _SHORT or any(map(_is_code, job.wanted.values())):
            asked = (self._id, packed, list(range(len(job.ids))))
            self._armed = set(range(min(self._engine.collective_rpc("begin_run", args=asked))))
        else:
            self._riding = packed
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        """End the run in the workers, and keep what it read unless it ends with an error.

        Raises:
            RuntimeError: Something failed in a worker; the message names the error.
        """
        if not (self._job.wanted or self._job.changes):
            return
        complete = kind is None
        answers = self._engine.collective_rpc("end_run", args=(self._id, complete))
        found: dict[str, Tensor] = {}
        for results, said in (pickle.loads(answer) for answer in answers if answer):
            raise_deferred(said)
            found |= results
        named = {str(place): place for place in self._job.wanted}
        self.rows = {named[name]: rows for name, rows in found.items()}

    def waves(self, prompts: Sequence[int]) -> Iterator[Sequence[int]]:
        """Yield ``prompts`` in parts, each of which can be run once the one before it is done."""
        if not self._in_graph.ranges:
            yield prompts
            return
        left = prompts
        while left:
            ready = next((i for i, own in enumerate(left) if own not in self._armed), len(left))
            if not ready:
                count = min(self._engine.collective_rpc("arm_run", args=(self._id, list(left))))
                if not count:
                    raise RuntimeError("another run holds all of the engine's slots for edits")
                self._armed = set(left[:count])
            yield left[:ready]
            left = left[ready:]

    def prompt(self, index: int) -> dict[str, Any]:
        """Return a prompt of the job as vLLM takes it."""
        prompt = {"prompt_token_ids": self._job.ids[index]}
        return salted(prompt) if index in self._edited else prompt

    def params(self, index: int, **settings: Any) -> Any:
        """Return the sampling params of the request of a prompt.

        Args:
            index: The prompt's index.
            **settings: Settings in place of the job's own.
        """
        params = self._sampling(**settings) if settings else copy.copy(self._base)
        if self._job.wanted or self._job.changes:
            own = [self._id, index] if self._riding is None else [self._id, index, self._riding]
            params.extra_args = {**(params.extra_args or {}), RUN_KEY: own}
        return params


@cache
def _sees_gpu() -> bool:
    """Return whether this process can open memory of a GPU; vLLM makes each look take a while."""
    return torch.cuda.is_available()


def _is_code(kept: Selection) -> bool:
    """Return whether a selection is the caller's code, which may not be there in the worker."""
    return isinstance(kept, Apply)
