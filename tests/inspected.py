"""vLLM's inspection of a model's class, in the process that asks for it.

vLLM starts a Python for each class that it has not met on a machine, in which it imports all of
itself, so that a caller's GPU is not touched. That takes longer than a tiny checkpoint's run. On a
CPU there is nothing to keep from, and the class is loaded next in any case.
"""

from __future__ import annotations


def here() -> None:
    """Inspect classes in this process from now on, unless it has a GPU."""
    from vllm.model_executor.models import registry
    from vllm.platforms import current_platform

    if current_platform.is_cpu():
        registry._run_in_subprocess = lambda inspect: inspect()
