"""Begins a run in an engine's workers, makes the requests of its prompts, and ends it."""

from __future__ import annotations

import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import torch
from nnsight.intervention.errors import raise_deferred
from nnsight.intervention.serialization import dumps
from torch import Tensor

from nnterp.editing.request import Changes
from nnterp.engines.runs import Job
from nnterp.engines.vllm.client.engine import salted
from nnterp.engines.vllm.transport.in_graph import GraphEdits
from nnterp.engines.vllm.transport.keys import RUN_KEY
from nnterp.engines.vllm.transport.plan import Plan
from nnterp.vocabulary.names import Place


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
        self._edited = {prompt for own in job.changes.values() for prompt in own}

    def __enter__(self) -> EngineRun:
        job = self._job
        plan = Plan(
            {str(place): kept for place, kept in job.wanted.items()},
            {str(place): own for place, own in self._beside.items()},
            self._in_graph,
            [length.run for length in job.lengths],
            torch.cuda.is_available(),
        )
        self._engine.collective_rpc("begin_run", args=(self._id, dumps(plan)))
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> None:
        """End the run in the workers, and keep what it read unless it ends with an error.

        Raises:
            RuntimeError: Something failed in a worker; the message names the error.
        """
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
        left = prompts
        while left:
            ready = len(left)
            if self._in_graph.ranges:
                asked = (self._id, list(left))
                ready = min(self._engine.collective_rpc("arm_run", args=asked))
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
        return self._sampling(extra_args={RUN_KEY: [self._id, index]}, **settings)
