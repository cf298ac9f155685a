"""Finds the known family that is most like an unknown one.

Families are compared by what the checkpoint says its architecture is, by the class that vLLM runs
it with, and by what its decoder block is made of: the attributes that the block's class sets up,
read from transformers' source without importing it.
"""

from __future__ import annotations

import ast
import importlib.util
import re
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import NamedTuple

#: The least share of attributes that two families' blocks must have in common to be similar.
_ALIKE = 0.5


class SimilarFamily(NamedTuple):
    """A `SimilarFamily` is a family that might work in place of an unknown one.

    Attributes:
        name: The family.
        why: What the two have in common.
    """

    name: str
    why: str


def nearest(
    model_type: str, architectures: Sequence[str], engine: str, known: Iterable[str]
) -> SimilarFamily | None:
    """Return the family among ``known`` that is most like an unknown one, or None where none is.

    Args:
        model_type: The unknown family.
        architectures: The names of the model's class in the checkpoint's config.
        engine: The engine it is to run on.
        known: The known families.
    """
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

    names = [name for name in known if name in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES]
    classes = {name: MODEL_FOR_CAUSAL_LM_MAPPING_NAMES[name] for name in names}
    for name in names:
        if classes[name] in architectures:
            return SimilarFamily(name, f"it calls itself a {classes[name]}")
    if engine == "vllm":
        own = {_run_by(architecture) for architecture in architectures} - {None}
        for name in names:
            if _run_by(classes[name]) in own:
                return SimilarFamily(name, "vLLM runs both with one class")
    block = _block(model_type)
    shares: dict[str, float] = {}
    for name in names:
        if block and (other := _block(name)):
            shares[name] = len(block & other) / len(block | other)
    # Where several share equally much, ``llama`` is preferred, as the plainest.
    best = max(shares, key=lambda name: (shares[name], name == "llama"), default=None)
    if best is None or shares[best] < _ALIKE:
        return None
    return SimilarFamily(best, f"their blocks share {', '.join(sorted(block & _block(best)))}")


def _run_by(architecture: str) -> tuple[str, str] | None:
    """Return the module and class that vLLM itself has for ``architecture``, or None."""
    from vllm.model_executor.models import registry

    return registry._TEXT_GENERATION_MODELS.get(architecture)


@cache
def _block(model_type: str) -> frozenset[str]:
    """Return the attributes that a decoder block of transformers' ``model_type`` sets up."""
    found = importlib.util.find_spec("transformers")
    if found is None or found.origin is None or not re.fullmatch(r"[\w-]+", model_type):
        return frozenset()
    name = model_type.replace("-", "_").removesuffix("_text")
    source = Path(found.origin).parent / "models" / name / f"modeling_{name}.py"
    if not source.is_file():
        return frozenset()
    tree = ast.parse(source.read_text())
    blocks = {
        text.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and any(isinstance(t, ast.Name) and t.id == "_no_split_modules" for t in node.targets)
        for text in ast.walk(node.value)
        if isinstance(text, ast.Constant) and isinstance(text.value, str)
    }
    return frozenset(
        target.attr
        for node in ast.walk(tree)
        if isinstance(node, ast.ClassDef) and node.name in blocks
        for assigned in ast.walk(node)
        if isinstance(assigned, ast.Assign) and isinstance(assigned.value, ast.Call)
        for target in assigned.targets
        if isinstance(target, ast.Attribute)
    )
