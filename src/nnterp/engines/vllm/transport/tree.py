"""Encodes as text what the worker builds its tree from, for an engine's config to carry."""

from __future__ import annotations

import base64
from typing import Any

import cloudpickle


def pack_tree(**parts: Any) -> str:
    """Return ``parts``, by name, as text."""
    return base64.b64encode(cloudpickle.dumps(parts)).decode()


def unpack_tree(packed: str) -> dict[str, Any]:
    """Return the parts that `pack_tree` was given, by name."""
    return cloudpickle.loads(base64.b64decode(packed))
