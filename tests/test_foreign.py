"""What is relied on of other packages is there, the tables of it are whole, and the check sees."""

from __future__ import annotations

import ast
import importlib.util
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

import pytest

import nnterp
from nnterp.foreign import __main__ as command
from nnterp.foreign import installed
from nnterp.foreign.internals import (
    Internal,
    Problem,
    Release,
    attributes,
    check,
    class_,
    compiled,
    function,
    mark,
    overridden,
    passed_on,
    variable,
    within,
    word,
)
from nnterp.foreign.sources import Class, Sources

OWN = Path(nnterp.__file__).parent

ROWS = [row for table in installed.TABLES.values() for row in table]

#: Every name that a row is about: of its modules, its classes and what is in them.
LISTED = {part for row in ROWS for part in f"{row.module}.{row.name}".split(".")}

#: Private names of the standard library.
STANDARD = {"_getframe", "_inheriting", "_make", "_replace"}

#: The packages of which nothing below the top level is promised, and those of which most is.
UNPROMISED = ("nnsight", "vllm")
PROMISED = ("torch", "transformers")


def have(package: str) -> bool:
    return importlib.util.find_spec(package) is not None


def test_the_installed_releases_have_what_is_relied_on() -> None:
    missing = [p for name in installed.TABLES if have(name) for p in installed.problems(name)]
    assert not missing, "\n".join(map(str, missing))


# -- the tables are whole ------------------------------------------------------


class OwnModule:
    """A module of this package, and what it has of others."""

    def __init__(self, path: Path) -> None:
        parts = path.relative_to(OWN.parent).with_suffix("").parts
        self.name = ".".join(parts).removesuffix(".__init__")
        self.tree = ast.parse(path.read_text())
        self.nodes = list(ast.walk(self.tree))

    @cached_property
    def imports(self) -> dict[str, list[tuple[str, str]]]:
        """For each imported name, the modules it may come from and what it is called there."""
        found: dict[str, list[tuple[str, str]]] = {}
        for node in self.nodes:
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    origin = (node.module or "", alias.name)
                    found.setdefault(alias.asname or alias.name, []).append(origin)
        return found

    @cached_property
    def classes(self) -> dict[str, ast.ClassDef]:
        return {node.name: node for node in self.nodes if isinstance(node, ast.ClassDef)}

    def defined(self) -> Iterator[str]:
        """The names that it makes itself."""
        for node in self.nodes:
            if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
                yield node.name
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                yield node.id
            elif (
                isinstance(node, ast.Attribute)
                and isinstance(node.ctx, ast.Store)
                and isinstance(node.value, ast.Name)
                and node.value.id == "self"
            ):
                yield node.attr

    def asked_for(self) -> Iterator[str]:
        """The names that it asks objects for."""
        for node in self.nodes:
            texts: list[ast.expr] = []
            if isinstance(node, ast.Attribute):
                yield node.attr
            elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
                texts = node.args if node.func.id in ("getattr", "hasattr", "setattr") else []
            elif isinstance(node, ast.Compare):
                texts = [node.left]
            for text in texts:
                if isinstance(text, ast.Constant) and isinstance(text.value, str):
                    yield text.value

    def asked_of_imported(self) -> Iterator[str]:
        """The names that it asks what it imported from other packages for."""
        for node in self.nodes:
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                origins = self.imports.get(node.value.id, ())
                if any(is_foreign(module) for module, _ in origins):
                    yield node.attr


def is_foreign(module: str) -> bool:
    return module.partition(".")[0] in (*UNPROMISED, *PROMISED)


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__") and name.isidentifier()


@pytest.fixture(scope="module")
def own() -> dict[str, OwnModule]:
    modules = map(OwnModule, sorted(OWN.rglob("*.py")))
    return {module.name: module for module in modules}


def test_what_is_imported_is_listed(own: dict[str, OwnModule]) -> None:
    unlisted = []
    for module in own.values():
        for origins in module.imports.values():
            for origin, name in origins:
                package, _, below = origin.partition(".")
                deep = package in UNPROMISED and below
                private = package in PROMISED and any(map(is_private, (*below.split("."), name)))
                if (deep or private) and name not in LISTED:
                    unlisted.append(f"{module.name}: {origin}.{name}")
    assert not unlisted


