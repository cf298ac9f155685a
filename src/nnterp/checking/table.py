"""The table of families: what each is on both engines, and how that is known.

``families.md`` beside this is written by the suite that runs every family.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

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
magnitude but for what is named.

| model_type | transformers | vLLM | not served | verified |
|---|---|---|---|---|
"""


@dataclass(frozen=True)
class Row:
    """One checkpoint's family.

    Attributes:
        name: The ``model_type``, and what is special to the checkpoint if it has several.
        transformers: transformers' class.
        vllm: vLLM's class and what its blocks pass on, or why it is not there.
        missing: The values that an engine does not serve, and why.
        verified: What it was held against, how closely, and where it differs.
    """

    name: str
    transformers: str
    vllm: str
    missing: str
    verified: str

    def __str__(self) -> str:
        cells = (self.name, self.transformers, self.vllm, self.missing, self.verified)
        return f"| {' | '.join(cell.replace('|', '/') for cell in cells)} |"


def write(rows: Sequence[Row]) -> str:
    """The table of ``rows``, as Markdown."""
    return _HEAD + "".join(f"{row}\n" for row in rows)


def read() -> str:
    """The table as it was last written."""
    return FILE.read_text()


def matching(names: Sequence[str]) -> list[str]:
    """The table's lines, or those of the families named."""
    lines = read().splitlines()
    if not names:
        return lines
    first = next(at for at, line in enumerate(lines) if line.startswith("| "))
    kept = [line for line in lines[first + 2 :] if line.split()[1].strip("`") in names]
    return [*lines[first : first + 2], *kept]
