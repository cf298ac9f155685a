"""Indexes lists of modules as Python's lists are indexed."""

from __future__ import annotations

import operator
from typing import Any

from nnsight.intervention.envoy import Envoy


class Entries(Envoy):
    """`Entries` is the envoy of a ``ModuleList``, such as ``model.layers``.

    ``layers[-1]``, ``layers[2:5]``, ``len(layers)`` and iteration work as for a list.
    """

    def __getitem__(self, key: Any) -> Any:
        """Return the module at ``key``, an index or a name, or for a slice a list of modules.

        Raises:
            IndexError: There is none; the message says how many there are.
        """
        if isinstance(key, (slice, str)):
            return super().__getitem__(key)
        index, count = operator.index(key), len(self)
        if not -count <= index < count:
            raise IndexError(
                f"{self.path}[{index}]: there are {count}, 0 to {count - 1}, and -1 is the last"
            )
        return super().__getitem__(index)
