"""Reads values as modules pass them: an output, an argument, or what the engine provides."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

from nnsight.intervention.envoy import Envoy
from nnsight.intervention.util import first_input, replace_first_input
from torch import Tensor

from nnterp.lifetime import Reading
from nnterp.sites.base import Site, find_module, module_at, parameters


class _OfModule(Site):
    """`_OfModule` is the base of sites of what a module takes or returns.

    Attributes:
        of: The module, by its path from the host.
    """

    of: str

    def missing(self, host: Envoy) -> str | None:
        if find_module(host, self.of) is not None:
            return None
        return f"{host.path} has no module {self.of!r}"


@dataclass(frozen=True)
class Output(_OfModule):
    """An `Output` is what a module returns: the tensor, or one element of the tuple around it.

    Attributes:
        of: The module, by its path from the host.
        index: Which element, if a tuple is returned.
    """

    of: str = "."
    index: int = 0

    def location(self, host: Envoy) -> str:
        return f"{module_at(host, self.of).path}.output"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(raw if isinstance(raw, Tensor) else raw[self.index])

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        if isinstance(raw, Tensor):
            return tensor
        return (*raw[: self.index], tensor, *raw[self.index + 1 :])


@dataclass(frozen=True)
class OutputField(_OfModule):
    """An `OutputField` is a named field of the record a module returns, such as ``logits``.

    Attributes:
        field: The field's name.
        of: The module, by its path from the host.
    """

    field: str
    of: str = "."

    def location(self, host: Envoy) -> str:
        return f"{module_at(host, self.of).path}.output"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(getattr(raw, self.field))

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        replaced = copy.copy(raw)
        setattr(replaced, self.field, tensor)
        return replaced


@dataclass(frozen=True)
class Argument(_OfModule):
    """An `Argument` is what a module is called with under a name of its ``forward``.

    It is found by name and not by position, because families order the same arguments differently
    and pass them positionally or by keyword as they please.

    Attributes:
        name: The argument's name.
        of: The module, by its path from the host.
    """

    name: str
    of: str = "."

    def location(self, host: Envoy) -> str:
        return f"{module_at(host, self.of).path}.input"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(self.get(host, raw))

    def get(self, host: Envoy, raw: Any) -> Any:
        """Return the argument, which need not be a tensor; None where it was not passed."""
        args, kwargs = raw
        position = self._position(host)
        return args[position] if position < len(args) else kwargs.get(self.name)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        args, kwargs = raw
        position = self._position(host)
        if position < len(args):
            return ((*args[:position], tensor, *args[position + 1 :]), kwargs)
        return (args, {**kwargs, self.name: tensor})

    def _position(self, host: Envoy) -> int:
        return parameters(type(module_at(host, self.of)._module).forward).index(self.name)


@dataclass(frozen=True)
class FirstArgument(_OfModule):
    """A `FirstArgument` is the first argument of a module's call, whatever ``forward`` names it.

    Attributes:
        of: The module, by its path from the host.
    """

    of: str = "."

    def location(self, host: Envoy) -> str:
        return f"{module_at(host, self.of).path}.input"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(first_input(*raw))

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return replace_first_input(*raw, tensor)


@dataclass(frozen=True)
class EngineProvided(Site):
    """An `EngineProvided` is a value that the engine provides by name, outside any module.

    vLLM's ``logits`` are one.

    Attributes:
        name: The name that nnsight provides it under, below the host's path.
    """

    name: str

    def location(self, host: Envoy) -> str:
        return f"{host.path}.{self.name}"

    def read(self, host: Envoy, raw: Any) -> Reading:
        return Reading(raw)

    def write(self, host: Envoy, raw: Any, tensor: Tensor) -> Any:
        return tensor


@dataclass(frozen=True)
class Nowhere(Site):
    """A `Nowhere` is a value that never exists as a tensor; its host's ``unavailable`` says why."""

    def location(self, host: Envoy) -> str:
        raise NotImplementedError(f"{host.path} holds it nowhere")
