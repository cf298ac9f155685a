"""Registers families and values that a user defines.

A family that is registered is found by its ``model_type`` like any other. A value that is
registered becomes an attribute of every block, attention or MLP: it is read and edited in a
trace, listed by ``support()``, and named to ``collect`` and ``taps``, on the engines that it has
a site for. Both have to be registered before the model is loaded; vLLM's worker is told of them.
"""

from __future__ import annotations

import importlib
from typing import Any, NamedTuple

from nnterp import families
from nnterp.sites.base import Site
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary.values import VALUES, Engine, Host, Value

#: The envoy class whose subclasses host the values of each part, by engine.
_HOSTS: dict[tuple[Engine, Host], tuple[str, str]] = {
    ("transformers", "layer"): ("nnterp.engines.transformers.envoys.layer", "Layer"),
    ("transformers", "self_attn"): (
        "nnterp.engines.transformers.envoys.attention",
        "AttentionEnvoy",
    ),
    ("transformers", "mlp"): ("nnterp.engines.transformers.envoys.mlp", "Mlp"),
    ("vllm", "layer"): ("nnterp.engines.vllm.envoys.layer", "VLLMLayer"),
    ("vllm", "self_attn"): ("nnterp.engines.vllm.envoys.attention", "AttentionEnvoy"),
    ("vllm", "mlp"): ("nnterp.engines.vllm.envoys.mlp", "Mlp"),
}


class Registered(NamedTuple):
    """`Registered` is a value that a user has registered.

    Attributes:
        value: The value.
        sites: Its site on each engine that serves it.
        after: The name of the value that a forward reaches just before it.
    """

    value: Value
    sites: dict[Engine, Site]
    after: str


_registered: dict[str, Registered] = {}


def register_family(model_type: str, family: Any, *, engine: Engine = "transformers") -> None:
    """Load checkpoints of ``model_type`` as ``family`` says.

    Args:
        model_type: The name of the family in the checkpoints' config.
        family: A module, or any object, that defines ``RENAME`` and ``ENVOYS`` as the modules of
            `nnterp.families` do, or for vLLM those of `nnterp.families.vllm`.
        engine: The engine on which it describes the family.

    Raises:
        TypeError: ``family`` does not define what a family must.
    """
    families.register(model_type, family, engine)


def register_value(
    value: Value,
    *,
    after: str,
    transformers: Site | None = None,
    vllm: Site | None = None,
) -> None:
    """Serve a value of one's own on every block, attention or MLP.

    Args:
        value: Its name, host (``layer``, ``self_attn`` or ``mlp``), axes and description.
        after: The name of the value that a forward reaches just before it.
        transformers: The site of the value on transformers, such as those in `nnterp.sites`.
        vllm: The site of the value on vLLM.

    Raises:
        ValueError: The name is taken or is no identifier, the host is the model, there is no value
            called ``after``, or no site is given.
    """
    sites: dict[Engine, Site] = {}
    if transformers is not None:
        sites["transformers"] = transformers
    if vllm is not None:
        sites["vllm"] = vllm
    _add(Registered(value, sites, after))


def registered() -> list[Registered]:
    """Return the values registered so far, in order."""
    return list(_registered.values())


def register_missing(others: list[Registered]) -> None:
    """Register those of ``others``, values of another process, that this one lacks."""
    for one in others:
        if one.value.name not in _registered:
            _add(one)


def _add(new: Registered) -> None:
    """Add a value to the vocabulary, and its descriptors to the envoy classes that host it."""
    value, sites, after = new
    if value.name in VALUES or not value.name.isidentifier():
        raise ValueError(f"{value.name!r} cannot be registered: it is taken, or is no name")
    if value.host == "model":
        raise ValueError(f"{value.name} is of the model as a whole; register values of its blocks")
    if not sites:
        raise ValueError(f"{value.name} has no site: pass transformers=, vllm= or both")
    if after not in VALUES:
        raise ValueError(f"after={after!r} is no value; there are {', '.join(VALUES)}")
    for engine, site in sites.items():
        module, name = _HOSTS[engine, value.host]
        host = getattr(importlib.import_module(module), name)
        setattr(host, value.name, StandardValue(value, site))
    order = list(VALUES.items())
    order.insert(list(VALUES).index(after) + 1, (value.name, value))
    VALUES.clear()
    VALUES.update(order)
    _registered[value.name] = new
