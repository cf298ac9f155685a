"""Calls that a block makes of the engine's modules, on rows of its own.

vLLM's kernels trust their models. A linear layer packed for a CPU writes beyond its output
for rows wider than its own, and takes numbers of another dtype for its own: so here the rows
are looked at first, of every linear layer that such a call reaches.
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
    """While this is entered, ``module``, at ``path``, refuses rows that are not its kind.

    Raises:
        Unavailable: vLLM does not let it be called.
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
    """The check of each linear layer in ``module``, by its name in it."""
    from vllm.model_executor.layers.linear import LinearBase

    for name, within in module.named_modules():
        # One with adapters runs the layer it is around without calling it.
        linear = getattr(within, "base_layer", within)
        if isinstance(linear, LinearBase):
            yield name, partial(_check, f"{path}.{name}" if name else path, linear)


def _check(
    path: str, linear: Any, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a linear layer's call, which a kernel can be given."""

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
