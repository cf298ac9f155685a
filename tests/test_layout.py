"""The rooms of the package, and what keeps them apart."""

from __future__ import annotations

import ast
import re
import sys
import tomllib
from itertools import chain

import layout


def test_no_modules_import_in_a_circle() -> None:
    assert layout.circle(layout.imports()) == []


def test_no_rooms_import_in_a_circle() -> None:
    assert layout.circle(layout.rooms()) == []


def test_a_circle_is_found() -> None:
    assert set(layout.circle({"a": ["b"], "b": ["c"], "c": ["a"], "d": []})) == {"a", "b", "c"}


def test_client_and_worker_know_nothing_of_each_other() -> None:
    graph = layout.rooms()
    client, worker = "nnterp.engines.vllm.client", "nnterp.engines.vllm.worker"
    assert worker not in graph[client]
    assert client not in graph[worker]
    assert not {client, worker} & graph["nnterp.engines.vllm.transport"]


def test_transformers_needs_nothing_of_vllm() -> None:
    """A program that names one engine does not import the other."""
    graph = layout.imports()
    reached, waiting = set(), ["nnterp.engines.transformers.model"]
    while waiting:
        module = waiting.pop()
        reached.add(module)
        waiting += graph[module] - reached
    assert not [module for module in reached if module.startswith("nnterp.engines.vllm")]


def test_the_map_of_the_code_is_the_codes() -> None:
    assert layout.PAGE.read_text() == layout.page_with_map(), "python tests/layout.py --write"


def test_one_module_owns_the_lifetime_of_tensors() -> None:
    """What copies a tensor, or keeps it for another stream, goes through `nnterp.lifetime`."""
    owned = {"clone", "record_stream", "wait_stream", "_InferenceMode"}
    found = []
    for name, file in layout.modules().items():
        # Those that check an engine are its callers, and copy as callers do.
        if name == "nnterp.lifetime" or name.startswith("nnterp.tools"):
            continue
        for node in ast.walk(layout.tree(file)):
            if isinstance(node, ast.Attribute) and node.attr in owned:
                found.append(f"{name}:{node.lineno} {node.attr}")
    assert found == []


def test_what_is_imported_is_declared() -> None:
    project = tomllib.loads((layout.ROOT / "pyproject.toml").read_text())["project"]
    extras = chain.from_iterable(project["optional-dependencies"].values())
    required = [*project["dependencies"], *extras]
    declared = {re.split(r"[<>=\[]", line)[0].replace("-", "_") for line in required}
    # numpy is torch's and transformers' both, and used only where they hand it over.
    provided = declared | {"nnterp", "vllm", "numpy", *sys.stdlib_module_names}
    undeclared = set()
    for name, file in layout.modules().items():
        for node in ast.walk(layout.tree(file)):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module:
                names = [node.module]
            undeclared |= {(name, n.partition(".")[0]) for n in names} - {
                (name, package) for package in provided
            }
    assert undeclared == set()


def test_nothing_of_a_test_library_is_in_production() -> None:
    for name, file in layout.modules().items():
        assert "unittest" not in file.read_text(), name
