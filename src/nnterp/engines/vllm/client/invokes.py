"""Checks the inputs of invokes, each of which is a request of its own on vLLM.

On transformers the invokes of a trace are the rows of one forward, and may wait for one another.
vLLM schedules each request by itself, perhaps in steps that the others have no part in, so no block
can wait for what another block has read; and a request is one sequence. The errors for code that
counts on either are raised here.
"""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NoReturn

import torch
from nnsight.modeling.processing import ROW_FIELDS
from nnsight.modeling.vllm.tracer import VLLMTracer

from nnterp.errors import did_you_mean
from nnterp.tracing.steps import StepTracer

_TWO_TRACES = (
    "on vLLM each invoke is a request of its own, which the engine runs when it sees fit, so "
    "nothing passes from one invoke to another. Run two traces: save the value in the first, and "
    "use it in the second like any variable"
)

#: The inputs of a model that are not made from its token ids.
_OWN_INPUTS = frozenset(ROW_FIELDS) - {"input_ids", "attention_mask", "special_tokens_mask"}

_UNDEFINED = re.compile(r"name '(\w+)' is not defined")


class RequestTracer(StepTracer, VLLMTracer):
    """Traces as nnsight's vLLM tracer does, whose invokes are requests, and refuses barriers."""

    def barrier(self, n: int) -> NoReturn:
        """Refuse a barrier, since requests cannot wait for one another.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError(f"tracer.barrier({n}) would wait for ever: {_TWO_TRACES}")


def with_inputs_first(
    inputs: tuple[Any, ...], settings: Mapping[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return a trace's or an invoke's arguments, the model's inputs among the positional ones.

    Args:
        inputs: The positional arguments.
        settings: The keyword arguments: sampling settings and, as transformers takes them,
            ``input_ids`` and ``attention_mask``.

    Returns:
        The positional arguments, and the keyword arguments that are left.

    Raises:
        TypeError: There are inputs that vLLM does not take, or named inputs without token ids.
    """
    settings = dict(settings)
    named = {name: settings.pop(name) for name in ROW_FIELDS if name in settings}
    given: dict[str, Any]
    if inputs and isinstance(inputs[0], Mapping):
        given = {**inputs[0], **named}
    elif inputs and named:
        given = {"input_ids": inputs[0], **named}
    else:
        given = named
    for name in sorted(_OWN_INPUTS & given.keys()):
        of_one_kind = name == "token_type_ids" and not torch.as_tensor(given[name]).any()
        if given[name] is not None and not of_one_kind:
            raise TypeError(
                f"{name} is no input of vLLM's, which runs a prompt from its token ids alone: "
                "pass input_ids, and attention_mask where some of them are padding"
            )
    if not named:
        return inputs, settings
    if isinstance(given.get("input_ids", ""), str):
        raise TypeError(f"{', '.join(named)} goes with a prompt's token ids: pass input_ids")
    return (given, *inputs[1:]), settings


@cache
def sampling_names() -> tuple[str, ...]:
    """Return the names of vLLM's sampling settings."""
    from vllm import SamplingParams

    return tuple(inspect.signature(SamplingParams).parameters)


def require_settings(settings: Mapping[str, Any], known: Sequence[str]) -> None:
    """Refuse keyword arguments that are not sampling settings.

    Args:
        settings: What a trace or an invoke was given beside its prompt.
        known: The names of the settings there are.

    Raises:
        TypeError: A name in ``settings`` is not in ``known``.
    """
    for name in settings:
        if name not in known:
            raise TypeError(
                f"{name!r} is no setting of vLLM's{did_you_mean(name, known)}. What trace and "
                "invoke take beside a prompt is what vllm.SamplingParams takes: temperature, "
                "max_tokens, ..."
            )


def require_one(prompts: Sequence[Any]) -> None:
    """Refuse any number of prompts but one, where one is expected.

    Raises:
        ValueError: There is not exactly one.
    """
    if len(prompts) != 1:
        raise ValueError(
            f"a request of vLLM's is one prompt, and here are {len(prompts)}: open `with "
            "model.trace() as tracer:` and in it a `with tracer.invoke(prompt):` for each. To "
            "read a few values of many prompts, model.collect(prompts, ...) is faster"
        )


def explain_undefined(blocks: Sequence[Any], outputs: Sequence[Any]) -> None:
    """Explain a NameError in one invoke for a name that another invoke binds.

    The explanation, that values do not pass from one invoke to another, is added to the error's
    message in place.

    Args:
        blocks: The trace's mediators, in the order of their requests.
        outputs: Each request's finished output, with what nnsight attached to it.
    """
    for block, output in zip(blocks, outputs, strict=True):
        error = getattr(output, "nnsight_error", None) or {}
        missing = _UNDEFINED.match(error.get("message", ""))
        if missing is None or error["type_name"] != "NameError":
            continue
        others = [other for other in blocks if other is not block]
        if any(missing[1] in _bound(other.node) for other in others):
            error["message"] += f"; another invoke binds it, and {_TWO_TRACES}"


def _bound(node: ast.AST) -> set[str]:
    """Return the names that the code under ``node`` binds."""
    return {
        name.id
        for name in ast.walk(node)
        if isinstance(name, ast.Name) and isinstance(name.ctx, ast.Store)
    }
