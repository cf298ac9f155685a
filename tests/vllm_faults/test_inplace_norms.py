"""The suites again where norms overwrite their arguments, as they do on CUDA."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import inplace_norms
import tiny_runs

TESTS = Path(inplace_norms.__file__).parent

#: What looks at values that a later norm might overwrite.
SUITES = ("vllm_faults/test_private.py", "white_box_on_vllm/test_written_back.py")

#: Families whose blocks pass on two addends, of every kind of norm, attention and MLP.
FUSED = (
    "llama", "gemma2", "gemma3_text", "qwen2_moe", "mixtral", "glm4", "afmoe", "gpt_oss",
    "deepseek_v2", "llama4_text", "nemotron_h_no_moe", "mamba2",
)  # fmt: skip


@pytest.mark.skipif(inplace_norms.imitated(), reason="this is that run")
def test_suites_pass_where_norms_overwrite(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(inplace_norms.VARIABLE, "1")
    suites = [TESTS / suite for suite in SUITES]
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *suites],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:]
    (passed,) = re.findall(r"(\d+) passed", ended.stdout)
    assert int(passed) > 20
    assert "skipped" not in ended.stdout


@pytest.mark.skipif(inplace_norms.imitated(), reason="this is that run")
def test_families_are_as_they_were_where_norms_overwrite(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(inplace_norms.VARIABLE, "1")
    command = [sys.executable, TESTS / "tiny_runs.py", tmp_path, "--names", *FUSED]
    subprocess.run(command, check=True)
    for name in FUSED:
        run = torch.load(tmp_path / f"{name}.pt", weights_only=False)
        assert run.found.keys() == {"transformers", "vllm"}
        assert tiny_runs.failures(name, run) == [], name
