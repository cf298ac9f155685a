"""Numbers sharp enough for finite differences: everything in float64, whatever a model asks for.

Norms, softmaxes and routers of transformers compute in float32, which leaves a difference of two
losses few digits.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from nnterp import StandardizedTransformer


class Sharp(TorchFunctionMode):
    """torch, which takes float32 for float64."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.Tensor.float:
            func = torch.Tensor.double
        if func is torch.full and isinstance(args[1], float):
            kwargs = {"dtype": torch.float64, **(kwargs or {})}
        args = tuple(_sharp(argument) for argument in args)
        kwargs = {name: _sharp(argument) for name, argument in (kwargs or {}).items()}
        return func(*args, **kwargs)


def _sharp(argument: Any) -> Any:
    return torch.float64 if argument is torch.float32 else argument


def load(path: Path, attention: str) -> StandardizedTransformer:
    """The checkpoint at ``path`` with its weights in float64, to be run under `Sharp`."""
    model = StandardizedTransformer(
        str(path),
        dispatch=True,
        dtype=torch.float32,
        attn_implementation=attention,
        experts_implementation="eager",  # the others know no float64
    )
    model._module.double()
    return model
