"""nnsight's own vLLM model on whatever platform vLLM runs on, for `overhead.py` to measure.

nnsight's worker accepts no runner but a GPU's. Here its runner is put over the platform's, as it
is, and nothing else is changed: blocks travel, read, and come home nnsight's way.
"""

from __future__ import annotations

from typing import Any
from unittest import mock

import torch
from nnsight.modeling.vllm.model_runners.GPUModelRunner import NNsightGPUModelRunner
from nnsight.modeling.vllm.vllm import VLLM
from nnsight.modeling.vllm.workers.GPUWorker import NNsightGPUWorker

from nnterp.engines.vllm.worker.model_runner import PlatformRunner, PlatformWorker


class RawRunner(NNsightGPUModelRunner, PlatformRunner):
    """nnsight's runner over this platform's."""


class RawWorker(NNsightGPUWorker, PlatformWorker):
    """This platform's worker with nnsight's runner."""

    def init_device(self) -> None:
        super(NNsightGPUWorker, self).init_device()
        self.model_runner.__class__ = RawRunner


class RawVLLM(VLLM):
    """nnsight's `VLLM` with that worker."""

    _WORKER_CLS = "raw_nnsight.RawWorker"

    def _load_meta(self, repo_id: str, **kwargs: Any) -> torch.nn.Module:
        with mock.patch.object(torch.accelerator, "empty_cache"):
            return super()._load_meta(repo_id, **kwargs)
