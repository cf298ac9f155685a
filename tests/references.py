"""What transformers says of a checkpoint, written to a file for an engine to be held against.

    python references.py FOLDER [--names NAME ...] [--device cpu] [--dtype float32]

Run in a process of its own, which imports no vLLM. Makes the tiny checkpoint ``FOLDER/NAME``
where there is none, and writes ``FOLDER/NAME.DTYPE.pt``: its values, the effects of editing
them, what it collects and, below float32, the values under ``sdpa``.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import torch

import checkpoints
import collects
from nnterp import StandardizedTransformer
from nnterp.tools.checking import readings
from tiny import TINY


def load(path: Path, device: str, dtype: torch.dtype, attention: str) -> StandardizedTransformer:
    return StandardizedTransformer(
        str(path), dispatch=True, device=device, dtype=dtype, attn_implementation=attention
    )


def write(name: str, folder: Path, device: str = "cpu", dtype: str = "float32") -> None:
    path = folder / name
    if not path.exists():
        checkpoints.make(name, folder)
    model = load(path, device, getattr(torch, dtype), "eager")
    found = {
        "values": readings.values(model, checkpoints.PROMPT),
        "edits": readings.edits(model, checkpoints.PROMPT),
        "collected": collects.flat(model.collect(collects.PROMPTS, collects.wanted(model))),
    }
    if dtype != "float32":
        sdpa = load(path, device, getattr(torch, dtype), "sdpa")
        found["sdpa"] = readings.values(sdpa, checkpoints.PROMPT)
    torch.save(found, folder / f"{name}.{dtype}.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--names", nargs="*", default=list(TINY))
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32")
    arguments = parser.parse_args()
    for checkpoint in arguments.names:
        write(checkpoint, arguments.folder, arguments.device, arguments.dtype)
