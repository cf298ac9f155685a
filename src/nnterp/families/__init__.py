"""What each ``model_type`` calls things: one small module a family.

A family module is data. ``RENAME`` gives its modules their standard names, ``ENVOYS``
says which envoy class serves each of them, and both are handed to nnsight; whatever else
it defines is a difference. This package holds the families as transformers
defines them, `nnterp.families.vllm` as vLLM does.
"""

from __future__ import annotations

import importlib
import pkgutil
from types import ModuleType
from typing import Any

from nnterp.advice.similar_families import nearest
from nnterp.errors import UnsupportedFamily, did_you_mean
from nnterp.vocabulary.values import Engine

REQUIRED = ("RENAME", "ENVOYS")

PACKAGES: dict[Engine, str] = {
    "transformers": "nnterp.families",
    "vllm": "nnterp.families.vllm",
}


#: The families that users have registered, by name.
_registered: dict[Engine, dict[str, Any]] = {"transformers": {}, "vllm": {}}


def known(engine: Engine) -> list[str]:
    """The ``model_type`` of every family there is for ``engine``, sorted."""
    package = importlib.import_module(PACKAGES[engine])
    own = {m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg}
    return sorted(own | _registered[engine].keys())


def register(model_type: str, family: Any, engine: Engine) -> None:
    """Find ``family`` for ``model_type`` on ``engine`` from now on.

    Raises:
        TypeError: It does not define what a family must.
    """
    _require_shape(family, engine, f"register_family({model_type!r}, {family!r})")
    _registered[engine][module_name(model_type)] = family


def find(family: Any, config: Any, engine: Engine) -> ModuleType:
    """The family module to use for a checkpoint.

    Args:
        family: What the user passed as ``family=``: a family's name, a module or any
            object that defines what a family does, or None for that of the checkpoint.
        config: The checkpoint's config.
        engine: The engine it is loaded on.

    Raises:
        UnsupportedFamily: No family goes by that name.
        TypeError: ``family`` is neither a name nor defines what a family must.
    """
    if family is not None and not isinstance(family, str):
        _require_shape(family, engine, f"family={family!r}")
        return family
    name = module_name(family or config.model_type)
    if name in _registered[engine]:
        return _registered[engine][name]
    names = known(engine)
    if name in names:
        return importlib.import_module(f"{PACKAGES[engine]}.{name}")
    raise UnsupportedFamily(_refusal(family, config, engine, names))


def _require_shape(family: Any, engine: Engine, given: str) -> None:
    missing = [name for name in REQUIRED if not hasattr(family, name)]
    if missing:
        raise TypeError(
            f"{given} defines no {' and no '.join(missing)}; pass the name of a family, or a "
            f"module shaped like those in {PACKAGES[engine]}"
        )


def module_name(model_type: str) -> str:
    """What the module of a ``model_type`` is called, which has no dashes."""
    return model_type.replace("-", "_")


def _refusal(family: str | None, config: Any, engine: Engine, names: list[str]) -> str:
    own = f"shaped like those in {PACKAGES[engine]}"
    if family:
        return (
            f"nnterp has no {engine} family for family={family!r}{did_you_mean(family, names)}. "
            f"Known: {', '.join(names)}. A module of your own, {own}, does as well"
        )
    model_type = config.model_type
    relative = nearest(model_type, config.architectures or (), engine, names)
    said = f"nnterp has no {engine} family for model_type {model_type!r}"
    if relative is None:
        said += did_you_mean(model_type, names) + ". If the model is built like one it has"
    else:
        said += f". Nearest is {relative.name}: {relative.why}. To try it"
    model = {"vllm": "StandardizedVLLM", "transformers": "StandardizedTransformer"}[engine]
    path = config._name_or_path or "..."
    tried = relative.name if relative else "llama"
    return (
        f"{said}:\n\n    model = {model}({path!r}, family={tried!r})\n\n`nnterp check --family "
        f"{tried} MODEL` tells whether it is right. A module of your own, {own}, does as well. "
        f"Known: {', '.join(names)}"
    )
