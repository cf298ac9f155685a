"""The documentation says what the code does."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import torch

from nnterp.errors import Unavailable
from nnterp.records.edits import KINDS
from nnterp.tools.cli import main
from nnterp.vocabulary.values import VALUES
from tiny import TINY

ROOT = Path(__file__).parent.parent


def test_the_table_of_values_is_the_codes() -> None:
    page = (ROOT / "docs" / "values.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| `")]
    expected = []
    for value in VALUES.values():
        where = "model" if value.host == "model" else "block"
        where += "" if value.host in ("model", "layer") else f".{value.host}"
        written = {2: "yes", 1: "on transformers", 0: "no"}[len(value.writable_on)]
        layout = value.layout_on("transformers")
        if value.vllm_layout:
            layout += f" (vLLM: {value.vllm_layout})"
        steps = "the prefill on vLLM" if value.prefill_only_on else "every"
        expected.append(
            f"| `{value.name}` | {where} | {layout} | {written} | {steps} | {value.description} |"
        )
    assert rows == expected, "\n".join(expected)


def test_the_readme_counts_the_families() -> None:
    (known, both) = re.findall(
        r"\*\*Families\*\*: over (\d+) `model_type`s, (\d+) and more of them",
        _one_line("README.md"),
    )[0]
    assert int(known) < len({row.model_type for row in TINY.values()})
    assert int(both) <= len({row.model_type for row in TINY.values() if not row.not_on_vllm})


def test_the_command_prints_the_families_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["families", "arcee", "granitemoehybrid"]) == 0
    head, rule, *rows = capsys.readouterr().out.splitlines()
    assert head.startswith("| model_type |")
    assert set(rule) == {"|", "-"}
    named = {row.model_type for row in TINY.values()} & {"arcee", "granitemoehybrid"}
    assert {row.split("`")[1] for row in rows} == named
    assert main(["families"]) == 0
    assert capsys.readouterr().out.count("\n| `") == len(TINY)


def test_the_page_of_interventions_runs(either: Any) -> None:
    """Every block of it, one after another, on the tiny llama of each engine."""
    page = (ROOT / "docs" / "interventions.md").read_text()
    blocks = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    names: dict[str, Any] = {"model": either, "vector": torch.ones(either.hidden_size)}
    for block in blocks:
        exec(block, names)
    assert len(names["done"].texts) == 2
    assert names["swept"]["logits"].shape == (either.num_layers, either.vocab_size)
    assert names["edit"].steps == slice(1, None)
    rows = re.findall(r"^\| `(\w+)\(", page, re.MULTILINE)
    assert rows == [kind.__name__ for kind in KINDS.values()]


def test_the_page_of_lenses_runs(either: Any) -> None:
    """Every block of it, one after another, on the tiny llama of each engine."""
    page = (ROOT / "docs" / "lens-and-patching.md").read_text()
    names: dict[str, Any] = {"model": either}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(block, names)
    layers, vocab = either.num_layers, either.vocab_size
    assert names["lens"].probabilities.shape == (2, layers, vocab)
    assert names["every"].probabilities[0].shape[::2] == (layers, 5)
    assert names["sweep"].effects.shape == (layers, 2)
    assert names["heads"].effects.shape == (layers, either.num_heads)
    assert [len(texts) for texts in names["told"].texts] == [layers]


def test_the_page_of_attribution_and_vectors_runs(either: Any) -> None:
    """Every block of it, one after another, on the tiny llama of each engine."""
    page = (ROOT / "docs" / "attribution-and-vectors.md").read_text()
    names: dict[str, Any] = {"model": either}
    for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        if "attribution_patching" in block and either.engine_adapter.engine == "vllm":
            with pytest.raises(Unavailable, match="vLLM computes none"):
                exec(block, names)
            continue
        exec(block, names)
    if either.engine_adapter.engine == "transformers":
        assert names["sweep"].effects.shape == (either.num_layers, 2)
    layers, hidden = either.num_layers, either.hidden_size
    assert names["shares"].heads.shape == (1, layers, either.num_heads)
    assert names["found"].vectors.shape == (layers, hidden)
    assert len(names["steered"].texts) == 1
    assert names["spread"].directions[1].vectors.shape == (layers, hidden)


def test_links_lead_somewhere() -> None:
    for page in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        for link in re.findall(r"\]\(([^)]+)\)", page.read_text()):
            if "://" not in link:
                assert (page.parent / link).exists(), f"{page.name}: {link}"


def _one_line(name: str) -> str:
    return " ".join((ROOT / name).read_text().split())
