"""What transformers says of the tiny checkpoints: ``python references.py FOLDER [NAME ...]``.

Run in a process of its own, because vLLM's Transformers backend changes transformers'
classes in the process it loads in. Writes ``FOLDER/NAME``, a checkpoint, and
``FOLDER/NAME.pt``, its values and the effects of editing them.
"""

from __future__ import annotations

import sys
from pathlib import Path

import checkpoints
import readings
import torch
from nnterp import StandardizedTransformer


def write(name: str, folder: Path, device: str = "cpu") -> None:
    model = StandardizedTransformer(
        str(checkpoints.make(name, folder)),
        dispatch=True,
        device=device,
        dtype=torch.float32,
        attn_implementation="eager",
    )
    longer = [*checkpoints.PROMPT, int(readings.clean_logits(model, checkpoints.PROMPT).argmax())]
    torch.save(
        {
            "values": readings.values(model, checkpoints.PROMPT),
            "edits": readings.edits(model, checkpoints.PROMPT),
            "longer": readings.values(model, longer),
        },
        folder / f"{name}.pt",
    )


if __name__ == "__main__":
    for checkpoint in sys.argv[2:] or checkpoints.TINY:
        write(checkpoint, Path(sys.argv[1]))
