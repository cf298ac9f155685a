"""Runs a request's block in the worker, isolated from all other requests.

Every block of every request runs on the worker's one thread, beside a forward that they all share.
`RequestBlock` is nnsight's mediator with what that needs: what a block raises ends its own request
and is sent to the client with the user's line; thread state that it switches is its own; a value
that does not fit is refused in the block that wrote it; and the block of a request that vLLM
preempted and recomputes sees the rows it would have seen without that.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

from greenlet import GreenletExit
from nnsight.intervention.interleaver import Event, Mediator, Pending

from nnterp.engines.vllm.envoys.adapter import StepContent
from nnterp.engines.vllm.worker.batcher import RefusedSplice, RowBatcher
from nnterp.engines.vllm.worker.captured import CapturedObjects
from nnterp.engines.vllm.worker.handles import PrivateHandle
from nnterp.engines.vllm.worker.random_state import random_state, set_random_state
from nnterp.engines.vllm.worker.request_state import RequestState
from nnterp.engines.vllm.worker.thread_state import thread_state
from nnterp.tracing.open_values import OpenValues
from nnterp.tracing.steps import end_loop, raise_in
from nnterp.tracing.swap import TAKEN


class BlockEnded(Exception):
    """Raised for a block that asked the process to end, which ends its request only."""


class Names(dict[str, Any]):
    """Holds the names that a block binds, over the globals it was written among.

    nnsight's own namespace also shares each binding with the blocks written beside it, in Python
    code; here there are no such blocks.
    """

    def __init__(self, own: Mapping[str, Any], outer: Mapping[str, Any]) -> None:
        super().__init__(own)
        self._outer = outer

    def __missing__(self, name: str) -> Any:
        return self._outer[name]


class RequestBlock(Mediator):
    """Runs one request's block, as an nnsight mediator isolated from other requests.

    Attributes:
        state: What the worker keeps of the block.
        transform: The open values or the handle whose edits `flush` puts into the model, or None.
        pending: What the block waits for, or None.
        iteration: Which occurrence of a location the block wants; None for the next.
    """

    state: RequestState
    transform: Any
    pending: Any
    iteration: int | None

    def __init__(
        self, code: CodeType, glbls: dict[str, Any], lcls: dict[str, Any], state: RequestState
    ) -> None:
        super().__init__(code, glbls, {})
        self.lcls = Names(lcls, glbls)
        self.state = state

    @classmethod
    def convert(cls, mediator: Mediator, file: str) -> None:
        """Turn a mediator that nnsight built for a request into a `RequestBlock`, in place.

        Args:
            mediator: The mediator.
            file: Where the user wrote the block.
        """
        mediator.__class__ = cls
        mediator.state = RequestState(file, CapturedObjects({}))

    def _run(self) -> None:
        """Run the block, and raise `BlockEnded` in place of what would end the process."""
        try:
            super()._run()
        except (Exception, GreenletExit):
            raise
        except BaseException as error:
            # SystemExit and its like are not for the engine, which every request shares.
            raise BlockEnded(f"{type(error).__name__}: {error}") from error

    def flush(self) -> None:
        """Put the edits of what the block has open into the model; after a mere read do nothing."""
        held: Any = self.transform
        if isinstance(held, (OpenValues, PrivateHandle)) and not held.edited():
            self.transform = None
        else:
            super().flush()

    def switch(self, *args: Any) -> Any:
        """Run the block to its next wait, and return what it waits for."""
        return self._take_turn(super().switch, *args)

    def end_loop(self) -> None:
        """End the loop over steps that the block waits in, if any, after its request is over."""
        end_loop(self, self._refuse)

    def _take_turn(self, run: Callable[..., Any], *args: Any) -> Any:
        """Call ``run``, which runs the block on, in its own thread state, not the forward's."""
        state, interleaver = self.state, self.interleaver
        if interleaver.guards_random:
            random = random_state()
            if state.own_random is not None:
                set_random_state(state.own_random)
        outer = interleaver.outer
        state.turn.begin(thread_state() if outer is None else outer)
        try:
            return _in_a_shared_step(run(*args))
        finally:
            state.turn.end()
            if interleaver.guards_random:
                state.own_random = random_state()
                set_random_state(random)

    def handle(self, provider: str, value: Any) -> Any:
        """Answer all that the block asks of ``provider``, which the forward has reached.

        Args:
            provider: The location.
            value: What arrived there.

        Returns:
            What the model goes on with.
        """
        occurrence = self.occurrence(provider)
        while (
            (pending := self.pending) is not None
            and pending.provider == provider
            and pending.iteration == occurrence
        ):
            if self.iteration:
                self.iteration = None
            if pending.event is Event.VALUE:
                self._hand_over(pending, self.batcher.with_edits_of(self.batch_group, value))
            else:
                value = self._put_back(pending, value)
        return value

    def _hand_over(self, pending: Pending, content: Any) -> None:
        """Give the block its own part of ``content``, and run it to its next wait."""
        if self.state.waits_for_value:
            # A standard value cuts its request's rows out of the step's content by itself.
            self.pending = self.switch(StepContent(content, self))
            return
        handed = PrivateHandle(
            pending.provider, pending.iteration, self.batcher, content, self.batch_group
        )
        self.transform = handed
        self.pending = self.switch(handed.private)

    def _put_back(self, pending: Pending, content: Any) -> Any:
        """Return ``content`` with what the block swaps in for its own part of it."""
        # Edits of logits and samples end in a token, which the request keeps; other edits may end
        # in the KV cache.
        self.state.edited |= not pending.provider.endswith((".logits", ".samples"))
        if pending.value is TAKEN:
            self.pending = self.switch()
            return content
        try:
            content = self.batcher.widen(content, self.batch_group, pending.value)
        except RefusedSplice as refused:
            self.pending = self._refuse(ValueError(f"{pending.provider} {refused}"))
        else:
            self.pending = self.switch()
        return content

    @property
    def batcher(self) -> RowBatcher:
        """Return the batcher that cuts this request's rows out of a step."""
        return self.interleaver.batcher

    def _refuse(self, error: BaseException) -> Any:
        """Raise ``error`` where the block is waiting, and return what it waits for next."""
        return self._take_turn(raise_in, self, error)

    def end(self, error: Exception) -> None:
        """End the block, and with it its request, with ``error``, whatever the block catches."""
        self.exception = error
        self.pending = None
        try:
            self._refuse(error)
        except Exception as raised:
            self.exception = raised
        if self.alive:
            self._refuse(GreenletExit())


def _in_a_shared_step(pending: Any) -> Any:
    """Return what a block waits for, with a skip of a module as a swap of the module's output.

    Other requests of the step need the module's call.
    """
    if pending is None or pending.event is not Event.SKIP:
        return pending
    output = f"{pending.provider.removesuffix('.skip')}.output"
    return pending._replace(event=Event.SWAP, provider=output)
