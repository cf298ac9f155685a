"""Names the modules of decoders inside checkpoints that also take images or sound.

The config of such a checkpoint holds the decoder's own config, and its module tree holds the
decoder's tree. A family names modules by their paths from the root of its decoder; this module
adds their paths from the root of the model around it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any


def with_multimodal(rename: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return a family's aliases, for its decoder alone and for one inside another model.

    Args:
        rename: The family's aliases, as nnsight takes them. nnsight passes over a key that names no
            module of a tree, so all of them can be present at once.
    """
    named = {alias for own in rename.values() for alias in ([own] if isinstance(own, str) else own)}
    # Where a decoder stands alone its head is at the root, and needs no alias.
    from_root = dict(rename) if "lm_head" in named else {**rename, "lm_head": "lm_head"}
    inside = {
        spelling: alias
        for key, alias in from_root.items()
        if isinstance(key, str) and (key == "lm_head" or "." in key)
        for spelling in _spellings(key)
    }
    return {**rename, **inside}


def _spellings(key: str) -> Iterator[str]:
    """Yield the paths that the module ``key`` of a decoder may have inside another model."""
    yield f"language_model.{key}"
    backbone, _, rest = key.partition(".")
    if backbone == "model" and rest:
        yield f"model.language_model.{rest}"
        yield f"model.text_model.{rest}"
