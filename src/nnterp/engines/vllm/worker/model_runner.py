"""vLLM's model runner with the standard vocabulary in it, on a GPU or a CPU.

Blocks run in the worker, so the envoys they were written against have to be there: once
vLLM has loaded the model, the runner builds around it the tree the client built around
its weightless copy. nnsight provides the runner that runs blocks beside the forward; what
is added is the tree, the batcher that serves private rows, and the worker of a CPU.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

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
from nnterp.engines.vllm.transport.keys import ADDRESS_KEY, TREE_KEY
from nnterp.engines.vllm.transport.tree import unpack_tree
from nnterp.engines.vllm.worker.answers import without_saves
from nnterp.engines.vllm.worker.batcher import RowBatcher
from nnterp.engines.vllm.worker.collector import Collector
from nnterp.engines.vllm.worker.edited_cache import EditedBlocks
from nnterp.engines.vllm.worker.forwards import NnsightForwards
from nnterp.engines.vllm.worker.graphs import TwofoldGraphs
from nnterp.engines.vllm.worker.interleaver import RowInterleaver
from nnterp.engines.vllm.worker.lora import LoraAdapters
from nnterp.engines.vllm.worker.requests import RowRequests
from nnterp.engines.vllm.worker.saved import Saving
from nnterp.engines.vllm.worker.store import CallersStore
from nnterp.engines.vllm.worker.tensor_parallel import HeadFragments
from nnterp.engines.vllm.worker.tree import WorkerTree
from nnterp.vocabulary.names import places

if TYPE_CHECKING or not current_platform.is_cpu():
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as PlatformRunner
else:
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner as PlatformRunner


class StandardizedModelRunner(NNsightGPUModelRunner, PlatformRunner):
    """nnsight's runner around a standardized tree, over this platform's own."""

    _graphs: TwofoldGraphs | None = None
    _nnsight_forwards: NnsightForwards | None = None
    #: Where attention reads what a block's last request left in it.
    _edited_blocks: EditedBlocks | None = None
    _watched = True

    def load_model(self, *args: Any, **kwargs: Any) -> None:
        def load() -> nn.Module:
            # Past nnsight's own, which would build a plain tree around the same module.
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
        if not interleaver.taps:
            self._nnsight_forwards = NnsightForwards(model)
        if current_platform.is_cpu():
            self._edited_blocks = EditedBlocks(self)

    def capture_model(self) -> int:
        if not self.nnsight_model.interleaver.taps:
            return super().capture_model()
        self._graphs = TwofoldGraphs()
        self._graphs.use(broken=False)
        # Past nnsight's own, which records the taps.
        whole = super(NNsightGPUModelRunner, self).capture_model()
        self._graphs.use(broken=True)
        return whole + super().capture_model()

    def collect_nnsight(
        self,
        request_ids: list[str],
        finished_request_ids: list[str] | None = None,
        outputs: dict[str, Any] | None = None,
    ) -> bytes:
        return self._collect(request_ids, finished_request_ids or (), outputs or {})

    def collect_finished(self, request_ids: list[str]) -> bytes:
        """What finished requests' blocks saved, but for those that wait for their result."""
        return self._collect(request_ids, request_ids, None)

    def _collect(
        self, wanted: Iterable[str], finished: Iterable[str], results: dict[str, Any] | None
    ) -> bytes:
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
            # What is too much together may not be one by one; what still is, is one request's.
            return packing.pack_each(collected, self._caller, without_saves)

    def begin_collect(self, collector_id: str, plan: bytes) -> None:
        """Keep what ``plan`` says of the requests that will name this id."""
        names, selections, lengths, sees_gpu = loads(plan, self.nnsight_persistent_objects)
        wanted = {
            place: kept
            for name, kept in zip(names, selections, strict=True)
            for place in places(name, self.nnsight_model.num_layers)
        }
        answers = get_tensor_model_parallel_rank() == 0
        store = CallersStore(self._caller, sees_gpu) if answers else None
        collector = Collector(self.nnsight_model, wanted, lengths, store)
        self.nnsight_requests.collectors[collector_id] = collector

    def end_collect(self, collector_id: str, keep: bool) -> bytes | None:
        """What was kept for this id, from the rank that answers; or nothing, to let go of it."""
        requests = self.nnsight_requests
        collector = requests.collectors.pop(collector_id)
        for request_id, (other, _) in list(requests.collecting.items()):
            if other is collector:
                del requests.collecting[request_id]
        return collector.finish(keep)

    # A step that no block and no `collect` is in is vLLM's own, without nnsight's share in it.

    def execute_model(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        self._watched = self.nnsight_requests.concern(scheduler_output.scheduled_new_reqs)
        if self._nnsight_forwards is not None:
            self._nnsight_forwards.use(self._watched)
        if self._watched:
            with Saving():
                return super().execute_model(scheduler_output, *args, **kwargs)
        return super(NNsightGPUModelRunner, self).execute_model(scheduler_output, *args, **kwargs)

    def sample_tokens(self, *args: Any, **kwargs: Any) -> Any:
        if self._watched:
            with Saving():
                sampled = super().sample_tokens(*args, **kwargs)
            if self._edited_blocks is not None:
                # A finished one stays until it is asked for what it saved.
                for request_id in self.requests.keys() & self.nnsight_requests.edited():
                    self._edited_blocks.hold(self.requests[request_id].block_ids)
            return sampled
        return super(NNsightGPUModelRunner, self).sample_tokens(*args, **kwargs)

    def _sample(self, *args: Any, **kwargs: Any) -> Any:
        if self._watched:
            return super()._sample(*args, **kwargs)
        return super(NNsightGPUModelRunner, self)._sample(*args, **kwargs)

    def _update_states(self, scheduler_output: Any) -> None:
        if self._edited_blocks is not None:
            self._edited_blocks.hand_on(scheduler_output)
        if not self._watched:
            super(NNsightGPUModelRunner, self)._update_states(scheduler_output)
            if self._graphs is not None:
                self._graphs.use(broken=False)
            return
        super()._update_states(scheduler_output)
        self.nnsight_requests.end_collecting(scheduler_output.finished_req_ids)
        self.nnsight_requests.enter_step(self.requests)
        self.nnsight_requests.enter_collectors(self.nnsight_model, self.requests)
        if self._graphs is not None:
            interleaver = self.nnsight_model.interleaver
            self._graphs.use(broken=bool(interleaver.mediators or interleaver.row_consumers))
        self.nnsight_model.interleaver.guards_random = not self.input_batch.all_greedy
