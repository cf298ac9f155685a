"""`StandardizedVLLM`: the standard vocabulary on vLLM."""

from __future__ import annotations

import base64
import contextlib
import inspect
import os
import pickle
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache, partial
from typing import Any
from unittest import mock

import cloudpickle
import torch
from nnsight.intervention.errors import raise_deferred
from nnsight.intervention.interleaver import Mediator
from nnsight.intervention.serialization import dumps
from nnsight.modeling.vllm.envoys import parallel_envoys
from nnsight.modeling.vllm.vllm import VLLM
from torch import Tensor, nn

from .. import known_wrong, measured, values
from ..arguments import of_vllm, require_known
from ..aside import aside
from ..collecting.request import require_served
from ..collecting.selections import Selection
from ..composed import locations
from ..eproperty import StandardValue
from ..names import Place, places
from ..prompts import texts_or_ids
from ..saves import warn_of_unnamed
from ..sites import Handoff, NextTokenProbabilities
from ..standardized import BAR_FROM, Standardized, read_config
from . import homecoming, preflight
from .batches import adapters_of, batches
from .by_name import ByNameInterleaver, persistent_id
from .invokes import (
    RequestTracer,
    explain_undefined,
    require_one,
    require_settings,
    with_inputs_first,
)
from .layer import Rows
from .parcels import Address
from .payload import BLOCK_KEY, PackedBlock, Payloads
from .shared import share
from .unchanged import classes_unchanged, configs_unchanged

#: Where the engine's config carries what the worker builds its tree from.
TREE_KEY = "nnterp_tree"

#: Where it carries the process that saved values go home to.
ADDRESS_KEY = "nnterp_caller"

#: The prompts of a `collect` that the engine has waiting at a time.
_WAITING = 2048


