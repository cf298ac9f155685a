"""Reads the rooms of the package, its folders, and which imports which, off the sources.

    python tests/layout.py            # prints the map of modules
    python tests/layout.py --write    # puts it into CONTRIBUTING.md

An import counts wherever it is written: at the top, in a function, or for a type checker alone.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterable, Iterator, Mapping
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SOURCES = ROOT / "src"
PAGE = ROOT / "CONTRIBUTING.md"
BEGIN, END = "<!-- map: python tests/layout.py --write -->\n", "<!-- end of map -->"

#: The package itself and its command, which name everything.
DOORS = {"nnterp", "nnterp.__main__"}


@cache
def modules() -> dict[str, Path]:
    """The file of every module, by its dotted name."""
    found = {}
    for file in sorted((SOURCES / "nnterp").rglob("*.py")):
        name = ".".join(file.relative_to(SOURCES).with_suffix("").parts)
        found[name.removesuffix(".__init__")] = file
    return found


@cache
def tree(file: Path) -> ast.Module:
    """The module in ``file``, parsed."""
    return ast.parse(file.read_text())


@cache
def imports() -> dict[str, set[str]]:
    """The modules of the package that each of its modules imports."""
    known = modules()
    graph: dict[str, set[str]] = {}
    for name, file in known.items():
        named: set[str] = set()
        for node in ast.walk(tree(file)):
            if isinstance(node, ast.ImportFrom) and node.module:
                assert not node.level, f"{name} imports by a relative path"
                for alias in node.names:
                    whole = f"{node.module}.{alias.name}"
                    named.add(whole if whole in known else node.module)
            elif isinstance(node, ast.Import):
                named.update(alias.name for alias in node.names)
        graph[name] = {other for other in named if other in known and other != name}
    return graph


@cache
def room(module: str) -> str:
    """The folder a module is in, as a dotted name; a module at the root is a room of its own."""
    folder = modules()[module].parent
    name = ".".join(folder.relative_to(SOURCES).parts)
    return module if name == "nnterp" else name


def rooms() -> dict[str, set[str]]:
    """The rooms that the modules of each room import from."""
    graph: dict[str, set[str]] = {}
    for module, imported in imports().items():
        if module in DOORS:
            continue
        own = graph.setdefault(room(module), set())
        own.update(room(other) for other in imported - DOORS if room(other) != room(module))
    return graph


def circle(graph: Mapping[str, Iterable[str]]) -> list[str]:
    """A circle of ``graph``, first and last the same; nothing where there is none."""
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return error.args[1]
    return []


def in_order(graph: Mapping[str, Iterable[str]]) -> Iterator[str]:
    """The nodes of ``graph``, each after those it leads to; of several by name."""
    sorter = TopologicalSorter(graph)
    sorter.prepare()
    while sorter.is_active():
        ready = sorted(sorter.get_ready())
        yield from ready
        sorter.done(*ready)


def summary(file: Path) -> str:
    """The first paragraph of a module's docstring, on one line."""
    docstring = ast.get_docstring(tree(file))
    assert docstring is not None, f"{file} says nothing of itself"
    return " ".join(docstring.partition("\n\n")[0].split())


def module_map() -> str:
    """The rooms, those that import nothing first, and what each of their modules does."""
    known = modules()
    graph = rooms()
    lines: list[str] = []
    for name in in_order(graph):
        short = name.removeprefix("nnterp.").replace(".", "/")
        own = [module for module in known if room(module) == name and module not in DOORS]
        sources = sorted(other.removeprefix("nnterp.").replace(".", "/") for other in graph[name])
        after = f" Imports {', '.join(f'`{other}`' for other in sources)}." if sources else ""
        lines += [f"**`{short}`**: {summary(known[name])}{after}", ""]
        inside = [module for module in own if module != name]
        if name.startswith("nnterp.families"):
            lines += [f"{len(inside)} modules, one for each `model_type`.", ""]
        elif inside:
            lines += ["| module | |", "|---|---|"]
            for module in inside:
                lines.append(f"| `{module.rpartition('.')[2]}` | {summary(known[module])} |")
            lines.append("")
    return "\n".join(lines)


def page_with_map() -> str:
    """CONTRIBUTING.md as it should be."""
    before, _, rest = PAGE.read_text().partition(BEGIN)
    return f"{before}{BEGIN}\n{module_map()}\n{END}{rest.partition(END)[2]}"


if __name__ == "__main__":
    if "--write" in sys.argv[1:]:
        PAGE.write_text(page_with_map())
    else:
        print(module_map())
