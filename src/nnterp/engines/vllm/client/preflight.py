"""Checks before an engine starts for everything that can be known to be wrong.

An engine takes half a minute to start, and fails in another process with an error that says little.
So whatever can be known beforehand is checked here, in the caller's process.
"""

from __future__ import annotations

import ast
import importlib.util
import multiprocessing
import os
import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from types import FrameType
from typing import Any

from torch import nn

from nnterp.errors import MissingMainGuard, UnservableCheckpoint

GUARD_ADVICE = (
    "vLLM starts its engine in a process of its own, which imports this script again and would "
    "build the engine again. Put what the script does under\n\n"
    '    if __name__ == "__main__":\n\n'
    "or keep the engine in this process by setting VLLM_ENABLE_V1_MULTIPROCESSING=0"
)


def require_vllm() -> None:
    """Raise ImportError, naming the extra to install, where vLLM is not installed."""
    if importlib.util.find_spec("vllm") is None:
        raise ImportError(
            "StandardizedVLLM needs vLLM, which is not installed: pip install 'nnterp[gpu]' on a "
            "machine with an NVIDIA GPU, 'nnterp[cpu]' on any other"
        )


def platform() -> str:
    """Return the type of device that vLLM runs on: ``cpu``, ``cuda``, ..."""
    from vllm.platforms import current_platform

    return current_platform.device_type


def require_main_guard() -> None:
    """Refuse to build an engine at the top level of a script that its worker would re-run.

    Raises:
        MissingMainGuard: This call comes from a script's unguarded top level.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        raise MissingMainGuard(GUARD_ADVICE)
    if engine_is_spawned() and _unguarded_script_frame() is not None:
        raise MissingMainGuard(GUARD_ADVICE)


def require_one_stage(arguments: Mapping[str, Any]) -> None:
    """Refuse to spread the decoder blocks over the stages of a pipeline.

    Args:
        arguments: The keyword arguments of the engine.

    Raises:
        NotImplementedError: ``pipeline_parallel_size`` is not 1. Each stage would be a process with
            some of the decoder blocks, and what a user writes for one request runs in one process.
    """
    stages = arguments.get("pipeline_parallel_size", 1)
    if stages != 1:
        raise NotImplementedError(
            f"pipeline_parallel_size={stages} puts the blocks of a model in several processes, and "
            "values are served where all of them are; use tensor_parallel_size"
        )


def require_compilable(arguments: Mapping[str, Any]) -> None:
    """Refuse an engine that cannot have edits and reads in a compiled forward.

    Args:
        arguments: The keyword arguments of the engine.

    Raises:
        ValueError: It is to have ``taps``.
        NotImplementedError: It is asynchronous, or spread over several devices.
    """
    if arguments.get("taps"):
        raise ValueError(
            "taps= break the graphs of an engine open, and edits= and reads= are recorded in whole "
            "ones: pass one or the other"
        )
    if arguments.get("mode") == "async":
        raise NotImplementedError("edits= and reads= need an engine loaded without mode='async'")
    if arguments.get("tensor_parallel_size", 1) != 1:
        raise NotImplementedError(
            "edits= and reads= are for an engine on one device: load without them to spread it"
        )


def prefer_exact_attention(arguments: dict[str, Any]) -> None:
    """Choose vLLM's reference kernels of latent attention on a CPU, unless ``arguments`` choose.

    Where a CPU has AMX, vLLM prefers kernels that compute in bfloat16 whatever the model's type,
    and that take weights apart which the client's model does not have. Models with other attention
    are not affected.

    Args:
        arguments: The engine's arguments.
    """
    if platform() != "cpu":
        return
    from vllm.v1.attention.backends.registry import AttentionBackendEnum

    if not hasattr(AttentionBackendEnum, "AMX_MLA"):
        return
    if arguments.keys().isdisjoint(("attention_backend", "attention_config")):
        arguments["attention_backend"] = "CPU_MLA"


def break_graphs(environment: Any = os.environ) -> None:
    """Make the engine that is started next break its CUDA graphs at its attention and at its taps.

    vLLM decides whether attention breaks a graph when attention's module is imported: an engine in
    a process that has imported it beforehand would record attention whole, and replay it wrong. If
    this process has imported it, the engine's process is made to start by spawning.

    Args:
        environment: The environment variables to read and set.

    Raises:
        RuntimeError: The engine is to run in this process, which has imported the module already.
    """
    decided = "vllm.model_executor.layers.attention.attention" in sys.modules
    if environment.get(BREAK_GRAPHS, "0") == "0":
        environment[BREAK_GRAPHS] = "1"
        if not decided:
            return
        if environment.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") == "0":
            raise RuntimeError(
                "taps= in an engine in this process need vLLM imported for it: set "
                f"{BREAK_GRAPHS}=1 before anything imports vllm"
            )
        environment["VLLM_WORKER_MULTIPROC_METHOD"] = "spawn"


#: The environment variable that makes vLLM record CUDA graphs with breaks.
BREAK_GRAPHS = "VLLM_USE_BREAKABLE_CUDAGRAPH"


def engine_is_spawned() -> bool:
    """Return whether vLLM will start the engine by spawning, which re-imports the main module."""
    import torch
    from vllm.platforms import current_platform

    if os.environ.get("VLLM_ENABLE_V1_MULTIPROCESSING", "1") == "0":
        return False
    return (
        current_platform.is_cpu()
        or torch.cuda.is_initialized()
        or os.environ.get("VLLM_WORKER_MULTIPROC_METHOD") == "spawn"
    )


def _unguarded_script_frame() -> FrameType | None:
    """Return the frame of a script's unguarded top level that this call comes from, or None."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        at_top = frame.f_code.co_name == "<module>" and frame.f_globals["__name__"] == "__main__"
        if at_top and _is_unguarded(frame):
            return frame
        frame = frame.f_back
    return None