class StandardizedVLLM(Rows, Standardized, VLLM):
    """nnsight's `VLLM` with every decoder family in one vocabulary.

    Everything `VLLM` takes and does still works. A request is one sequence, so ``batch``
    is 1 throughout; several prompts are several invokes.

    Args:
        repo_id: A hub id or a checkpoint's folder.
        family: The family to use in place of that of the checkpoint's ``model_type``: a
            name, or a module shaped like those in `nnterp.families.vllm`.
        rename: Aliases to add to the family's, as nnsight takes them.
        envoys: Envoy classes to add to the family's, as nnsight takes them.
        taps: Values to serve on an engine that replays CUDA graphs, by name:
            ``["layers.*.layer_output"]``. Without, the engine runs eagerly and serves all.
        **kwargs: For `VLLM`: ``dtype``, ``dispatch``, ``mode``, ``max_model_len``,
            ``gpu_memory_utilization``, ``tensor_parallel_size``, ...

    Raises:
        ImportError: vLLM is not installed.
        CheckpointNotFound: ``repo_id`` names no readable checkpoint.
        UnsupportedFamily: There is no family for its ``model_type``, or ``family`` is not its.
        UnservableCheckpoint: vLLM refuses its config, or this host's engine its shape.
        MissingMainGuard: A script builds the engine at its top level.
        NotImplementedError: The blocks are spread over the stages of a pipeline.
        TypeError: Nothing behind the class takes one of ``kwargs``.
        ValueError: A ``rename`` or ``envoys`` key names no module.
    """

    taps: tuple[str, ...]

    _WORKER_CLS = "nnterp.vllm.worker.StandardizedWorker"

    logits = StandardValue(values.LOGITS, Handoff("logits"))
    next_token_probs = StandardValue(
        values.NEXT_TOKEN_PROBS, NextTokenProbabilities(Handoff("logits"))
    )

    def __init__(
        self,
        repo_id: str | os.PathLike[str] | nn.Module,
        *args: Any,
        family: Any = None,
        rename: Mapping[Any, Any] | None = None,
        envoys: Mapping[Any, Any] | None = None,
        **kwargs: Any,
    ) -> None:
        if isinstance(repo_id, nn.Module):
            # The worker's side, around the module vLLM has loaded.
            tree = self._adopt(kwargs.pop("config"), family, rename, envoys)
        else:
            preflight.require_vllm()
            repo_id = os.fspath(repo_id)
            preflight.require_one_stage(kwargs)
            if kwargs.get("taps"):
                preflight.break_graphs()
            preflight.require_main_guard()
            known = of_vllm(type(self), asynchronous=kwargs.get("mode") == "async")
            require_known(type(self), "vllm", kwargs, known)
            config = read_config(repo_id, kwargs)
            tree = self._adopt(config, family, rename, envoys)
            known_wrong.warn(config, "vllm", preflight.platform(), kwargs)
            measured.warn(config, "vllm", preflight.platform())
            kwargs["additional_config"] = {
                **(kwargs.get("additional_config") or {}),
                TREE_KEY: pack_tree(self.family, rename, envoys),
                ADDRESS_KEY: list(Address.own()),
            }
            self._by_name = ByNameInterleaver()
            kwargs.setdefault("interleaver", self._by_name)
        super().__init__(repo_id, *args, **tree, **kwargs)
        self._serve_through_engine_envoys()
        self._check_tree()
        share(self)

    def _engine_envoys(self) -> Mapping[Any, Any]:
        return parallel_envoys()

    def _load_meta(self, repo_id: str, **kwargs: Any) -> nn.Module:
        try:
            _pack_without_values()
            with _without_accelerator(), _zeros_from_meta(), configs_unchanged():
                module = classes_unchanged(partial(super()._load_meta, repo_id, **kwargs))
        except preflight.REFUSALS as error:
            raise preflight.explain_refusal(repo_id, error) from error
        preflight.check_servable(repo_id, module)
        preflight.keep_float32(module)
        return module

    def _load(self, repo_id: str, **kwargs: Any) -> nn.Module:
        with configs_unchanged():
            return super()._load(repo_id, **kwargs)

    def _resolve_taps(self, module: nn.Module) -> tuple[str, ...]:
        """The locations of ``taps``: standard names, or nnsight's own patterns of modules."""
        wanted, self.taps = self.taps, ()
        # The client's own tree is built later, around the module returned by the load.
        tree = StandardizedVLLM(
            module,
            config=self._config,
            family=self.family,
            rename=self._added_rename,
            envoys=self._added_envoys,
            interleaver=ByNameInterleaver(),
        )
        resolved: list[str] = []
        for tap in wanted:
            if tap.endswith((".input", ".output")):
                self.taps = (tap,)
                resolved += super()._resolve_taps(module)
                continue
            for place in places(tap, tree.num_layers):
                host = require_served(tree, place)
                resolved += locations(getattr(type(host), place.value.name).site, host)
        # Logits are handed over after the forward, by no graph.
        found = tuple(dict.fromkeys(at for at in resolved if not at.endswith(".logits")))
        if not found:
            raise ValueError("logits need no tap; name a value inside the model, or leave taps out")
        self._by_name.taps = frozenset(found)
        return found

    def trace(self, *inputs: Any, **kwargs: Any) -> Any:
        kwargs.setdefault("tracer_cls", RequestTracer)
        return super().trace(*inputs, **kwargs)

    def _batch_size(self, *inputs: Any, **kwargs: Any) -> int:
        return int(bool(with_inputs_first(inputs, kwargs)[0]))

    def _batch(self, invokes: list[Any], fn: Any) -> Any:
        from vllm import SamplingParams

        known = (*inspect.signature(SamplingParams).parameters, "lora_request", "edits")
        requests = []
        for given, named in invokes:
            inputs, settings = with_inputs_first(given, named)
            settings = self._sampling_kwargs(settings)
            require_settings(settings, known)
            requests.append((inputs, settings))
        return super()._batch(requests, fn)

    def _prompt(self, *inputs: Any) -> Any:
        from vllm.inputs import TokensPrompt

        require_one(inputs)
        if isinstance(inputs[0], Mapping) and "input_ids" not in inputs[0]:
            return inputs[0]  # one of vLLM's own
        prompts = texts_or_ids(self.tokenizer, inputs[0])
        require_one(prompts)
        prompt = prompts[0]
        return prompt if isinstance(prompt, str) else TokensPrompt(prompt_token_ids=prompt)

    def _attach_mediators(self, params: list, **kwargs: Any) -> list:
        payloads = Payloads()
        for block in self.interleaver.mediators:
            payload = payloads.pack(block)
            block.__class__ = PackedBlock
            block.payload = payload
        blocks = super()._attach_mediators(params, **kwargs)
        for block, param in zip(blocks, params, strict=True):
            param.extra_args[BLOCK_KEY] = block.payload
            if self._async_engine:
                self.vllm_entrypoint.expect(block)
        warn_of_unnamed(blocks)
        return blocks

    def _load_sync(self, repo_id: str, **kwargs: Any) -> Any:
        from .engine import StandardizedEngine

        entrypoint = super()._load_sync(repo_id, **kwargs)
        StandardizedEngine.adopt(entrypoint.llm_engine, self._installed_edits)
        return entrypoint

    def _load_async(self, repo_id: str, **kwargs: Any) -> Any:
        from .async_engine import StandardizedAsyncEngine

        entrypoint = super()._load_async(repo_id, **kwargs)
        StandardizedAsyncEngine.adopt(entrypoint, self._installed_edits)
        return entrypoint

    def _call(self, prompts: list, params: list, lora_requests: list, **kwargs: Any) -> Any:
        mediators = self._attach_mediators(params, **kwargs)
        outputs = self.vllm_entrypoint.generate(
            prompts,
            sampling_params=params,
            lora_request=lora_requests,
            use_tqdm=self._shows_progress(len(prompts)),
        )
        explain_undefined(mediators, outputs)
        homecoming.prepare(mediators, outputs)
        self._collect(mediators, outputs)
        return outputs

    def _gather(
        self,
        ids: Sequence[list[int]],
        wanted: Mapping[Place, Selection],
        batch_size: int | None,
        advance: Callable[[int], Any],
        lora_request: Any,
    ) -> Mapping[Place, Tensor]:
        from vllm import SamplingParams

        from .collector import COLLECT_KEY

        if self._async_engine:
            raise NotImplementedError("collect needs an engine loaded without mode='async'")
        if not self.dispatched:
            self.dispatch()
        adapters = adapters_of(lora_request, len(ids))
        engine = self.vllm_entrypoint.llm_engine
        name = uuid.uuid4().hex
        lengths = [len(prompt) for prompt in ids]
        names = [str(place) for place in wanted]
        plan = dumps((names, list(wanted.values()), lengths, torch.cuda.is_available()))
        engine.collective_rpc("begin_collect", args=(name, plan))
        complete = False
        try:
            engine.advance = advance
            for batch in batches(adapters, batch_size or _WAITING):
                params = [
                    SamplingParams(
                        temperature=0.0,
                        max_tokens=1,
                        detokenize=False,
                        skip_reading_prefix_cache=True,
                        extra_args={COLLECT_KEY: [name, prompt]},
                    )
                    for prompt in batch
                ]
                prompts = [{"prompt_token_ids": ids[prompt]} for prompt in batch]
                self.vllm_entrypoint.generate(
                    prompts,
                    params,
                    lora_request=[adapters[prompt] for prompt in batch],
                    use_tqdm=False,
                )
            complete = True
        finally:
            engine.advance = None
            answers = engine.collective_rpc("end_collect", args=(name, complete))
        found: dict[str, Tensor] = {}
        for results, error in (pickle.loads(answer) for answer in answers if answer):
            raise_deferred(error)
            found |= results
        return {place: found[str(place)] for place in wanted if str(place) in found}

    @staticmethod
    def _shows_progress(requests: int) -> bool:
        # vLLM divides by the time a bar has measured, and a disabled bar measures none.
        return requests >= BAR_FROM and os.environ.get("TQDM_DISABLE", "0") in ("", "0")

    def _remoteable_persistent_objects(self) -> dict:
        objects = super()._remoteable_persistent_objects()
        for path, envoy in self.named_modules():
            objects[persistent_id(path)] = envoy
        return objects

    def project_on_vocab(self, stream: Tensor) -> Tensor:
        # The weights are in the worker, so in a trace.
        adapter = Mediator.current("project_on_vocab").adapter
        rows = stream.reshape(-1, stream.shape[-1])
        adapters = self.interleaver.adapters
        if adapters is None:
            logits = self._logits(rows)
        else:
            parts = []
            for part in rows.split(adapters.at_once):
                with adapters.on_rows(len(part), adapter):
                    parts.append(self._logits(part))
            logits = torch.cat(parts)
        return logits.reshape(*stream.shape[:-1], -1)

    def _logits(self, rows: Tensor) -> Tensor:
        normed = self._normed(rows)
        after_norm = getattr(self.family, "AFTER_NORM", None)
        if after_norm is not None:
            normed = after_norm(normed, self._config)
        with aside(self.interleaver):
            return self._module.compute_logits(normed)


