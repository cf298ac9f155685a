"""The suites again where norms overwrite their arguments, as they do on CUDA."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

import inplace_norms

TESTS = Path(inplace_norms.__file__).parent


@pytest.mark.skipif(inplace_norms.imitated(), reason="this is that run")
@pytest.mark.parametrize("suite", ["vllm_families/test_values.py", "vllm_faults/test_private.py"])
def test_a_suite_passes_where_norms_overwrite(suite: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(inplace_norms.VARIABLE, "1")
    ended = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", TESTS / suite],
        cwd=TESTS.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout[-3000:]
    (passed,) = re.findall(r"(\d+) passed", ended.stdout)
    assert int(passed) > 20
    assert "skipped" not in ended.stdout
