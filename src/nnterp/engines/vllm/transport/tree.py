"""What the worker builds its tree from, as text, which an engine's config can carry."""

from __future__ import annotations

import base64
from typing import Any

import cloudpickle


def pack_tree(family: Any, rename: Any, envoys: Any) -> str:
    """What the worker builds its tree from, as text, which an engine's config can carry."""
    return base64.b64encode(cloudpickle.dumps((family, rename, envoys))).decode()


def unpack_tree(packed: str) -> dict[str, Any]:
    """The keyword arguments `pack_tree` was given."""
    family, rename, envoys = cloudpickle.loads(base64.b64decode(packed))
    return {"family": family, "rename": rename, "envoys": envoys}
