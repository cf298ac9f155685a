"""What the worker builds its tree from, as text, which an engine's config can carry."""

from __future__ import annotations

import base64
from typing import Any

import cloudpickle


def pack_tree(**parts: Any) -> str:
    """``parts``, by name, as text."""
    return base64.b64encode(cloudpickle.dumps(parts)).decode()


def unpack_tree(packed: str) -> dict[str, Any]:
    """The parts that `pack_tree` was given."""
    return cloudpickle.loads(base64.b64decode(packed))
