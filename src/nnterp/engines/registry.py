"""Families and values of a user's own.

A family that is registered is found by its ``model_type`` like any other. A value that is
registered is one more attribute of every block, attention or MLP: it is read and edited in a
trace, listed by ``support()``, and named to ``collect`` and ``taps``, on the engines that it has
a site for. Both have to be registered before the model is loaded; vLLM's worker is told.
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
    """A value that a user has registered.

    Attributes:
        value: The value.
        sites: Where each engine that serves it has it.
        after: The name of the value that a forward reaches just before.
    """

    value: Value
    sites: dict[Engine, Site]
    after: str


_registered: dict[str, Registered] = {}


def register_family(model_type: str, family: Any, *, engine: Engine = "transformers") -> None:
    """Have checkpoints of ``model_type`` loaded as ``family`` says.

    Args:
        model_type: What the checkpoints' config calls their family.
        family: A module, or any object, that defines ``RENAME`` and ``ENVOYS`` as the modules of
            `nnterp.families` do, or for vLLM those of `nnterp.families.vllm`.
        engine: The engine that it describes the family on.

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
    """Have every block, attention or MLP serve a value of one's own.

    Args:
        value: What it is called, what hosts it (``layer``, ``self_attn`` or ``mlp``), its axes
            and what it is.
        after: The name of the value that a forward reaches just before it.
        transformers: Where transformers has it: a site, such as those of `nnterp.sites`.
        vllm: Where vLLM has it.

    Raises:
        ValueError: There is a value of that name, none called ``after``, or no site.
    """
    sites: dict[Engine, Site] = {}
    if transformers is not None:
        sites["transformers"] = transformers
    if vllm is not None:
        sites["vllm"] = vllm
    _add(Registered(value, sites, after))


def registered() -> list[Registered]:
    """The values registered so far, in order."""
    return list(_registered.values())


def register_missing(others: list[Registered]) -> None:
    """Register those values of another process that are not registered in this one."""
    for one in others:
        if one.value.name not in _registered:
            _add(one)


def _add(new: Registered) -> None:
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