@contextlib.contextmanager
def _without_accelerator() -> Iterator[None]:
    """Let vLLM's loader tidy an accelerator's memory on a host that has none."""
    if torch.accelerator.is_available():
        yield
        return
    with mock.patch.object(torch.accelerator, "empty_cache"):
        yield


@cache
def _pack_without_values() -> torch.library.Library | None:
    """Let vLLM's CPU build pack experts that have a shape and no values, as here they have."""
    import vllm._custom_ops

    assert vllm._custom_ops  # which loads the operators
    if not hasattr(torch.ops._C, "prepack_moe_weight"):
        return None
    library = torch.library.Library("_C", "IMPL")
    library.impl("prepack_moe_weight", lambda weight, packed, isa: None, "Meta")
    return library


@contextlib.contextmanager
def _zeros_from_meta() -> Iterator[None]:
    """Let a constructor take a tensor it just built to the host, from a device without values.

    nnsight lets it read one as a list; Apertus reads the constants of its activation so.
    """
    real = Tensor.cpu

    def cpu(tensor: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if tensor.is_meta:
            return torch.zeros(tensor.shape, dtype=tensor.dtype, device="cpu")
        return real(tensor, *args, **kwargs)

    with mock.patch.object(Tensor, "cpu", cpu):
        yield


def pack_tree(family: Any, rename: Any, envoys: Any) -> str:
    """What the worker builds its tree from, as text, which an engine's config can carry."""
    return base64.b64encode(cloudpickle.dumps((family, rename, envoys))).decode()


def unpack_tree(packed: str) -> dict[str, Any]:
    """The keyword arguments `pack_tree` was given."""
    family, rename, envoys = cloudpickle.loads(base64.b64decode(packed))
    return {"family": family, "rename": rename, "envoys": envoys}
