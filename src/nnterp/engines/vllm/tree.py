"""Builds the standard vocabulary around a module that vLLM has built.

The client's process has the module without weights, for blocks to be written against; the worker's
has it with weights, for blocks to run against. Both build the same tree of envoys, so that a
block's envoys can be pickled by name.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from nnsight.modeling.vllm.envoys import parallel_envoys
from nnsight.modeling.vllm.vllm import VLLM
from torch import Tensor, nn

from nnterp.engines.standardized import Standardized
from nnterp.engines.vllm.envoys.envoy import VLLMEnvoy
from nnterp.engines.vllm.envoys.protected import protect
from nnterp.engines.vllm.transport.keys import persistent_id
from nnterp.sites.mapped import softmax_of_last
from nnterp.sites.primitive import EngineProvided
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values

_LOGITS = EngineProvided("logits")


class VLLMVocabulary(VLLMEnvoy, Standardized, VLLM):
    """Serves the standard vocabulary of a whole model on vLLM, in either process."""

    logits = StandardValue(values.LOGITS, _LOGITS)
    next_token_probs = StandardValue(values.NEXT_TOKEN_PROBS, softmax_of_last(_LOGITS))

    def _engine_envoys(self) -> Mapping[Any, Any]:
        return parallel_envoys()

    def _finish_tree(self) -> None:
        """Check the tree that has been built, and stop blocks from storing anything on it."""
        self._serve_through_engine_envoys()
        self._check_tree()
        protect(self)

    def _remoteable_persistent_objects(self) -> dict:
        objects = super()._remoteable_persistent_objects()
        for path, envoy in self.named_modules():
            objects[persistent_id(path)] = envoy
        return objects

    def project_on_vocab(self, stream: Tensor) -> Tensor:
        """Refuse a projection, since the weights are in the engine.

        Raises:
            ValueError: Always; in a trace the worker's tree projects.
        """
        raise _needs_weights("project_on_vocab")

    def unembed(self, normed: Tensor) -> Tensor:
        """Refuse, as `project_on_vocab` does."""
        raise _needs_weights("unembed")

    def apply_final_norm(self, stream: Tensor) -> Tensor:
        """Refuse, as `project_on_vocab` does."""
        raise _needs_weights("apply_final_norm")


def _needs_weights(method: str) -> ValueError:
    """Return the error of calling ``method`` where the weights are not."""
    return ValueError(f"{method} needs the weights, which are in the engine: call it in a trace")


class ModuleTree(VLLMVocabulary):
    """Builds the vocabulary around a module that exists already.

    Args:
        module: The module, with or without weights.
        config: The checkpoint's config.
        family: The family to use, as `StandardizedVLLM` takes it.
        rename: Aliases to add to the family's, as nnsight takes them.
        envoys: Envoy classes to add to the family's, as nnsight takes them.
        interleaver: The interleaver that runs blocks beside the module's forward.
    """

    def __init__(
        self,
        module: nn.Module,
        *,
        config: Any,
        family: Any,
        rename: Mapping[Any, Any] | None,
        envoys: Mapping[Any, Any] | None,
        interleaver: Any,
    ) -> None:
        tree = self._take_family(config, family, rename, envoys)
        super().__init__(module, **tree, interleaver=interleaver)
        self._finish_tree()
