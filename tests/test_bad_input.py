"""Bad input gets a sentence that says what to do, and before an engine starts."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import nnterp
from nnterp import CheckpointNotFound, UnservableCheckpoint, UnsupportedFamily

ENGINES = ("StandardizedTransformer", "StandardizedVLLM")


def changed(path: Path, to: Path, **values: Any) -> Path:
    """A checkpoint's folder again, with values of its config changed."""
    to.mkdir()
    for file in path.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    config = json.loads((path / "config.json").read_text())
    (to / "config.json").write_text(json.dumps({**config, **values}))
    return to


@pytest.fixture
def never_started(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fail if an engine is started."""
    import vllm

    def start(*_: Any, **__: Any) -> None:
        raise AssertionError("an engine was started")

    monkeypatch.setattr(vllm, "LLM", start)


@pytest.mark.parametrize("engine", ENGINES)
@pytest.mark.parametrize("path", ["/no/such/folder", "./nowhere", "~/nowhere", "a/b/c"])
def test_a_path_that_does_not_exist(engine: str, path: str) -> None:
    with pytest.raises(CheckpointNotFound, match=r"on this machine.*config\.json"):
        getattr(nnterp, engine)(path)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_folder_without_a_config(engine: str, tmp_path: Path) -> None:
    with pytest.raises(CheckpointNotFound, match=r"config\.json"):
        getattr(nnterp, engine)(str(tmp_path))


@pytest.mark.parametrize("engine", ENGINES)
def test_a_hub_id_that_cannot_be_read(engine: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with pytest.raises(CheckpointNotFound, match="'nobody/nothing' is neither a folder"):
        getattr(nnterp, engine)("nobody/nothing")


@pytest.mark.parametrize("engine", ENGINES)
def test_an_unknown_model_type(
    engine: str, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    path = changed(tiny_folder("llama"), tmp_path / "x", model_type="novel")
    with pytest.raises(UnsupportedFamily, match="'novel'"):
        getattr(nnterp, engine)(str(path))


@pytest.mark.usefixtures("never_started")
def test_heads_the_cpu_engine_has_no_kernel_for(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    path = changed(tiny_folder("llama"), tmp_path / "x", head_dim=16)
    with pytest.raises(UnservableCheckpoint, match="heads of size 16.*32, 64"):
        nnterp.StandardizedVLLM(str(path), dispatch=True, dtype="float32", max_model_len=64)


@pytest.mark.usefixtures("never_started")
def test_an_architecture_vllm_does_not_have(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    path = changed(
        tiny_folder("gpt2"), tmp_path / "x", architectures=["GPTNeoForCausalLM"], model_type="gpt2"
    )
    with pytest.raises(UnservableCheckpoint, match="cannot serve .*GPTNeoForCausalLM"):
        nnterp.StandardizedVLLM(str(path), dispatch=True, dtype="float32", max_model_len=64)


@pytest.mark.usefixtures("never_started")
def test_a_config_vllm_only_asserts_against(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    path = changed(tiny_folder("gpt2"), tmp_path / "x", scale_attn_by_inverse_layer_idx=True)
    with pytest.raises(UnservableCheckpoint, match="assert not .*scale_attn_by_inverse_layer_idx"):
        nnterp.StandardizedVLLM(str(path), dispatch=True, dtype="float32", max_model_len=64)


@pytest.mark.usefixtures("never_started")
def test_a_length_the_model_does_not_have(tiny_folder: Callable[[str], Path]) -> None:
    with pytest.raises(UnservableCheckpoint, match="max_model_len"):
        nnterp.StandardizedVLLM(
            str(tiny_folder("llama")), dispatch=True, dtype="float32", max_model_len=4096
        )


@pytest.mark.usefixtures("never_started")
def test_a_pipeline_of_stages(tiny_folder: Callable[[str], Path]) -> None:
    with pytest.raises(NotImplementedError, match="use tensor_parallel_size"):
        nnterp.StandardizedVLLM(str(tiny_folder("llama")), pipeline_parallel_size=2)


def test_no_vllm_names_the_extra_to_install(
    monkeypatch: pytest.MonkeyPatch, tiny_folder: Callable[[str], Path]
) -> None:
    real = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name, *a: None if name == "vllm" else real(name, *a)
    )
    with pytest.raises(ImportError, match=r"nnterp\[gpu\].*nnterp\[cpu\]"):
        nnterp.StandardizedVLLM(str(tiny_folder("llama")))


def test_a_misspelt_argument_is_not_swallowed(tiny_folder: Callable[[str], Path]) -> None:
    with pytest.raises(TypeError, match="max_model_lenght"):
        nnterp.StandardizedVLLM(str(tiny_folder("llama")), max_model_lenght=64)


UNGUARDED = """
from nnterp import StandardizedVLLM

model = StandardizedVLLM({path!r}, dispatch=True, dtype="float32", max_model_len=64)
"""

GUARDED = """
from nnterp import StandardizedVLLM

def main():
    model = StandardizedVLLM(
        {path!r}, dispatch=True, dtype="float32", max_model_len=64,
        kv_cache_memory_bytes=50_000_000,
    )
    with model.trace([1, 2, 3], temperature=0.0, max_tokens=1):
        stream = model.layers[0].layer_output.save()
    print(tuple(stream.shape))

if __name__ == "__main__":
    main()
"""


def run_script(source: str, folder: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    import os

    script = folder / "script.py"
    script.write_text(source)
    return subprocess.run(
        [sys.executable, script],
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )


def test_a_script_without_a_main_guard_is_told_so_before_an_engine_starts(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    source = UNGUARDED.format(path=str(tiny_folder("llama")))
    ended = run_script(source, tmp_path, VLLM_ENABLE_V1_MULTIPROCESSING="1")
    assert ended.returncode != 0
    assert "MissingMainGuard" in ended.stderr
    assert 'if __name__ == "__main__":' in ended.stderr
    assert "Failed core proc" not in ended.stderr


def test_a_script_with_one_runs_the_engine_in_its_own_processes(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    source = GUARDED.format(path=str(tiny_folder("llama")))
    ended = run_script(source, tmp_path, VLLM_ENABLE_V1_MULTIPROCESSING="1")
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert "(1, 3, 64)" in ended.stdout


def test_importing_nnterp_imports_no_engine_and_starts_no_cuda() -> None:
    source = (
        "import sys, nnterp; from nnterp import StandardizedTransformer, StandardizedVLLM; "
        "import torch; print('vllm' in sys.modules, torch.cuda.is_initialized())"
    )
    ended = subprocess.run(
        [sys.executable, "-c", source], capture_output=True, text=True, check=True
    )
    assert ended.stdout.split() == ["False", "False"]
