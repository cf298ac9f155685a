"""The two engines in one process, in either order and by turns: each computes what it would alone.

A run in `run_of` loads transformers first; here vLLM goes first, in a process as fresh.
"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import torch

import selected
from conftest import runs_in
from tiny import TINY
from tiny_runs import Run

RunOf = Callable[[str], Run]

#: Families that vLLM runs in transformers' own classes, one of them with experts.
IN_BOTH_ORDERS = ("gpt_neox", "phi", "olmo2", "flex_olmo")


@pytest.fixture(scope="module")
def vllm_first(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunOf]:
    names = selected.names(request.session.items, "vllm_first")
    arguments = ("--engines", "vllm", "transformers", "--names", *names)
    with runs_in(tmp_path_factory.mktemp("vllm_first"), *arguments) as run_of:
        yield run_of


@pytest.mark.parametrize("name", IN_BOTH_ORDERS)
def test_whichever_engine_is_loaded_first_both_compute_what_they_do_alone(
    name: str, run_of: RunOf, vllm_first: RunOf
) -> None:
    first, second = vllm_first(name), run_of(name)
    assert (first.error, second.error) == ("", "")
    for engine in ("transformers", "vllm"):
        for kind in ("values", "edits", "decoded"):
            ours, theirs = (getattr(run.found[engine], kind) for run in (first, second))
            assert ours.keys() == theirs.keys()
            assert [key for key in ours if not torch.equal(ours[key], theirs[key])] == []
    assert first.found["vllm"].architecture == second.found["vllm"].architecture


@pytest.mark.parametrize("name", TINY)
def test_a_model_computes_on_as_before_once_the_other_engine_has_run(
    name: str, run_of: RunOf
) -> None:
    assert run_of(name).unsteady == []


@pytest.mark.parametrize("name", IN_BOTH_ORDERS)
def test_by_turns_in_the_other_order(name: str, vllm_first: RunOf) -> None:
    assert vllm_first(name).unsteady == []


#: Refused loads of the checkpoints in its arguments, and what transformers reads them as then.
_READ_AGAIN = """
import sys
from transformers import AutoConfig, DeepseekV3Config
from conftest import TINY_ENGINE
from nnterp import StandardizedVLLM, UnservableCheckpoint
for path in sys.argv[1:]:
    own = type(AutoConfig.from_pretrained(path))
    try:
        StandardizedVLLM(path, family="deepseek_v3", **TINY_ENGINE)
    except UnservableCheckpoint:
        read = type(AutoConfig.from_pretrained(path))
        print(own.model_type, read is own, DeepseekV3Config.model_type)
"""


def test_transformers_reads_a_config_with_its_own_class_after_vllm_has(
    tiny_folder: Callable[[str], Path],
) -> None:
    """vLLM takes DeepSeek-V3's for V3.2, which it renames, and one of its own for Kimi Linear.

    In a process of its own: vLLM imports numba with the latter, and starts no CPU engine after.
    """
    names = ["deepseek_v32", "kimi_linear"]
    ended = subprocess.run(
        [sys.executable, "-c", _READ_AGAIN, *(str(tiny_folder(name)) for name in names)],
        cwd=Path(__file__).parents[1],
        capture_output=True,
        text=True,
        check=True,
    )
    assert ended.stdout.splitlines() == [f"{name} True deepseek_v3" for name in names]
