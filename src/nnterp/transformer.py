"""`StandardizedTransformer`: the standard vocabulary on transformers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from nnsight.modeling.tp.envoys import tp_envoys, wants_tensor_parallel
from nnsight.modeling.transformers import TransformersModel
from torch import Tensor

from . import values
from .components.layer import Live
from .eproperty import StandardValue
from .saves import warn_of_unnamed
from .sites import NextTokenProbabilities, OutputField
from .standardized import Standardized, read_config

_LOGITS = OutputField("logits")


class StandardizedTransformer(Live, Standardized, TransformersModel):
    """nnsight's `TransformersModel` with every decoder family in one vocabulary.

    Everything `TransformersModel` takes and does still works. Scores and pattern exist
    only under ``attn_implementation="eager"``; every other value under any.

    Args:
        repo_id: A hub id, a checkpoint's folder, or a loaded transformers module.
        family: The family to use in place of that of the checkpoint's ``model_type``: a
            name, or a module shaped like those in `nnterp.families`.
        rename: Aliases to add to the family's, as nnsight takes them.
        envoys: Envoy classes to add to the family's, as nnsight takes them.
        **kwargs: For `TransformersModel`: ``dtype``, ``device``, ``dispatch``,
            ``attn_implementation``, ...

    Raises:
        CheckpointNotFound: ``repo_id`` names no readable checkpoint.
        UnsupportedFamily: There is no family for its ``model_type``.
        ValueError: A ``rename`` or ``envoys`` key names no module.
    """

    logits = StandardValue(values.LOGITS, _LOGITS)
    next_token_probs = StandardValue(values.NEXT_TOKEN_PROBS, NextTokenProbabilities(_LOGITS))

    def __init__(
        self,
        repo_id: str | torch.nn.Module,
        *args: Any,
        family: Any = None,
        rename: Mapping[Any, Any] | None = None,
        envoys: Mapping[Any, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(repo_id, torch.nn.Module):
            config = repo_id.config
        else:
            config = read_config(repo_id, kwargs)
        self._shards = wants_tensor_parallel(repo_id, kwargs)
        tree = self._adopt(config, family, rename, envoys)
        kwargs.setdefault("task", "text-generation")
        super().__init__(repo_id, *args, **tree, **kwargs)
        self._check_tree()

    def _engine_envoys(self) -> Mapping[Any, Any]:
        return tp_envoys() if self._shards else {}

    def interleave(self, *args: Any, **kwargs: Any) -> Any:
        warn_of_unnamed(self.interleaver.mediators)
        return super().interleave(*args, **kwargs)

    def project_on_vocab(self, stream: Tensor) -> Tensor:
        logits = self.lm_head(self.norm(stream))
        cap_field = getattr(self.family, "FINAL_SOFT_CAP", None)
        cap = getattr(self._config, cap_field) if cap_field else None
        return logits if cap is None else cap * torch.tanh(logits / cap)
