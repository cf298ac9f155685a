"""Loads a model on vLLM and serves the standard vocabulary in its traces."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from torch import nn

from nnterp.advice import known_wrong, measured
from nnterp.collecting.request import require_served
from nnterp.engines.arguments import of_vllm, require_known
from nnterp.engines.config import read_config
from nnterp.engines.prompts import texts_or_ids
from nnterp.engines.registry import registered
from nnterp.engines.runs import Job, Outcome
from nnterp.engines.standardized import BAR_FROM
from nnterp.engines.vllm.client import merge_saves, preflight
from nnterp.engines.vllm.client.by_name import ByNameInterleaver
from nnterp.engines.vllm.client.graph_edits import graph_edits
from nnterp.engines.vllm.client.invokes import (
    RequestTracer,
    explain_undefined,
    require_one,
    require_settings,
    sampling_names,
    with_inputs_first,
)
from nnterp.engines.vllm.client.lora_batches import adapters_of, batches
from nnterp.engines.vllm.client.meta_loading import (
    pack_without_values,
    without_accelerator,
    zeros_from_meta,
)
from nnterp.engines.vllm.client.payload import PackedBlock, Payloads
from nnterp.engines.vllm.load_isolation import classes_unchanged, configs_unchanged
from nnterp.engines.vllm.ports import port
from nnterp.engines.vllm.transport.address import Address
from nnterp.engines.vllm.transport.in_graph import Declared, GraphEdits
from nnterp.engines.vllm.transport.keys import ADDRESS_KEY, BLOCK_KEY, GRAPH_KEY, TREE_KEY
from nnterp.engines.vllm.transport.tree import pack_tree
from nnterp.engines.vllm.tree import ModuleTree, VLLMVocabulary
from nnterp.errors import Unavailable
from nnterp.sites.two_part import locations
from nnterp.tracing.saves import warn_of_unnamed
from nnterp.vocabulary.names import Place, places

if TYPE_CHECKING:
    from nnterp.engines.vllm.client.engine_run import EngineRun

#: The most prompts of a run that wait in the engine at a time.
_WAITING = 2048


class StandardizedVLLM(VLLMVocabulary):
    """Extends nnsight's `VLLM` to serve every decoder family in one vocabulary.

    Everything `VLLM` takes and does still works, except pipeline parallelism. A request is one
    sequence, so ``batch`` is 1 throughout; several prompts are several invokes.

    Args:
        repo_id: A hub id or a checkpoint's folder.
        family: The family to use in place of that of the checkpoint's ``model_type``: a name, or a
            module shaped like those in `nnterp.families.vllm`.
        rename: Aliases to add to the family's, as nnsight takes them.
        envoys: Envoy classes to add to the family's, as nnsight takes them.
        taps: Values to serve on an engine that replays CUDA graphs, by name:
            ``["layers.*.layer_output"]``. Without it the engine runs eagerly and serves all values.
        edits: Values that `run` can edit on an engine that compiles its forward and replays it as
            CUDA graphs, by name. Such an engine is as fast as vLLM's own, and serves no traces.
        reads: Values that `run` and `collect` can read on such an engine. ``logits`` can be read
            and edited without being named.
        edit_slots: How many different edits of a token's row, over all values, such an engine
            holds at a time; prompts for which there is no room wait.
        directions: Whether such an engine can remove a component along a direction, as `ProjectOut`
            and `SetCoefficient` do. It costs a little in every forward.
        **kwargs: Arguments of `VLLM`: ``dtype``, ``dispatch``, ``mode``, ``max_model_len``,
            ``gpu_memory_utilization``, ``tensor_parallel_size``, ...

    Raises:
        ImportError: vLLM is not installed.
        CheckpointNotFound: ``repo_id`` names no readable checkpoint.
        UnsupportedFamily: There is no family for the checkpoint's ``model_type`` or of the name
            ``family``, or the family's decoder blocks are not in the model.
        UnservableCheckpoint: vLLM refuses the checkpoint's config, or this host's engine has no
            kernel for its shape.
        MissingMainGuard: A script builds the engine at its top level.
        NotImplementedError: The decoder blocks are spread over the stages of a pipeline.
        RuntimeError: ``taps`` are for an engine in this process, which has imported vLLM already.
        TypeError: Nothing behind the class takes one of ``kwargs``.
        Unavailable: One of ``taps``, ``edits`` or ``reads`` is not served, or not there.
        ValueError: A ``rename`` or ``envoys`` key names no module, one of ``taps``, ``edits`` or
            ``reads`` no value, or ``taps`` are combined with ``edits`` or ``reads``.
    """

    taps: tuple[str, ...]

    _WORKER_CLS = "nnterp.engines.vllm.worker.worker.StandardizedWorker"

    def __init__(
        self,
        repo_id: str | os.PathLike[str],
        *args: Any,
        family: Any = None,
        rename: Mapping[Any, Any] | None = None,
        envoys: Mapping[Any, Any] | None = None,
        edits: Iterable[str] = (),
        reads: Iterable[str] = (),
        edit_slots: int = 256,
        directions: bool = False,
        **kwargs: Any,
    ) -> None:
        preflight.require_vllm()
        repo_id = os.fspath(repo_id)
        preflight.require_one_stage(kwargs)
        declared = Declared(tuple(edits), tuple(reads), edit_slots, directions)
        self._declared = declared if declared.edits or declared.reads else None
        self._in_graph: dict[str, set[Place]] = {"edits": set(), "reads": set()}
        self._starts_eager = False
        if self._declared is not None:
            preflight.require_compilable(kwargs)
            self._starts_eager = kwargs.pop("enforce_eager", False)
            # A trace needs them off; here they are as vLLM has them.
            kwargs = {"enable_chunked_prefill": None, "enable_prefix_caching": None, **kwargs}
        if kwargs.get("taps"):
            preflight.break_graphs()
        preflight.require_main_guard()
        known = of_vllm(type(self), asynchronous=kwargs.get("mode") == "async")
        require_known(type(self), "vllm", kwargs, known)
        config = read_config(repo_id, kwargs)
        preflight.prefer_exact_attention(kwargs)
        tree = self._take_family(config, family, rename, envoys)
        known_wrong.warn(config, "vllm", preflight.platform(), kwargs)
        measured.warn(config, "vllm", preflight.platform())
        kwargs["additional_config"] = {
            **(kwargs.get("additional_config") or {}),
            TREE_KEY: pack_tree(
                family=self.family, rename=rename, envoys=envoys, values=registered()
            ),
            ADDRESS_KEY: list(Address.own()),
            **({} if self._declared is None else {GRAPH_KEY: self._declared.as_config()}),
        }
        self._by_name = ByNameInterleaver()
        kwargs.setdefault("interleaver", self._by_name)
        super().__init__(repo_id, *args, **tree, **kwargs)
        self._finish_tree()

    def _load_meta(self, repo_id: str, **kwargs: Any) -> nn.Module:
        try:
            pack_without_values()
            with without_accelerator(), zeros_from_meta(), configs_unchanged():
                module = classes_unchanged(partial(super()._load_meta, repo_id, **kwargs))
        except preflight.REFUSALS as error:
            raise preflight.explain_refusal(repo_id, error) from error
        preflight.check_servable(repo_id, module)
        preflight.keep_float32(module)
        if self._declared is not None:
            self._check_declared(module, self._declared)
        return module

    def _load(self, repo_id: str, **kwargs: Any) -> nn.Module:
        with configs_unchanged():
            return super()._load(repo_id, **kwargs)

    def _resolve_taps(self, module: nn.Module) -> tuple[str, ...]:
        """Return the locations of ``taps``, given as standard names or as nnsight's patterns."""
        wanted, self.taps = self.taps, ()
        tree = self._tree_around(module)
        resolved: list[str] = []
        for tap in wanted:
            if tap.endswith((".input", ".output")):
                self.taps = (tap,)
                resolved += super()._resolve_taps(module)
                continue
            for place in places(tap, tree.num_layers):
                host = require_served(tree, place)
                resolved += locations(getattr(type(host), place.value.name).site, host)
        # Logits are served after the forward, and are part of no graph.
        found = tuple(dict.fromkeys(at for at in resolved if not at.endswith(".logits")))
        if not found:
            raise ValueError("logits need no tap; name a value inside the model, or leave taps out")
        self._by_name.taps = frozenset(found)
        return found

    def _tree_around(self, module: nn.Module) -> ModuleTree:
        """Return a tree around ``module``, for use before this one is built around it."""
        return ModuleTree(
            module,
            config=self._config,
            family=self.family,
            rename=self._added_rename,
            envoys=self._added_envoys,
            interleaver=ByNameInterleaver(),
        )

    def _check_declared(self, module: nn.Module, declared: Declared) -> None:
        """Refuse names of edits and reads that cannot be in a compiled forward, and keep others."""
        tree = self._tree_around(module)
        for use in ("edits", "reads"):
            at = [
                place for name in getattr(declared, use) for place in places(name, tree.num_layers)
            ]
            for place in at:
                host = require_served(tree, place)
                if use == "edits":
                    getattr(type(host), place.value.name).require_writable(host)
                if not _is_beside(tree, place):
                    port(tree, place)
            self._in_graph[use] = {place for place in at if not _is_beside(tree, place)}

    def require_declared(self, place: Place, use: Literal["edits", "reads"]) -> None:
        if self._declared is None or place in self._in_graph[use] or _is_beside(self, place):
            return
        raise Unavailable(
            f"{place} is not among the {use}= that this engine was loaded with, and its compiled "
            f"forward has no others; load with {use}=[{str(place)!r}, ...], or without edits= and "
            "reads= for all values"
        )

    def row_shapes(self, at: Sequence[Place]) -> Mapping[Place, tuple[int, ...]]:
        for place in self._in_graph["edits"].intersection(at):
            self._row_shapes[place] = port(self, place).row
        return super().row_shapes(at)

    def trace(self, *inputs: Any, **kwargs: Any) -> Any:
        if self._declared is not None:
            raise ValueError(
                "an engine loaded with edits= or reads= compiles its forward, and no block can run "
                "beside it; use run and collect, or load without them to trace"
            )
        kwargs.setdefault("tracer_cls", RequestTracer)
        return super().trace(*inputs, **kwargs)

    def _batch_size(self, *inputs: Any, **kwargs: Any) -> int:
        return int(bool(with_inputs_first(inputs, kwargs)[0]))

    def _batch(self, invokes: list[Any], fn: Any) -> Any:
        known = (*sampling_names(), "lora_request", "edits")
        requests = []
        for given, named in invokes:
            inputs, settings = with_inputs_first(given, named)
            settings = self._sampling_kwargs(settings)
            require_settings(settings, known)
            requests.append((inputs, settings))
        return super()._batch(requests, fn)

    def _prompt(self, *inputs: Any) -> Any:
        """Return the one prompt that a request was given, as vLLM takes it."""
        from vllm.inputs import TokensPrompt

        require_one(inputs)
        if isinstance(inputs[0], Mapping) and "input_ids" not in inputs[0]:
            return inputs[0]  # one of vLLM's own
        prompts = texts_or_ids(self.tokenizer, inputs[0])
        require_one(prompts)
        prompt = prompts[0]
        return prompt if isinstance(prompt, str) else TokensPrompt(prompt_token_ids=prompt)

    def _attach_mediators(self, params: list, **kwargs: Any) -> list:
        """Attach the packed payload of each block to the sampling params of its request."""
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
        from vllm import LLM

        from nnterp.engines.vllm.client.engine import StandardizedEngine

        if self._declared is None:
            entrypoint = super()._load_sync(repo_id, **kwargs)
        else:
            # nnsight starts an engine without taps eagerly.
            entrypoint = LLM(
                repo_id, worker_cls=self._WORKER_CLS, enforce_eager=self._starts_eager, **kwargs
            )
        StandardizedEngine.convert(entrypoint.llm_engine, self._installed_edits)
        return entrypoint

    def _load_async(self, repo_id: str, **kwargs: Any) -> Any:
        from nnterp.engines.vllm.client.async_engine import StandardizedAsyncEngine

        entrypoint = super()._load_async(repo_id, **kwargs)
        StandardizedAsyncEngine.convert(entrypoint, self._installed_edits)
        return entrypoint

    def _call(self, prompts: list, params: list, lora_requests: list, **kwargs: Any) -> Any:
        mediators = self._attach_mediators(params, **kwargs)
        with self.vllm_entrypoint.llm_engine.aborting():
            outputs = self.vllm_entrypoint.generate(
                prompts,
                sampling_params=params,
                lora_request=lora_requests,
                use_tqdm=self._shows_progress(len(prompts)),
            )
        explain_undefined(mediators, outputs)
        merge_saves.prepare(mediators, outputs)
        self._collect(mediators, outputs)
        return outputs

    def _do(self, job: Job) -> Outcome:
        if self._async_engine:
            raise NotImplementedError("this needs an engine loaded without mode='async'")
        adapters = adapters_of(job.lora_request, len(job.ids))
        tokens: list[list[int]] = [[] for _ in job.ids]
        texts = [""] * len(job.ids)
        with self._under_way(job) as run, self.vllm_entrypoint.llm_engine.aborting(job.advance):
            for batch in batches(adapters, job.batch_size or _WAITING):
                for wave in run.waves(batch):
                    outputs = self.vllm_entrypoint.generate(
                        [run.prompt(prompt) for prompt in wave],
                        [run.params(prompt) for prompt in wave],
                        lora_request=[adapters[prompt] for prompt in wave],
                        use_tqdm=False,
                    )
                    for prompt, output in zip(wave, outputs, strict=True):
                        tokens[prompt] = list(output.outputs[0].token_ids)
                        texts[prompt] = output.outputs[0].text
        return Outcome(run.rows, tokens, texts)

    def _under_way(self, job: Job) -> EngineRun:
        """Return ``job`` as a run on the engine, which is loaded if it is not yet."""
        from nnterp.engines.vllm.client.engine_run import EngineRun

        sampling = self._sampling(job)
        recorded = self._in_graph["edits"]
        in_graph = GraphEdits.none()
        if self._declared is not None:
            own = {place: edits for place, edits in job.changes.items() if place in recorded}
            rows = self.row_shapes(list(own))
            in_graph = graph_edits(own, [one.run for one in job.lengths], rows, self._declared)
        beside = {place: edits for place, edits in job.changes.items() if place not in recorded}
        if not self.dispatched:
            self.dispatch()
        return EngineRun(self.vllm_entrypoint.llm_engine, job, sampling, in_graph, beside)

    def _sampling(self, job: Job) -> Callable[..., Any]:
        """Return a function that makes the sampling params of a request of ``job``.

        Raises:
            TypeError: A setting is none of vLLM's.
            ValueError: Several sequences of a prompt are asked for.
        """
        from vllm import SamplingParams

        settings = {"temperature": 0.0, **self._sampling_kwargs(dict(job.settings))}
        require_settings(settings, sampling_names())
        if settings.get("n", 1) != 1:
            raise ValueError("a run has one sequence of each prompt; for more, name it repeatedly")
        return partial(
            SamplingParams,
            max_tokens=job.max_tokens,
            detokenize=job.generates,
            skip_reading_prefix_cache=bool(job.wanted or job.changes),
            **settings,
        )

    @staticmethod
    def _shows_progress(requests: int) -> bool:
        """Return whether vLLM shows its progress bar for this number of requests."""
        # vLLM divides by the time that a bar has measured, and a disabled bar measures none.
        return requests >= BAR_FROM and os.environ.get("TQDM_DISABLE", "0") in ("", "0")


def _is_beside(tree: VLLMVocabulary, place: Place) -> bool:
    """Return whether the value at ``place`` is served beside the forward, as logits are."""
    host = tree.host_of(place.value, place.layer or 0)
    at = locations(getattr(type(host), place.value.name).site, host)
    return not any(location.endswith((".input", ".output")) for location in at)
