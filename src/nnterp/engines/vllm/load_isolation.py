"""Loads an engine and leaves transformers as it was.

vLLM changes transformers while it loads: in the caller's process for the tree without weights, and
in the engine's process for the model itself. Its Transformers backend makes a decoder's class
compilable in place: from then on every model of that class asks for vLLM's config as it is built
and for vLLM's compiler as it is called. And where vLLM has a config class of its own for a
``model_type``, that replaces transformers' class. Both changes are undone here when the load is
over; the engine's own model keeps the change of its class, in a subclass.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

from torch import nn

from nnterp.engines.vllm.replaced import replaced

_ABSENT = object()


class _Change(NamedTuple):
    """Records what vLLM changed in a class.

    Attributes:
        bases: The bases that the class had before.
        had: The attributes that vLLM set, with their values before.
        has: The same attributes, with their values after.
    """

    bases: tuple[type, ...]
    had: dict[str, Any]
    has: dict[str, Any]


def classes_unchanged(build: Callable[[], nn.Module]) -> nn.Module:
    """Return the model that ``build`` has vLLM build, with transformers' classes left unchanged.

    A module of a class that vLLM changed is moved to a subclass with the changes.

    Args:
        build: The function that builds the model.
    """
    from transformers import PreTrainedModel
    from vllm.compilation import decorators

    changes: dict[type, _Change] = {}
    make_compilable = decorators._support_torch_compile

    def recording(cls: type, *args: Any, **kwargs: Any) -> type:
        # vLLM's own classes are decorated as they are imported, and stay so.
        if not issubclass(cls, PreTrainedModel):
            return make_compilable(cls, *args, **kwargs)
        bases, before = cls.__bases__, dict(vars(cls))
        make_compilable(cls, *args, **kwargs)
        has = {key: new for key, new in vars(cls).items() if before.get(key, _ABSENT) is not new}
        # Empty for a class that an earlier load has made compilable already.
        if has:
            changes[cls] = _Change(bases, {key: before.get(key, _ABSENT) for key in has}, has)
        return cls

    with replaced(decorators, "_support_torch_compile", recording):
        try:
            model = build()
        finally:
            compilable = {cls: _put_back(cls, change) for cls, change in changes.items()}
    for module in model.modules():
        if type(module) in compilable:
            module.__class__ = compilable[type(module)]
    return model


def _put_back(cls: type, change: _Change) -> type:
    """Undo ``change`` in ``cls``, and return a subclass of it that has the change."""
    added = tuple(base for base in cls.__bases__ if base not in change.bases)
    for key, value in change.had.items():
        if value is _ABSENT:
            delattr(cls, key)
        else:
            setattr(cls, key, value)
    cls.__bases__ = change.bases
    # The subclass keeps the name, because transformers looks classes up by it.
    named = {key: getattr(cls, key) for key in ("__module__", "__qualname__", "__doc__")}
    return type(cls)(cls.__name__, (cls, *added), {**named, **change.has})


@contextlib.contextmanager
def configs_unchanged() -> Iterator[None]:
    """Let vLLM read a checkpoint's config, and restore transformers' own config classes afterwards.

    What vLLM adds for a ``model_type`` that transformers does not know stays.
    """
    from transformers import CONFIG_MAPPING

    own, extra = CONFIG_MAPPING._mapping, CONFIG_MAPPING._extra_content
    before = dict(extra)
    try:
        yield
    finally:
        added = {name: new for name, new in extra.items() if new is not before.get(name)}
        for name in added.keys() & own.keys():
            del extra[name]
        extra.update(before)
        # Some of these are transformers' own class of one model_type, set to that of another.
        for config_class in added.values():
            names = [name for name, known in own.items() if known == config_class.__name__]
            if names and CONFIG_MAPPING[names[0]] is config_class:
                config_class.model_type = names[0]