def test_private_names_of_others_are_listed(own: dict[str, OwnModule]) -> None:
    defined = {name for module in own.values() for name in module.defined()}
    unlisted = []
    for module in own.values():
        others = {name for name in module.asked_for() if name not in defined}
        for name in sorted(others | set(module.asked_of_imported())):
            if is_private(name) and name not in LISTED | STANDARD:
                unlisted.append(f"{module.name}: {name}")
    assert not unlisted


def foreign_bases(
    own: dict[str, OwnModule], module: OwnModule, cls: ast.ClassDef
) -> Iterator[tuple[str, str]]:
    """The classes of other packages that one of this package derives from."""
    for base in cls.bases:
        named = base.value if isinstance(base, ast.Subscript) else base
        if not isinstance(named, ast.Name):
            continue
        if named.id in module.classes:
            yield from foreign_bases(own, module, module.classes[named.id])
        for origin, name in module.imports.get(named.id, ()):
            if is_foreign(origin):
                yield origin, name
            elif origin in own and name in own[origin].classes:
                yield from foreign_bases(own, own[origin], own[origin].classes[name])


def own_names(cls: ast.ClassDef) -> Iterator[str]:
    """The names in the body of a class, without those that Python itself gives a meaning."""
    for statement in cls.body:
        if isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
            names = [statement.name]
        elif isinstance(statement, (ast.Assign, ast.AnnAssign)):
            targets = ast.walk(statement)
            names = [
                n.id for n in targets if isinstance(n, ast.Name) and isinstance(n.ctx, ast.Store)
            ]
        else:
            names = []
        yield from (name for name in names if not name.startswith("__"))


def test_what_is_overridden_is_listed(own: dict[str, OwnModule]) -> None:
    sources = {name: Sources(installed.folder(name)) for name in UNPROMISED if have(name)}
    unlisted, seen = [], 0
    for module in own.values():
        for cls in module.classes.values():
            for origin, base in set(foreign_bases(own, module, cls)):
                package = sources.get(origin.partition(".")[0])
                for name in own_names(cls) if package is not None else ():
                    assert package is not None
                    if package.find(origin, f"{base}.{name}"):
                        seen += 1
                        if name not in LISTED:
                            unlisted.append(f"{module.name}: {cls.name}.{name} of {base}")
    assert not unlisted
    assert seen > 30


def test_rows_are_of_a_module_that_is_there(own: dict[str, OwnModule]) -> None:
    assert not [str(row) for row in ROWS if row.by not in own]


# -- the check sees what is missing --------------------------------------------

PACKAGE = {
    "__init__.py": "from .far import *\n",
    "far.py": "from other import thing\n\ndef starred(a, b=1): ...\n",
    "base.py": '''
"""Text that
begins at the margin, with a (bracket.

class Written:
"""
import enum


class Base:
    declared: int = 0
    __slots__ = ("slotted",)

    def __init__(self, first, second=None):
        if first:
            self.set_once, (self.set_too, *_) = first, (second,)

    def inherited(self, given, *, named=None): ...

    @staticmethod
    def static(alone): ...

    @property
    def computed(self): ...


class Cut(Base):
    """A class whose text
begins at the margin."""

    def __init__(self): self.after_the_cut = 1
''',
    "above.py": """
from . import base
from .base import Base as Renamed
if True:
    from .base import Base
else:
    from .base import Cut as Base
from dataclasses import dataclass
from ._compiled import in_c

Alias = Renamed
_private = {}


class Above(base.Base):
    def method(self, one, two, three=3, *, four): ...
    def open(self, *args, **kwargs): ...


class Both(Alias, Above): ...


@dataclass
class Data:
    x: int
    y: int = 0


def mark_it(thing):
    thing.marked = "a word"
""",
}


@pytest.fixture
def release(tmp_path: Path) -> Path:
    folder = tmp_path / "package"
    folder.mkdir()
    for name, text in PACKAGE.items():
        (folder / name).write_text(text)
    return folder


def problems(folder: Path, *rows: Internal | tuple[Internal, ...]) -> list[Problem]:
    table = within("package.above", "tracing", *rows)
    return check(table, Sources(folder), Release("package", "1.2"))


