"""Checks the calls that a block makes of the engine's modules, on rows of its own.

vLLM's kernels trust their models. A linear layer packed for a CPU writes beyond its output when
rows are wider than its own, and reads numbers of another dtype as its own. So the rows of every
linear layer that such a call reaches are checked here first.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from torch import Tensor, nn

from nnterp.errors import Unavailable


@contextlib.contextmanager
def checked(path: str, module: nn.Module) -> Iterator[None]:
    """Make ``module``, at ``path``, refuse rows that its linear layers do not take, while entered.

    Args:
        path: The module's path, for messages.
        module: The module that a block calls.

    Raises:
        Unavailable: vLLM does not let the module be called.
        ValueError: Rows of another width or dtype reach one of the linear layers.
    """
    from vllm.model_executor.layers.vocab_parallel_embedding import ParallelLMHead

    if isinstance(module, ParallelLMHead):
        raise Unavailable(
            f"{path} is no module to call in vLLM; model.project_on_vocab(stream) gives the logits"
        )
    with contextlib.ExitStack() as stack:
        for name, check in _checks(path, module):
            within = module.get_submodule(name)
            hook = within.register_forward_pre_hook(check, with_kwargs=True)
            stack.callback(hook.remove)
        yield


def _checks(path: str, module: nn.Module) -> Iterator[tuple[str, Callable[..., Any]]]:
    """Yield the check of each linear layer in ``module``, with the layer's name in it."""
    from vllm.model_executor.layers.linear import LinearBase

    for name, within in module.named_modules():
        # A layer with LoRA adapters runs the layer that it wraps without calling it.
        linear = getattr(within, "base_layer", within)
        if isinstance(linear, LinearBase):
            yield name, partial(_check, f"{path}.{name}" if name else path, linear)


def _check(
    path: str, linear: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return the arguments of a linear layer's call; refuse those that its kernel does not take."""

    def accepted(rows: Any) -> Any:
        if not isinstance(rows, Tensor):
            return rows
        split = getattr(linear, "input_is_parallel", False)
        width = linear.input_size_per_partition if split else linear.input_size
        if rows.shape[-1:] != (width,) or rows.dtype != linear.params_dtype or rows.is_meta:
            raise ValueError(
                f"{path} takes rows of {width} features in {linear.params_dtype}, and was given "
                f"{tuple(rows.shape)} in {rows.dtype}{' without values' if rows.is_meta else ''}"
            )
        return rows.contiguous()

    return tuple(map(accepted, args)), {name: accepted(rows) for name, rows in kwargs.items()}
