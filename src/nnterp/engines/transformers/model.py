"""Defines `StandardizedTransformer`: the standard vocabulary on transformers."""

from __future__ import annotations

import os
from collections.abc import Mapping
from functools import update_wrapper
from typing import Any

import torch
from nnsight.intervention.interleaver import Mediator
from nnsight.modeling.tp.envoys import tp_envoys, wants_tensor_parallel
from nnsight.modeling.transformers import TransformersModel
from nnsight.tracing.tracer import _saves, mark
from torch import Tensor

from nnterp.advice import known_wrong, measured
from nnterp.engines.arguments import of_transformers, of_wrapped, require_known
from nnterp.engines.config import read_config
from nnterp.engines.prompts import holds_chats, require_template
from nnterp.engines.runs import Job, Outcome
from nnterp.engines.standardized import Standardized
from nnterp.engines.transformers.batches.invokes import InvokeBlock, Invokes
from nnterp.engines.transformers.envoys.envoy import TransformersEnvoy
from nnterp.engines.transformers.envoys.readout import SoftCap
from nnterp.engines.transformers.runs import BatchRuns
from nnterp.lifetime import Reading
from nnterp.sites.mapped import next_token_probabilities, softmax_of_last
from nnterp.sites.primitive import OutputField
from nnterp.tracing import gradients
from nnterp.tracing.envoy import StandardEnvoy
from nnterp.tracing.open_values import OpenValues
from nnterp.tracing.saves import holds_saved, warn_of_unnamed
from nnterp.tracing.standard_value import StandardValue
from nnterp.tracing.steps import StepTracer, end_loops
from nnterp.vocabulary import values

_LOGITS = OutputField("logits")

gradients.install()


class FromLogits(StandardValue):
    """`FromLogits` is the next-token probabilities, computed from the logits a block is given."""

    def _reading(self, host: StandardEnvoy, opened: OpenValues) -> Reading:
        # The logits are read among the values the block has open, so that the probabilities see
        # the block's edits and gradients flow through them.
        Mediator.current(self.path(host)).transform = opened
        return Reading(next_token_probabilities(host.logits), is_new_tensor=True)


class StandardizedTransformer(TransformersEnvoy, Standardized, TransformersModel):
    """`StandardizedTransformer` is nnsight's `TransformersModel` with the standard vocabulary.

    Everything `TransformersModel` takes and does still works. Attention scores and pattern exist
    only under ``attn_implementation="eager"``; every other value exists under any implementation.

    Args:
        repo_id: A hub id, a checkpoint's folder, or a loaded transformers module, which is put
            in eval mode as loading one does; call ``.train()`` afterwards to have its dropout.
        family: The family to use in place of that of the checkpoint's ``model_type``: a
            name, or a module shaped like those in `nnterp.families`.
        rename: Aliases to add to the family's, as nnsight takes them.
        envoys: Envoy classes to add to the family's, as nnsight takes them.
        **kwargs: For `TransformersModel`: ``dtype``, ``device``, ``dispatch``,
            ``attn_implementation``, ...

    Raises:
        CheckpointNotFound: ``repo_id`` names no readable checkpoint.
        UnsupportedFamily: There is no family for its ``model_type``, or ``family`` does not fit it.
        TypeError: Nothing behind the class takes one of ``kwargs``.
        ValueError: A ``rename`` or ``envoys`` key names no module.
    """

    _batcher_class = Invokes

    logits = StandardValue(values.LOGITS, _LOGITS)
    next_token_probs = FromLogits(values.NEXT_TOKEN_PROBS, softmax_of_last(_LOGITS))

    def __init__(
        self,
        repo_id: str | os.PathLike[str] | torch.nn.Module,
        *args: Any,
        family: Any = None,
        rename: Mapping[Any, Any] | None = None,
        envoys: Mapping[Any, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(repo_id, torch.nn.Module):
            config, known = repo_id.eval().config, of_wrapped(type(self))
        else:
            repo_id = os.fspath(repo_id)
            config = read_config(repo_id, kwargs)
            known = of_transformers(type(self), config, kwargs)
        require_known(type(self), "transformers", kwargs, known)
        self._shards = wants_tensor_parallel(repo_id, kwargs)
        tree = self._take_family(config, family, rename, envoys)
        known_wrong.warn(config, "transformers", "", kwargs)
        measured.warn(config, "transformers", "")
        kwargs.setdefault("task", "text-generation")
        super().__init__(repo_id, *args, **tree, **kwargs)
        self._serve_through_engine_envoys()
        self._check_tree()

    def _engine_envoys(self) -> Mapping[Any, Any]:
        return tp_envoys() if self._shards else {}

    def dispatch(self) -> None:
        side = self.tokenizer.padding_side if self.tokenizer else None
        super().dispatch()
        if side is not None:
            # The pipeline has set its tokenizer to pad on the left.
            self.tokenizer.padding_side = side

    def trace(self, *inputs: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("tracer_cls", StepTracer)
        return super().trace(*inputs, **kwargs)

    def _batch_size(self, *inputs: Any, **kwargs: Any) -> int:
        # nnsight calls this before it does anything else with an invoke's input, so the input is
        # checked here.
        if len(inputs) > 1:
            raise TypeError(f"several prompts are a list of them, and here are {len(inputs)}")
        own_template = (kwargs.get("tokenizer_encode_kwargs") or {}).get("chat_template")
        if inputs and holds_chats(inputs[0]) and own_template is None:
            require_template(self.processor or self.tokenizer)
        return super()._batch_size(*inputs, **kwargs)

    def interleave(self, fn: Any, *args: Any, **kwargs: Any) -> Any:
        blocks = list(self.interleaver.mediators)
        for block in blocks:
            block.__class__ = InvokeBlock
        warn_of_unnamed(blocks)
        result = super().interleave(self._with_end(fn), *args, **kwargs)
        saved = _saves()
        for block in blocks:
            for value in block.lcls.writes().values():
                if holds_saved(value, saved):
                    mark(value)
        return result

    def _with_end(self, fn: Any) -> Any:
        """Return ``fn``, what a trace runs, followed by the end of its blocks' loops over steps."""

        def run(*args: Any, **kwargs: Any) -> Any:
            # A name is looked up only now, on the module that is live by then.
            named = getattr(self._module, fn) if isinstance(fn, str) else fn
            result = named(*args, **kwargs)
            end_loops(self.interleaver.mediators)
            self.interleaver._reindex_parked()
            return result

        return run if isinstance(fn, str) else update_wrapper(run, fn)

    def _do(self, job: Job) -> Outcome:
        if job.lora_request is not None:
            raise TypeError(
                "lora_request is vLLM's; on transformers an adapter is part of the model: load it "
                "with StandardizedTransformer(..., peft='path/of/the/adapter'), or call "
                "model.load_adapter('path/of/the/adapter') before, and with None after"
            )
        return BatchRuns(self, job).outcome()

    def project_on_vocab(self, stream: Tensor) -> Tensor:
        logits = self._projected(self.apply_final_norm(stream))
        readout = getattr(self.family, "READOUT", None)
        return logits if readout is None else readout(logits, self._config)

    def unembed(self, normed: Tensor) -> Tensor:
        logits = self._projected(normed)
        readout = getattr(self.family, "READOUT", None)
        if readout is None or isinstance(readout, SoftCap):
            return logits
        return readout(logits, self._config)

    def _projected(self, normed: Tensor) -> Tensor:
        """Return what the output projection makes of ``normed``, ``[..., hidden]``."""
        return self.get(getattr(self.family, "HEAD", "lm_head"))(normed)