def test_what_is_there_is_found(release: Path) -> None:
    there = (
        class_("Above", "first"),
        class_("Data", "x", named=("y",)),
        variable("_private"),
        variable("in_c"),
        mark("marked"),
        word("a word"),
        function("Above.inherited", "given", named=("named",)),
        function("Above.static", "alone"),
        function("Both.method", "one", "two", named=("four",)),
        overridden("Both.method", "one", "two", "three", rest="anything"),
        function("Above.open", "what", "ever", named=("else_",)),
        passed_on("Above.method", "one"),
        attributes("Above", "computed", "declared", "set_once", "set_too", "slotted", "inherited"),
        attributes("Alias", "set_once"),
        attributes("Base", "set_once"),
    )
    assert not problems(release, *there)
    elsewhere = (
        *within("package.base", "tracing", attributes("Cut", "after_the_cut", "set_once")),
        *within("package", "tracing", function("starred", "a", named=("b",)), variable("thing")),
    )
    assert not check(elsewhere, Sources(release), Release("package"))


@pytest.mark.parametrize(
    ("row", "said"),
    [
        (class_("Written"), "is not there"),
        (class_("Above", "second"), "takes first, second by position, and not second first"),
        (class_("Data", named=("x", "z")), "takes no z"),
        (class_("Data", named=("y",)), "cannot do without x"),
        (class_("mark_it"), "is no class"),
        (variable("_renamed"), "is not there"),
        (mark("unmarked"), "is set on no object there"),
        (word("another"), "is no string there"),
        (function("Above.renamed"), "is not there"),
        (function("Above.declared"), "is no function"),
        (function("Above.method", "one", "three"), "takes one, two, three by position"),
        (function("Above.method", "one", "two", named=("five",)), "takes no five"),
        (function("Above.method", "one", "two"), "cannot do without four"),
        (function("Above.static", "alone", "other"), "takes alone by position"),
        (overridden("Above.method", "one", "two"), "takes three, four as well"),
        (attributes("Both", "missing")[0], "is not there"),
    ],
)
def test_what_is_missing_is_reported(release: Path, row: Internal, said: str) -> None:
    (problem,) = problems(release, row)
    assert str(problem).startswith(f"package 1.2: package.above.{row.name} {said}")
    assert str(problem).endswith("; nnterp.tracing relies on it")


def test_a_missing_module_is_reported(release: Path) -> None:
    gone = within("package.gone", "tracing", function("f"))
    (problem,) = check(gone, Sources(release), Release("package"))
    assert "there is no module package.gone" in str(problem)


def test_a_row_is_not_asked_of_a_release_before_it(release: Path) -> None:
    row = Internal("variable", "_renamed", "package.above", "nnterp", since="1.10")
    for version, expected in (("1.9", 0), ("1.10", 1), ("", 1)):
        assert len(check([row], Sources(release), Release("package", version))) == expected


def test_what_is_compiled_is_looked_for_in_the_running_package(release: Path) -> None:
    rows = within("torch._C", "lifetime", compiled("_InferenceMode"), compiled("_Renamed"))
    assert not check(rows, Sources(release), Release("torch"))
    (problem,) = check(rows, Sources(release), Release("torch"), running=True)
    assert problem.internal.name == "_Renamed"


def test_a_class_is_read_once(release: Path) -> None:
    sources = Sources(release)
    first, second = (sources.find("package.above", "Above")[0].binding for _ in range(2))
    assert first is second
    assert isinstance(first, Class)


def test_a_worker_refuses_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    said = [
        Problem(Internal("variable", "a", harmless=True), "advice is gone"),
        Problem(Internal("variable", "b"), "the worker is gone"),
    ]
    monkeypatch.setattr(installed, "problems", lambda package: said)
    with (
        pytest.warns(UserWarning, match="advice is gone"),
        pytest.raises(installed.ForeignPackageChanged, match="the worker is gone") as raised,
    ):
        installed.require("vllm")
    assert "advice" not in str(raised.value)


def test_an_unpacked_release_is_checked_from_the_command_line(
    release: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    rows = within("package.above", "tracing", variable("_private"), variable("_renamed"))
    monkeypatch.setattr(command, "TABLES", {"package": rows})
    (release.parent / "PKG-INFO").write_text("Metadata-Version: 2.1\nName: package\nVersion: 3.4\n")
    for path in (release, release.parent):
        assert command.main(["package", str(path)]) == 1
        said = capsys.readouterr().out.splitlines()
        assert said[0].startswith("package 3.4: package.above._renamed is not there")
        assert said[-1] == "package 3.4: 1 problems, 2 internals"
    with pytest.raises(SystemExit):
        command.main(["package", str(release / "nowhere")])
