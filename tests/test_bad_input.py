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


@pytest.mark.usefixtures("never_started")
@pytest.mark.parametrize("dispatch", [False, True])
@pytest.mark.parametrize(
    ("engine", "name", "says"),
    [
        ("StandardizedTransformer", "attn_implementaton", "did you mean 'attn_implementation'"),
        ("StandardizedTransformer", "max_memroy", "did you mean 'max_memory'"),
        ("StandardizedTransformer", "hidden_sise", "did you mean 'hidden_size'"),
        ("StandardizedTransformer", "enable_attention_probs", "attn_implementation='eager'"),
        ("StandardizedTransformer", "tokenizer_kwargs", "tokenizer=AutoTokenizer"),
        ("StandardizedTransformer", "check_renaming", "nothing to pass.*`nnterp check MODEL`"),
        ("StandardizedTransformer", "allow_dispatch", "nothing to pass"),
        ("StandardizedTransformer", "rename_config", "pass rename="),
        ("StandardizedTransformer", "model_kwargs", "as arguments of their own"),
        ("StandardizedVLLM", "max_model_lenght", "did you mean 'max_model_len'"),
        ("StandardizedVLLM", "enable_attention_probs", "the pattern is always served"),
        ("StandardizedVLLM", "tokenizer_kwargs", "set them on model.tokenizer"),
        ("StandardizedVLLM", "check_renaming", "nothing to pass.*`nnterp check MODEL`"),
        ("StandardizedVLLM", "torch_dtype", "pass dtype"),
        ("StandardizedVLLM", "device_map", "tensor_parallel_size"),
        ("StandardizedVLLM", "worker_cls", "nnterp's own worker"),
        ("StandardizedVLLM", "model", "the first argument"),
    ],
)
def test_an_argument_that_nothing_takes_is_refused_where_it_is_passed(
    tiny_folder: Callable[[str], Path], engine: str, name: str, says: str, dispatch: bool
) -> None:
    path = tiny_folder("llama")
    with pytest.raises(TypeError, match=f"{engine} takes no argument '{name}'.*{says}"):
        getattr(nnterp, engine)(path, **{name: None}, dispatch=dispatch)


def test_an_argument_for_the_load_of_a_loaded_module_is_refused(
    tiny_folder: Callable[[str], Path],
) -> None:
    from transformers import AutoModelForCausalLM, AutoTokenizer

    path = tiny_folder("llama")
    module, tokenizer = (
        kind.from_pretrained(path) for kind in (AutoModelForCausalLM, AutoTokenizer)
    )
    with pytest.raises(TypeError, match="'attn_implementation' beside a module that is loaded"):
        nnterp.StandardizedTransformer(module, tokenizer=tokenizer, attn_implementation="eager")
    assert nnterp.StandardizedTransformer(module, tokenizer=tokenizer).num_layers == 2


def test_overrides_of_the_config_reach_the_model(tiny_folder: Callable[[str], Path]) -> None:
    path = tiny_folder("llama")
    taken = {"num_hidden_layers": 1, "rms_norm_eps": 1e-3, "device_map": "cpu", "max_memory": None}
    for dispatch in (False, True):
        model = nnterp.StandardizedTransformer(path, dispatch=dispatch, **taken)
        assert model.num_layers == 1
        assert model._module.config.rms_norm_eps == 1e-3


@pytest.mark.parametrize("engine", ENGINES)
def test_a_path_object_is_a_path(
    engine: str, tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    assert getattr(nnterp, engine)(tiny_folder("llama")).num_layers == 2
    with pytest.raises(CheckpointNotFound, match=r"no config\.json in"):
        getattr(nnterp, engine)(tmp_path)
    with pytest.raises(CheckpointNotFound, match="no folder"):
        getattr(nnterp, engine)(tmp_path / "nowhere")


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
