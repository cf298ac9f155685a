"""Ends loops over the steps of a generation where the run ends.

``for step in tracer.iter[:]`` has no end of its own, and ``tracer.iter[:50]`` may ask for more
steps than the run makes: either way the block comes to wait, in the loop's body, for a step that
is not made. Once the run is over such a loop ends there, as a loop over a list does at the list's
end, and the block goes on below it: ``tracer.result`` can be read there.

Code outside a loop cannot end it. So each loop over ``tracer.iter`` that a block writes is
compiled with a handler for `RunOver`, which `end_loop` raises where the block waits.
"""

from __future__ import annotations

import ast
import copy
import warnings
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any, TypeGuard

from greenlet import getcurrent
from nnsight.intervention.interleaver import EarlyStopException, Mediator, OutOfOrderError
from nnsight.intervention.iterator import Iterations
from nnsight.intervention.tracer import InterleavingTracer, Invoker

from nnterp.tracing.block_state import BlockState
from nnterp.tracing.running_block import in_block

_PIN = (
    "To hold a generation to a loop's count, pass min_new_tokens= on transformers, or min_tokens= "
    "or ignore_eos=True on vLLM"
)


class RunOver(OutOfOrderError):
    """Raised in a block that waits, in a loop over steps, for a step that its run did not make."""


class Steps(Iterations):
    """`Steps` is ``tracer.iter``: nnsight's iterator over steps, ending where the run ends."""

    def __getitem__(self, key: slice | int | list[int]) -> Steps:
        chosen = super().__getitem__(key)
        return Steps(chosen.start, chosen.stop, chosen.steps)

    def __iter__(self) -> Iterator[int]:
        state = BlockState.of(getcurrent().mediator())
        state.loops.append(self)
        try:
            for step in super().__iter__():
                if not state.run_is_over:
                    yield step
                if state.run_is_over:
                    break
        finally:
            state.loops.remove(self)

    @property
    def bounded(self) -> bool:
        """Return whether the loop was written with an end of its own."""
        return self.stop is not None or self.steps is not None


def with_ends(tree: ast.Module) -> ast.Module:
    """Return ``tree``, a block's code, with a handler for `RunOver` put into each loop over steps.

    ``tree`` itself is not changed: it is sent to a worker, and searched for saves.
    """
    if not any(_is_over_steps(node) for node in ast.walk(tree)):
        return tree
    tree = copy.deepcopy(tree)
    for loop in ast.walk(tree):
        if _is_over_steps(loop):
            ended = ast.ExceptHandler(copy.deepcopy(_RUN_OVER), None, [ast.Continue()])
            attempt = ast.Try(body=loop.body, handlers=[ended], orelse=[], finalbody=[])
            loop.body = [ast.copy_location(attempt, loop.body[0])]
    return ast.fix_missing_locations(tree)


#: An expression for `RunOver` that uses no name which the block's author may have bound.
_RUN_OVER = ast.parse(f"__import__({__name__!r}, fromlist=['RunOver']).RunOver", mode="eval").body


def _is_over_steps(node: ast.AST) -> TypeGuard[ast.For]:
    """Return whether ``node`` is a loop over ``tracer.iter[...]`` or ``tracer.all()``.

    Either may be wrapped, as in ``enumerate(tracer.iter[:])``.
    """
    if not isinstance(node, ast.For):
        return False
    attributes = (part for part in ast.walk(node.iter) if isinstance(part, ast.Attribute))
    return any(attribute.attr in ("iter", "all") for attribute in attributes)


def end_loop(block: Mediator, throw: Callable[[BaseException], Any]) -> None:
    """End the loop over steps in which ``block`` waits, if any, now that its run is over.

    Args:
        block: The block.
        throw: Raises an error where the block waits, and returns what it waits for next.
    """
    state, pending = BlockState.of(block), block.pending
    if not (state.loops and block.alive and pending is not None and pending.provider):
        return
    if pending.provider != "result" and block.iteration == 0:
        return  # the run never reached it in its first step
    state.run_is_over = True
    if pending.provider == "result":
        return  # the run is yet to give it
    loop = state.loops[-1]
    over = RunOver(f"{pending} was asked for, and the run was over")
    block.pending = None
    try:
        block.pending = throw(over)
    except EarlyStopException:
        pass  # there is no more to stop
    except RunOver as thrown:
        if thrown is not over:
            raise
        state.messages.append(
            f"the loop asked for a step the run did not make, at {pending}, and the rest of the "
            "block was not done: what it saved is kept. A loop that is written in the block "
            "itself, as `for step in tracer.iter[...]`, ends with the run; of one in a function or "
            "a comprehension, say where it ends, as in tracer.iter[:3]"
        )
    else:
        if loop.bounded:
            state.messages.append(
                f"the loop asked for a step the run did not make, at {pending}, and ended there: "
                f"what it saved is kept, and what follows it was done. {_PIN}"
            )


class StepTracer(InterleavingTracer):
    """A `StepTracer` is nnsight's tracer, except that its loops over steps end with the run."""

    @property
    def iter(self) -> Steps:
        """Return the steps of the run, to loop over: ``tracer.iter[:]``, ``tracer.iter[:3]``."""
        return Steps()

    def build(self, node: ast.With | ast.AsyncWith) -> ast.Module:
        return with_ends(super().build(node))

    def invoke(self, *inputs: Any, **settings: Any) -> Invoker:
        """Open a block for a further prompt.

        Args:
            *inputs: The prompt.
            **settings: What the run takes beside it.

        Raises:
            ValueError: The trace was given a prompt as well.
        """
        if in_block():
            raise ValueError(
                "tracer.invoke is for a trace without a prompt of its own, and this has one: open "
                "it as `with model.trace() as tracer:`, and give each prompt to an invoke"
            )
        return StepInvoker(self, *inputs, **settings)


class StepInvoker(Invoker):
    """A `StepInvoker` is nnsight's invoke, except that its loops over steps end with the run."""

    def build(self, node: ast.With | ast.AsyncWith) -> ast.Module:
        return with_ends(super().build(node))


def end_loops(blocks: Iterable[Mediator]) -> None:
    """End the loops over steps in which ``blocks`` wait in this process, once a run is over.

    The messages for the blocks' authors become warnings at the line of each block.
    """
    for block in blocks:
        end_loop(block, partial(raise_in, block))
        for message in BlockState.of(block).messages:
            line = block.node.lineno if block.node is not None else 1
            warnings.warn_explicit(message, UserWarning, block.code.co_filename, line)


def raise_in(block: Mediator, error: BaseException) -> Any:
    """Raise ``error`` where ``block`` waits, and return what it waits for next."""
    worker = block.worker
    assert worker is not None
    worker.parent = getcurrent()
    try:
        return worker.throw(error)
    except BaseException as raised:
        # The traceback is kept as the block's own, before the code that runs it adds frames.
        if not hasattr(raised, "__intervention_tb__"):
            raised.__intervention_tb__ = raised.__traceback__  # type: ignore[attr-defined]
        raise
