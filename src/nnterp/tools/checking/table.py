"""Writes the table of families: what each is on both engines, and how that is known.

``families.md``, beside this module, is written by the test suite that runs every family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from nnterp.advice.measured import Measured, cell
from nnterp.families import module_name

FILE = Path(__file__).with_name("families.md")

_HEAD = """\
# Families

Written by `python tests/tiny_runs.py FOLDER --table`, which runs a tiny checkpoint of each on a
CPU in float32; `nnterp families NAME ...` prints rows of it.

*vLLM* is vLLM's class and what its blocks pass on, or why a family is not held against it. *Not
served* leaves out what holds for all: no router in a dense MLP, and no `expert_indices` and
`expert_weights` on vLLM, whose kernel chooses the experts. *Verified* says on what: every value
against transformers' own hidden states and attentions, every edit, the sum on every block; on
both engines also each value, edit and decode step against the other, to 2e-05 of its largest
magnitude, or what rounding alone makes of it, but for what is named. *Measured* is the worst
difference, on each release and platform there was a run on: vLLM's from transformers, and
transformers' between what a block's parts add and the difference it makes.

| model_type | transformers | vLLM | not served | verified | measured |
|---|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """A `Row` describes one checkpoint's family.

    Attributes:
        name: The ``model_type``, and what distinguishes the checkpoint if the family has several.
        transformers: transformers' class.
        vllm: vLLM's class and what its blocks pass on, or why vLLM does not have it.
        missing: The values that an engine does not serve, and why.
        verified: What it was compared with, and where it differs by more than rounding.
    """

    name: str
    transformers: str
    vllm: str
    missing: str
    verified: str

    def __str__(self) -> str:
        cells = (self.name, self.transformers, self.vllm, self.missing, self.verified, "")
        return _line(cells)


def title(model_type: str, checkpoint: str) -> str:
    """Return the title of a checkpoint's row: its ``model_type``, and what distinguishes it."""
    special = checkpoint.removeprefix(module_name(model_type)).strip("_").replace("_", " ")
    return f"`{model_type}`" + (f" ({special})" if special else "")


def write(rows: Sequence[Row]) -> str:
    """Return the table of ``rows``, as Markdown, without measurements."""
    return _HEAD + "".join(f"{row}\n" for row in rows)


def with_measured(text: str, measured: Measured) -> str:
    """Return the table ``text`` with each checkpoint's measurements in the last column."""
    cells = {
        title(model_type, checkpoint): cell(engines)
        for model_type, checkpoints in measured.items()
        for checkpoint, engines in checkpoints.items()
    }
    lines = text.splitlines()
    for at, line in enumerate(lines):
        if line.startswith("| `"):
            name, *others, _ = line.removeprefix("| ").removesuffix(" |").split(" | ")
            lines[at] = _line((name, *others, cells.get(name, "")))
    return "".join(f"{line}\n" for line in lines)


def _line(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def read() -> str:
    """Return the table as it was last written."""
    return FILE.read_text()


def matching(names: Sequence[str]) -> list[str]:
    """Return the table's lines, or only those of the families in ``names``, with the header."""
    lines = read().splitlines()
    if not names:
        return lines
    first = next(at for at, line in enumerate(lines) if line.startswith("| "))
    kept = [line for line in lines[first + 2 :] if line.split()[1].strip("`") in names]
    return [*lines[first : first + 2], *kept]
