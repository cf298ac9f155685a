"""Builds the worker's tree: the standard vocabulary around the module that has the weights."""

from __future__ import annotations

import torch
from nnsight.intervention.interleaver import Mediator
from torch import Tensor

from nnterp.engines.vllm.tree import ModuleTree
from nnterp.tracing.without_interleaving import without_interleaving


class WorkerTree(ModuleTree):
    """Serves the vocabulary that blocks run against, in the worker."""

    def project_on_vocab(self, stream: Tensor) -> Tensor:
        """Return the logits, ``[..., vocab]``, of a residual stream, ``[..., hidden]``.

        The running block's LoRA adapter, if it has one, is applied to the rows.
        """
        number = Mediator.current("project_on_vocab").state.lora_number
        rows = stream.reshape(-1, stream.shape[-1])
        adapters = self.interleaver.adapters
        if adapters is None:
            logits = self._logits(rows)
        else:
            parts = []
            for part in rows.split(adapters.at_once):
                with adapters.on_rows(len(part), number):
                    parts.append(self._logits(part))
            logits = torch.cat(parts)
        return logits.reshape(*stream.shape[:-1], -1)

    def _logits(self, rows: Tensor) -> Tensor:
        """Return the logits, ``[rows, vocab]``, of a residual stream, ``[rows, hidden]``."""
        normed = self._normed(rows)
        after_norm = getattr(self.family, "AFTER_NORM", None)
        if after_norm is not None:
            normed = after_norm(normed, self._config)
        with without_interleaving(self.interleaver):
            return self._module.compute_logits(normed)
