"""That a check sees what is wrong: with a family, and with what an engine serves."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from nnterp.tools.cli import main


def test_the_wrong_family_fails_by_name(
    tiny_folder: Callable[[str], Path], capsys: pytest.CaptureFixture[str]
) -> None:
    path = str(tiny_folder("gemma2"))
    arguments = ["check", path, "--engines", "transformers", "--family", "llama"]
    assert main(arguments) == 1
    said = capsys.readouterr().out
    assert "FAILED identity 0" in said
    assert "FAILED projection logits" in said
    assert said.splitlines()[-1].startswith(f"{path}: ")


def test_several_checkpoints_are_counted(tiny_folder: Callable[[str], Path]) -> None:
    paths = [str(tiny_folder(name)) for name in ("llama", "gpt2")]
    command = [sys.executable, "-m", "nnterp", "check", *paths, "--engines", "transformers"]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert ended.stdout.splitlines()[-1] == "2 of 2 hold"
    assert ended.stdout.count(": holds (") == 2
