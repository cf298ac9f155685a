"""A request's block in the worker, kept to its own request.

Every block of every request runs on the worker's one thread, beside a forward they all
share. `RequestBlock` is nnsight's mediator with the walls that takes: what a block raises
ends its own request and comes home with the user's line; what it switches in the thread is
its own; a value that does not fit is refused in the block that wrote it;
and a request that vLLM evicted and recomputes sees the rows it would have seen.
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


class BlockEnded(Exception):
    """A block asked the process to end; only its request does."""


class Names(dict[str, Any]):
    """The names a block binds, over the globals it was written among.

    nnsight's own namespace also tells the blocks written beside it of each, in Python; here
    there are none.
    """

    def __init__(self, own: Mapping[str, Any], outer: Mapping[str, Any]) -> None:
        super().__init__(own)
        self._outer = outer

    def __missing__(self, name: str) -> Any:
        return self._outer[name]


class RequestBlock(Mediator):
    """One request's block.

    Attributes:
        state: What is kept of it.
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
        """Turn a mediator that nnsight built for a request into one of these."""
        mediator.__class__ = cls
        mediator.state = RequestState(file, CapturedObjects({}))

    def _run(self) -> None:
        try:
            super()._run()
        except (Exception, GreenletExit):
            raise
        except BaseException as error:
            # SystemExit and its like are not for the engine every request shares.
            raise BlockEnded(f"{type(error).__name__}: {error}") from error

    def flush(self) -> None:
        """Put the edits of what the block has open into the model; of a mere read, nothing."""
        held: Any = self.transform
        if isinstance(held, (OpenValues, PrivateHandle)) and not held.edited():
            self.transform = None
        else:
            super().flush()

    def switch(self, *args: Any) -> Any:
        """Run the block to its next wait, which is given back."""
        return self._take_turn(super().switch, *args)

    def end_loop(self) -> None:
        """End the loop over steps that the block waits in, if it does, its request being over."""
        end_loop(self, self._refuse)

    def _take_turn(self, run: Callable[..., Any], *args: Any) -> Any:
        """``run`` the block on, in its own thread state and not in the forward's."""
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
        """Answer what the block asks of ``provider``, reached now; what the model goes on with."""
        occurrence = self.occurrence(provider)
        while (
            (pending := self.pending) is not None
            and pending.provider == provider
            and pending.iteration == occurrence
        ):
            if self.iteration:
                self.iteration = None
            if pending.event is Event.VALUE:
                self._hand_over(pending, value)
            else:
                value = self._put_back(pending, value)
        return value

    def _hand_over(self, pending: Pending, content: Any) -> None:
        """Give the block its own part of ``content``."""
        if self.state.waits_for_value:
            # A standard value takes its request's rows out of the step's for itself.
            self.pending = self.switch(StepContent(content, self))
            return
        handed = PrivateHandle(
            pending.provider, pending.iteration, self.batcher, content, self.batch_group
        )
        self.transform = handed
        self.pending = self.switch(handed.private)

    def _put_back(self, pending: Pending, content: Any) -> Any:
        """``content`` with what the block swaps in for its own part of it."""
        # Logits and samples end in a token, which the request keeps; nothing else does.
        self.state.edited |= not pending.provider.endswith((".logits", ".samples"))
        try:
            content = self.batcher.widen(content, self.batch_group, pending.value)
        except RefusedSplice as refused:
            self.pending = self._refuse(ValueError(f"{pending.provider} {refused}"))
        else:
            self.pending = self.switch()
        return content

    @property
    def batcher(self) -> RowBatcher:
        """What cuts this request's rows out of a step."""
        return self.interleaver.batcher

    def _refuse(self, error: BaseException) -> Any:
        """Raise ``error`` where the block is waiting; what it waits for next."""
        return self._take_turn(raise_in, self, error)

    def end(self, error: Exception) -> None:
        """End the block, and with it its request, with ``error``, whatever it catches."""
        self.exception = error
        self.pending = None
        try:
            self._refuse(error)
        except Exception as raised:
            self.exception = raised
        if self.alive:
            self._refuse(GreenletExit())


def _in_a_shared_step(pending: Any) -> Any:
    """What a block waits for; a skip as the swap it comes to where other requests need the call."""
    if pending is None or pending.event is not Event.SKIP:
        return pending
    output = f"{pending.provider.removesuffix('.skip')}.output"
    return pending._replace(event=Event.SWAP, provider=output)
