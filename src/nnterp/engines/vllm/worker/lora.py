"""Applies LoRA adapters to the calls of modules that a block makes itself.

vLLM applies adapters to all rows of a step at once, by a mapping that says which adapter each row
is for. A block that calls a module passes rows that are not the step's: during the call the mapping
is for these rows, all of them with the request's own adapter.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from nnterp.errors import Unavailable


class LoraAdapters:
    """Applies the LoRA adapters of an engine to rows that are not a step's.

    Args:
        manager: vLLM's adapter manager, which holds the mapping.
        at_once: The number of rows that its mapping has room for.

    Attributes:
        at_once: The same.
    """

    def __init__(self, manager: Any, at_once: int) -> None:
        self._manager = manager
        self.at_once = at_once

    @contextlib.contextmanager
    def on_rows(self, count: int, adapter: int) -> Iterator[None]:
        """Make modules apply ``adapter`` to each of ``count`` rows they are given, while entered.

        Args:
            count: The number of rows.
            adapter: vLLM's number of the adapter, or 0 for none.

        Raises:
            ValueError: These are more rows than the engine has in a step.
            Unavailable: The request has not been in a step, whose start loads its adapter.
        """
        if count > self.at_once:
            raise ValueError(
                f"{count} rows are more than the {self.at_once} that an engine with adapters takes "
                "at once; call the module on a part of them at a time"
            )
        if adapter and adapter not in self._manager.lora_index_to_id:
            raise Unavailable(
                "the request's adapter is not loaded yet; read a value first, and call modules then"
            )
        # Imported here, because to import this module must not import vLLM.
        from vllm.lora.layers import LoRAMapping

        of_step = self._manager._last_mapping
        own = (adapter,) * count
        self._manager.set_adapter_mapping(LoRAMapping(own, own, is_prefill=True))
        try:
            yield
        finally:
            if of_step is not None:
                self._manager.set_adapter_mapping(of_step)
