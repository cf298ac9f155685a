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

from ..errors import UnsupportedFamily, did_you_mean
from ..values import Engine

REQUIRED = ("RENAME", "ENVOYS")

PACKAGES: dict[Engine, str] = {
    "transformers": "nnterp.families",
    "vllm": "nnterp.families.vllm",
}


def known(engine: Engine) -> list[str]:
    """The ``model_type`` of every family nnterp has for ``engine``, sorted."""
    package = importlib.import_module(PACKAGES[engine])
    return sorted(m.name for m in pkgutil.iter_modules(package.__path__) if not m.ispkg)


def find(family: Any, model_type: str, engine: Engine) -> ModuleType:
    """The family module to use for a checkpoint.

    Args:
        family: What the user passed as ``family=``: a family's name, a module or any
            object that defines what a family does, or None for that of ``model_type``.
        model_type: The ``model_type`` of the checkpoint's config.
        engine: The engine it is loaded on.

    Raises:
        UnsupportedFamily: No family goes by that name.
        TypeError: ``family`` is neither a name nor defines what a family must.
    """
    if family is not None and not isinstance(family, str):
        missing = [name for name in REQUIRED if not hasattr(family, name)]
        if missing:
            raise TypeError(
                f"family={family!r} defines no {' and no '.join(missing)}; pass the name of a "
                f"family, or a module shaped like those in {PACKAGES[engine]}"
            )
        return family
    name = (family or model_type).replace("-", "_")
    names = known(engine)
    if name in names:
        return importlib.import_module(f"{PACKAGES[engine]}.{name}")
    asked = f"family={name!r}" if family else f"model_type {name!r}"
    raise UnsupportedFamily(
        f"nnterp has no {engine} family for {asked}{did_you_mean(name, names)}. Known: "
        f"{', '.join(names)}. If the model is built like one of them, pass its name, as in "
        f"family='llama', or a module of your own shaped like those in {PACKAGES[engine]}"
    )
