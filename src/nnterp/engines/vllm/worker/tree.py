"""Builds the worker's tree: the standard vocabulary around the module that has the weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import torch
from nnsight.intervention.interleaver import Mediator
from torch import Tensor, nn

from nnterp.engines.standardized import Standardized
from nnterp.engines.vllm.tree import ModuleTree
from nnterp.tracing.without_interleaving import without_interleaving


class WorkerTree(ModuleTree):
    """Serves the vocabulary that blocks run against, in the worker."""

    def project_on_vocab(self, stream: Tensor) -> Tensor:
        """Return the logits, ``[..., vocab]``, of a residual stream, ``[..., hidden]``.

        The running block's LoRA adapter, if it has one, is applied to the rows.
        """
        return self._by_rows(stream, lambda rows: self._logits(self.apply_final_norm(rows)))

    def apply_final_norm(self, stream: Tensor) -> Tensor:
        """Return a stream, ``[..., hidden]``, past the modules that precede the projection."""
        return Standardized.apply_final_norm(self, stream)

    def unembed(self, normed: Tensor) -> Tensor:
        """Return the uncapped logits, ``[..., vocab]``, of what is past the norm.

        The running block's LoRA adapter, if it has one, is applied to the rows.
        """
        with _uncapped(self._module):
            return self._by_rows(normed, self._logits)

    def _by_rows(self, given: Tensor, compute: Callable[[Tensor], Tensor]) -> Tensor:
        """Return ``compute`` of ``given``, ``[..., hidden]``, with the running block's adapter."""
        number = Mediator.current("project_on_vocab").state.lora_number
        rows = given.reshape(-1, given.shape[-1])
        adapters = self.interleaver.adapters
        if adapters is None:
            logits = compute(rows)
        else:
            parts = []
            for part in rows.split(adapters.at_once):
                with adapters.on_rows(len(part), number):
                    parts.append(compute(part))
            logits = torch.cat(parts)
        return logits.reshape(*given.shape[:-1], -1)

    def _logits(self, normed: Tensor) -> Tensor:
        """Return the logits, ``[rows, vocab]``, of what is past the norm, ``[rows, hidden]``."""
        after_norm = getattr(self.family, "AFTER_NORM", None)
        if after_norm is not None:
            normed = after_norm(normed, self._config)
        with without_interleaving(self.interleaver):
            return self._module.compute_logits(normed)


@contextlib.contextmanager
def _uncapped(model: nn.Module) -> Iterator[None]:
    """Take the soft cap off the logits of ``model`` while entered."""
    from vllm.model_executor.layers.logits_processor import LogitsProcessor

    with contextlib.ExitStack() as stack:
        for module in model.modules():
            if isinstance(module, LogitsProcessor):
                stack.callback(setattr, module, "soft_cap", module.soft_cap)
                module.soft_cap = None
        yield