def _is_unguarded(frame: FrameType) -> bool:
    """Return whether ``frame``, at a script's top level, is under no test of ``__name__``."""
    source = Path(frame.f_code.co_filename)
    # A console, a notebook or `python -c` has no file for the worker to run again, and a package
    # run with -m is imported under its own name there.
    if not source.is_file() or frame.f_globals.get("__spec__") is not None:
        return False
    guarded = any(
        isinstance(node, ast.If)
        and node.lineno <= frame.f_lineno <= (node.end_lineno or node.lineno)
        and any(isinstance(n, ast.Name) and n.id == "__name__" for n in ast.walk(node.test))
        for node in ast.parse(source.read_text()).body
    )
    return not guarded


def check_servable(repo_id: str, module: nn.Module) -> None:
    """Refuse a model whose attention this host's engine cannot run.

    Args:
        repo_id: The checkpoint, for the message.
        module: The model as vLLM built it, without weights.

    Raises:
        UnservableCheckpoint: The CPU engine has no kernel for the model's head size.
    """
    from vllm.platforms import current_platform

    if not current_platform.is_cpu():
        return
    from vllm.model_executor.layers.attention import Attention
    from vllm.v1.attention.backends.cpu_attn import CPUAttentionBackend

    kernels = CPUAttentionBackend.get_supported_head_sizes()
    for name, layer in module.named_modules():
        if isinstance(layer, Attention) and layer.head_size not in kernels:
            raise UnservableCheckpoint(
                f"{repo_id}: {name} has heads of size {layer.head_size}, and vLLM's CPU engine has "
                f"kernels for {', '.join(map(str, kernels))} only; serve it on a GPU, or use "
                "StandardizedTransformer"
            )


#: The exceptions with which vLLM says, while it builds a model from its config, that it cannot.
REFUSALS = (ValueError, NotImplementedError, AssertionError)


def explain_refusal(repo_id: str, error: Exception) -> UnservableCheckpoint:
    """Return vLLM's refusal of a checkpoint's config as an error of one sentence.

    Args:
        repo_id: The checkpoint, for the message.
        error: The refusal, one of `REFUSALS`.
    """
    import vllm

    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    if not lines:
        # A bare assertion says what it wants in its own source line.
        lines = [f"{traceback.extract_tb(error.__traceback__)[-1].line}"]
    # pydantic puts the sentence that matters after a headline of its own.
    said = next((line for line in lines if line.startswith("Value error, ")), lines[0])
    said = said.removeprefix("Value error, ").partition(" [type=")[0]
    return UnservableCheckpoint(f"vLLM {vllm.__version__} cannot serve {repo_id}: {said}")


def keep_float32(module: nn.Module, environment: Any = os.environ) -> None:
    """Make a float32 model on a GPU compute in float32, not in TF32.

    vLLM's Triton attention otherwise multiplies in TF32, which is off by a thousandth. A value that
    is already in the environment is left alone.

    Args:
        module: The model as vLLM built it, without weights.
        environment: The environment variables to set.
    """
    import torch

    if next(module.parameters()).dtype == torch.float32:
        environment.setdefault("TRITON_F32_DEFAULT", "ieee")
