"""Runs blocks, and runs of prompts with edits as data, in vLLM's model runner, on a GPU or a CPU.

Blocks run in the worker, so the envoys they were written against have to be there: once vLLM has
loaded the model, the runner builds around it the tree that the client built around its copy without
weights. nnsight provides the runner that runs blocks beside the forward; what is added is the tree,
the batcher that serves private rows, and the worker of a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import torch
from nnsight.intervention.serialization import loads
from nnsight.modeling.vllm.model_runners.GPUModelRunner import NNsightGPUModelRunner
from torch import nn
from vllm.distributed.parallel_state import get_pp_group, get_tensor_model_parallel_rank
from vllm.platforms import current_platform
from vllm.tokenizers import cached_tokenizer_from_config

from nnterp.engines.registry import register_missing
from nnterp.engines.vllm.load_isolation import classes_unchanged
from nnterp.engines.vllm.transport import packing
from nnterp.engines.vllm.transport.address import Address
from nnterp.engines.vllm.transport.in_graph import Declared
from nnterp.engines.vllm.transport.keys import ADDRESS_KEY, GRAPH_KEY, TREE_KEY
from nnterp.engines.vllm.transport.packed_changes import unpack_changes
from nnterp.engines.vllm.transport.plan import Plan
from nnterp.engines.vllm.transport.tree import unpack_tree
from nnterp.engines.vllm.worker.answers import without_saves
from nnterp.engines.vllm.worker.batcher import RowBatcher
from nnterp.engines.vllm.worker.collector import Collector
from nnterp.engines.vllm.worker.edited_cache import EditedBlocks
from nnterp.engines.vllm.worker.editor import Editor
from nnterp.engines.vllm.worker.forwards import NnsightForwards
from nnterp.engines.vllm.worker.graphs import TwofoldGraphs
from nnterp.engines.vllm.worker.in_graph import GraphEditor, InGraph
from nnterp.engines.vllm.worker.interleaver import RowInterleaver
from nnterp.engines.vllm.worker.lora import LoraAdapters
from nnterp.engines.vllm.worker.requests import RowRequests
from nnterp.engines.vllm.worker.runs import Run
from nnterp.engines.vllm.worker.saved import Saving
from nnterp.engines.vllm.worker.store import CallersStore
from nnterp.engines.vllm.worker.tensor_parallel import HeadFragments
from nnterp.engines.vllm.worker.tree import WorkerTree
from nnterp.vocabulary.names import Place, places

if TYPE_CHECKING or not current_platform.is_cpu():
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as PlatformRunner
else:
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner as PlatformRunner


class StandardizedModelRunner(NNsightGPUModelRunner, PlatformRunner):
    """Combines nnsight's runner, over a standardized tree, with this platform's own runner."""

    _graphs: TwofoldGraphs | None = None
    _nnsight_forwards: NnsightForwards | None = None
    #: Set where the forward is compiled, with edits and reads in it.
    _in_graph: InGraph | None = None
    #: Set where attention reads what a KV cache block's last request left in it: on a CPU.
    _edited_blocks: EditedBlocks | None = None
    #: Whether nnsight takes part in the current step.
    _watched = True

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        """Load the model as vLLM does, and build the standardized tree around it."""

        def load() -> nn.Module:
            # Skips nnsight's own, which would build a plain tree around the same module.
            super(NNsightGPUModelRunner, self).load_model(*args, **kwargs)
            return self.get_model()

        model = classes_unchanged(load)
        extra = self.vllm_config.additional_config
        self._caller = Address(*extra[ADDRESS_KEY])
        fragments = HeadFragments(self.model_config.get_total_num_kv_heads())
        interleaver = RowInterleaver(extra.get("nnsight_taps", ()), fragments=fragments)
        parts = unpack_tree(extra[TREE_KEY])
        register_missing(parts.pop("values"))
        self.nnsight_model = WorkerTree(
            model,
            config=self.model_config.hf_text_config,
            interleaver=interleaver,
            **parts,
        )
        self.nnsight_model.tokenizer = cached_tokenizer_from_config(self.model_config)
        interleaver.batcher = RowBatcher()
        interleaver.defer_exceptions = True
        if self.lora_config:
            at_once = self.vllm_config.scheduler_config.max_num_batched_tokens
            interleaver.adapters = LoraAdapters(self.lora_manager._adapter_manager, at_once)
        self.nnsight_requests = RowRequests()
        self.nnsight_persistent_objects = self.nnsight_model._remoteable_persistent_objects()
        if GRAPH_KEY in extra:
            # A compiler follows no forward of nnsight's, and finds these steps in their place.
            NnsightForwards(model).use(())
            self._in_graph = InGraph(
                self.nnsight_model,
                Declared.of_config(extra[GRAPH_KEY]),
                max(self.max_num_tokens, self.compilation_config.max_cudagraph_capture_size or 0),
                torch.empty(0, dtype=self.model_config.dtype, device=self.device),
            )
        elif not interleaver.taps:
            self._nnsight_forwards = NnsightForwards(model)
        if current_platform.is_cpu():
            self._edited_blocks = EditedBlocks(self)

    def capture_model(self) -> int:
        """Record the CUDA graphs, and if there are taps, without breaks at them and with."""
        if not self.nnsight_model.interleaver.taps:
            return super().capture_model()
        self._graphs = TwofoldGraphs()
        self._graphs.use(broken=False)
        # Skips nnsight's own, which records the taps.
        whole = super(NNsightGPUModelRunner, self).capture_model()
        self._graphs.use(broken=True)
        return whole + super().capture_model()

    def collect_nnsight(
        self,
        request_ids: list[str],
        finished_request_ids: list[str] | None = None,
        outputs: dict[str, Any] | None = None,
    ) -> bytes:
        """Return what the blocks of some requests saved, pickled for the caller's process.

        Args:
            request_ids: The ids of the requests.
            finished_request_ids: Those of them that are over.
            outputs: The output of each finished request, for ``tracer.result``.
        """
        return self._collect(request_ids, finished_request_ids or (), outputs or {})

    def collect_finished(self, request_ids: list[str]) -> bytes:
        """Return what finished requests' blocks saved, except those that wait for their result."""
        return self._collect(request_ids, request_ids, None)

    def _collect(
        self, wanted: Iterable[str], finished: Iterable[str], results: dict[str, Any] | None
    ) -> bytes:
        """Collect what blocks saved, and pickle it for the caller's process."""
        with Saving():
            collected = self.nnsight_requests.collect(
                set(wanted),
                set(finished),
                results,
                reports=get_pp_group().rank == 0,
                taps=self.nnsight_model.interleaver.taps,
            )
        try:
            return packing.pack(collected, self._caller)
        except Exception:
            # Values with no room together may have it one by one; one that has none still is an
            # error of its own request only.
            return packing.pack_each(collected, self._caller, without_saves)

    def begin_run(self, run_id: str, plan: bytes) -> None:
        """Start a run, whose requests will name it by ``run_id``.

        Args:
            run_id: The id of the run.
            plan: A pickled `Plan`.
        """
        given: Plan = loads(plan, self.nnsight_persistent_objects)
        model = self.nnsight_model

        def at(named: Mapping[str, Any]) -> dict[Place, Any]:
            return {
                place: own
                for name, own in named.items()
                for place in places(name, model.num_layers)
            }

        answers = get_tensor_model_parallel_rank() == 0
        store = CallersStore(self._caller, given.sees_gpu) if answers else None
        in_graph = self._in_graph
        self.nnsight_requests.runs.under_way[run_id] = Run(
            run_id,
            given.lengths,
            Editor(
                model,
                at(unpack_changes(given.changes)),
                self.device,
                checks=self._edited_blocks is not None,
            ),
            None if in_graph is None else GraphEditor(in_graph, given.in_graph),
            Collector(model, at(given.wanted), store, {} if in_graph is None else in_graph.reads),
        )

    def arm_run(self, run_id: str, prompts: list[int]) -> int:
        """Install the edits of prompts of a run in the compiled forward.

        Args:
            run_id: The id of the run.
            prompts: The prompts that are to be run next, in order.

        Returns:
            How many of them, from the first, there is room for.
        """
        editor = self.nnsight_requests.runs.under_way[run_id].in_graph
        return len(prompts) if editor is None else editor.arm(prompts)

    def end_run(self, run_id: str, keep: bool) -> bytes | None:
        """End a run, and return what it read, from the rank that answers.

        Args:
            run_id: The id of the run.
            keep: Whether its results are wanted. If not, they are released.

        Returns:
            The pickled results and error. None if they are not wanted, or on any other rank.
        """
        self.nnsight_model.interleaver.row_consumers = {}
        return self.nnsight_requests.runs.end(run_id, keep)

    # A step that no block and no run takes part in is run by vLLM's own methods, without
    # nnsight's additions.

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Run a step's forward, with nnsight only where a block or a run takes part in it."""
        self._watched = self.nnsight_requests.concern(scheduler_output.scheduled_new_reqs)
        if self._watched:
            with Saving():
                return super().execute_model(scheduler_output, *args, **kwargs)
        return super(NNsightGPUModelRunner, self).execute_model(scheduler_output, *args, **kwargs)

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        """Record the KV cache blocks that edited requests hold, and sample the step's tokens."""
        if self._watched:
            if self._edited_blocks is not None:
                self._hold_edited_blocks(self._edited_blocks)
            with Saving():
                return super().sample_tokens(*args, **kwargs)
        return super(NNsightGPUModelRunner, self).sample_tokens(*args, **kwargs)

    def _hold_edited_blocks(self, blocks: EditedBlocks) -> None:
        """Record the KV cache blocks that edited requests hold, once their forward is run."""
        state = self.execute_model_state
        hidden = None if state is None else state.hidden_states
        finite = hidden is not None and bool(hidden.sum().isfinite())
        # A finished request stays in nnsight_requests until the client asks for what it saved.
        for request_id in self.requests.keys() & self.nnsight_requests.edited(finite):
            blocks.hold(self.requests[request_id].block_ids)

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        if self._watched:
            return super()._sample(*args, **kwargs)
        return super(NNsightGPUModelRunner, self)._sample(*args, **kwargs)

    def _update_states(self, scheduler_output: Any) -> Any:
        """Update the requests for a step, and point blocks and runs at their rows in it."""
        if self._edited_blocks is not None:
            self._edited_blocks.hand_on(scheduler_output)
        if not self._watched:
            if self._graphs is not None:
                self._graphs.use(broken=False)
            if self._in_graph is not None:
                self._in_graph.begin_step(())
            if self._nnsight_forwards is not None:
                self._nnsight_forwards.use(())
            return super(NNsightGPUModelRunner, self)._update_states(scheduler_output)
        for data in scheduler_output.scheduled_new_reqs:
            for run_id, plan in self.nnsight_requests.runs.told_of(data.sampling_params):
                self.begin_run(run_id, plan)
        super()._update_states(scheduler_output)
        self.nnsight_requests.runs.forget(scheduler_output.finished_req_ids)
        self.nnsight_requests.enter_step(self.requests)
        self.nnsight_requests.enter_runs(self.nnsight_model, self.requests)
        if self._nnsight_forwards is not None:
            # A block may wait for anything; what runs read and edit is known.
            consumers = self.nnsight_model.interleaver.row_consumers
            self._nnsight_forwards.use(None if self.nnsight_requests.have_blocks else consumers)
        if self._in_graph is not None:
            self._in_graph.begin_step(self.nnsight_requests.runs.slots)
        if self._graphs is not None:
            interleaver = self.nnsight_model.interleaver
            self._graphs.use(broken=bool(interleaver.mediators or interleaver.row_consumers))
        self.nnsight_model.interleaver.guards_random = not self.input_batch.all_greedy
