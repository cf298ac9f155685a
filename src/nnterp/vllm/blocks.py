"""A request's block in the worker, kept to its own request.

Every block of every request runs on the worker's one thread, beside a forward they all
share. `RequestBlock` is nnsight's mediator with the walls that takes: what a block raises
ends its own request and comes home with the user's line; what it switches in the thread is
its own; a value that does not fit is refused in the block that wrote it;
and a request that vLLM evicted and recomputes sees the rows it would have seen.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any, ClassVar

import greenlet
import nnsight
import torch
import vllm
from greenlet import GreenletExit
from nnsight.intervention.interleaver import Event, Mediator, Pending

import nnterp

from ..steps import end_loop, raise_in
from ..visit import Visit
from .rows import Handed, PrivateRows, RefusedSplice, RowBatcher, Step
from .saved import Saved
from .surroundings import Surroundings
from .thread_state import Turn, state


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
        file: Where the user wrote it.
        cached_tokens: How many of the request's tokens this step does not run.
        steps: How many steps the request has been in.
        edited: Whether the block has changed anything the cache may hold.
        adapter: The LoRA adapter its request is for, by vLLM's number, or 0.
        saved: What it has saved.
        surroundings: The objects around it, as they arrived; none for an installed edit, whose
            requests share them.
    """

    file = "<block>"
    cached_tokens = 0
    steps = 0
    edited = False
    adapter = 0
    transform: Any
    pending: Any
    iteration: int | None
    own_random: list[torch.Tensor] | None = None
    surroundings = Surroundings({})

    #: Whether a request of this step draws its token from the thread's own generators.
    #: Only then must a block's draws be kept from them, which costs each wait some copies.
    guard_random: ClassVar[bool] = False

    def __init__(self, code: CodeType, glbls: dict[str, Any], lcls: dict[str, Any]) -> None:
        super().__init__(code, glbls, {})
        self.lcls = Names(lcls, glbls)
        self.turn = Turn()
        self.saved = Saved()

    @classmethod
    def adopt(cls, mediator: Mediator, file: str) -> None:
        """Turn a mediator nnsight built for a request into one of these."""
        mediator.__class__ = cls
        mediator.file = file
        mediator.turn = Turn()
        mediator.saved = Saved()

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
        if isinstance(held, (Visit, Handed)) and not held.edited():
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
        if self.guard_random:
            random = _random_state()
            if self.own_random is not None:
                _set_random_state(self.own_random)
        outer = self.interleaver.outer
        self.turn.begin(state() if outer is None else outer)
        try:
            return _in_a_shared_step(run(*args))
        finally:
            self.turn.end()
            if self.guard_random:
                self.own_random = _random_state()
                _set_random_state(random)

    def handle(self, provider: str, value: Any) -> Any:
        """Answer what the block asks of this visit of ``provider``; what the model goes on with."""
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
        if isinstance(pending.value, PrivateRows):
            # A standard value takes its request's rows out of the step's for itself.
            self.pending = self.switch(Step(content, self))
            return
        handed = Handed(
            pending.provider, pending.iteration, self.batcher, content, self.batch_group
        )
        self.transform = handed
        self.pending = self.switch(handed.private)

    def _put_back(self, pending: Pending, content: Any) -> Any:
        """``content`` with what the block swaps in for its own part of it."""
        # Logits and samples end in a token, which the request keeps; nothing else does.
        self.edited |= not pending.provider.endswith((".logits", ".samples"))
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


def _generators() -> list[torch.Generator]:
    """The generators that torch draws from when it is given none."""
    if not torch.cuda.is_available():
        return [torch.default_generator]
    return [torch.default_generator, torch.cuda.default_generators[torch.cuda.current_device()]]


def _random_state() -> list[torch.Tensor]:
    return [generator.get_state() for generator in _generators()]


def _set_random_state(states: list[torch.Tensor]) -> None:
    for generator, drawn in zip(_generators(), states, strict=True):
        generator.set_state(drawn)


#: A frame in formatted traceback text: its header, and the lines under it.
_FRAME = re.compile(r'^  File "(?P<file>[^"]+)", line (?P<line>\d+), in (?P<name>.+)$')

#: The folders of the packages whose frames say nothing about what the user wrote.
_MACHINERY = tuple(
    f"{folder}{os.sep}"
    for package in (greenlet, nnsight, nnterp, torch, vllm)
    for folder in package.__path__
)


def own_frames(traceback: str, file: str) -> str:
    """The user's frames of formatted traceback text, the block's under the file it is from."""
    kept: list[str] = []
    wanted = False
    for line in traceback.splitlines():
        header = _FRAME.match(line)
        if header is not None:
            name = header["file"]
            in_block = name.startswith("<edit-")
            # nnsight names a function it carried over "[name:line] file".
            origin = file if in_block else re.sub(r"^\[[^\]]*\] ", "", name)
            wanted = in_block or not origin.startswith((*_MACHINERY, "<frozen "))
            line = f'  File "{origin}", line {header["line"]}, in {header["name"]}'
        if wanted:
            kept.append(line)
    return "\n".join(kept)
