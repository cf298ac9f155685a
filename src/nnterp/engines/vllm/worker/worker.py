"""Runs vLLM's worker with a standardized model runner, on a GPU or a CPU."""

from __future__ import annotations

from typing import TYPE_CHECKING

from nnsight.modeling.vllm.workers.GPUWorker import NNsightGPUWorker
from vllm.platforms import current_platform

from nnterp.engines.vllm.worker.heap import keep_freed_memory
from nnterp.foreign.installed import require

if TYPE_CHECKING or not current_platform.is_cpu():
    from vllm.v1.worker.gpu_model_runner import GPUModelRunner as PlatformRunner
    from vllm.v1.worker.gpu_worker import Worker as PlatformWorker
else:
    from vllm.v1.worker.cpu_model_runner import CPUModelRunner as PlatformRunner
    from vllm.v1.worker.cpu_worker import CPUWorker as PlatformWorker
from nnterp.engines.vllm.worker.model_runner import StandardizedModelRunner


class StandardizedWorker(NNsightGPUWorker, PlatformWorker):
    """Extends this platform's worker with a standardized model runner."""

    def init_device(self) -> None:
        """Initialize the device as vLLM does, and turn its model runner into a standardized one.

        Raises:
            ForeignPackageChanged: A name that is relied on is not in the installed release.
            NotImplementedError: vLLM built a runner that blocks cannot run in.
        """
        # Before there is a device to give back. What is missing is an error although a model might
        # run without it, for where it is missed no one would see it: a scale left out, a request's
        # rows in another's place. What only advice is taken from is warned of.
        require("nnsight", "torch", "vllm")
        # Skips nnsight's own, which accepts no runner but a GPU's.
        super(NNsightGPUWorker, self).init_device()
        runner = self.model_runner
        if type(runner) is not PlatformRunner:
            raise NotImplementedError(
                f"this worker built a {type(runner).__module__}.{type(runner).__name__}, which "
                "blocks cannot run in; unset VLLM_USE_V2_MODEL_RUNNER"
            )
        runner.__class__ = StandardizedModelRunner
        if current_platform.is_cpu():
            keep_freed_memory()

    def begin_run(self, run_id: str, plan: bytes, prompts: list[int]) -> int:
        """Start a run in the model runner, and arm it as `arm_run` does."""
        self.model_runner.begin_run(run_id, plan)
        return self.arm_run(run_id, prompts)

    def arm_run(self, run_id: str, prompts: list[int]) -> int:
        """Install the edits of the next prompts of a run, and return for how many there is room."""
        return self.model_runner.arm_run(run_id, prompts)

    def end_run(self, run_id: str, keep: bool) -> bytes | None:
        """End a run in the model runner, and return what it read."""
        return self.model_runner.end_run(run_id, keep)

    def collect_finished(self, request_ids: list[str]) -> bytes:
        """Return what finished requests' blocks saved, except those that wait for their result."""
        return self.model_runner.collect_finished(request_ids)
