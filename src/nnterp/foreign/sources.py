"""What a package's sources define, read without running any of them.

A release is judged before it is trusted, and one that is merely unpacked cannot be imported. So
its modules are parsed, and a name is followed as Python would follow it: through imports within
the package, to a class, and from a class to its bases. What comes from another package, or is
made while the package runs, is out of reach.

Of a module no more is parsed than is asked for, since some are as long as a book: its text is cut
where a line begins at the margin. Where a string does so too, the pieces do not parse, and the
module is parsed as a whole.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

Function = ast.FunctionDef | ast.AsyncFunctionDef


class Imported(NamedTuple):
    """A name that a module takes from another.

    Attributes:
        module: The other module, in full.
        name: What it is called there; None where it is the module itself.
    """

    module: str
    name: str | None


class Assigned(NamedTuple):
    """A name bound to what an expression gives; None where it is declared alone."""

    value: ast.expr | None


class Class:
    """A class statement, parsed when it is first looked into.

    Args:
        name: The class's name.
        piece: Its source.
        whole: That of its module, should the piece be cut short.
    """

    def __init__(self, name: str, piece: str, whole: str) -> None:
        self._name = name
        self._piece = piece
        self._whole = whole

    @classmethod
    def parsed(cls, node: ast.ClassDef) -> Class:
        """One whose statement has been parsed."""
        known = cls(node.name, "", "")
        known.__dict__["node"] = node
        return known

    @cached_property
    def node(self) -> ast.ClassDef:
        """The statement."""
        try:
            tree = ast.parse(self._piece)
        except SyntaxError:
            tree = ast.parse(self._whole)
        named = (node for node in _flat(tree.body) if isinstance(node, ast.ClassDef))
        return next(node for node in named if node.name == self._name)

    @cached_property
    def members(self) -> dict[str, list[Binding]]:
        """What it defines, and what its methods set on their object."""
        return _members(self.node)


#: What a name can be bound to.
Binding = Class | Function | Imported | Assigned


class Found(NamedTuple):
    """A definition, and the module that it is in."""

    module: Module
    binding: Binding


#: Where a statement begins at the margin, or what looks like one.
_MARGIN = re.compile(r"^(?=[^\s#)\]}'\"])", re.MULTILINE)

_DEFINITION = re.compile(r"(?:class|def|async\s+def)\s+(\w+)")


class Module:
    """One module's source.

    Args:
        name: Its dotted name.
        path: Its file.
    """

    def __init__(self, name: str, path: Path) -> None:
        self.name = name
        self.text = path.read_text(encoding="utf-8")
        self._package = name if path.name == "__init__.py" else name.rpartition(".")[0]
        self._definitions: dict[str, list[str]] = {}
        self._known: dict[str, list[Binding]] = {}
        others = []
        for piece in _MARGIN.split(self.text):
            definition = _DEFINITION.match(piece)
            if definition is not None:
                self._definitions.setdefault(definition[1], []).append(piece)
            elif not piece.startswith("@"):
                others.append(piece)
        self._others = "".join(others)

    def bindings(self, name: str) -> list[Binding]:
        """What ``name`` is bound to at its top level, in every branch that binds it."""
        if name not in self._known:
            try:
                own = [self._definition(name, piece) for piece in self._definitions.get(name, ())]
                self._known[name] = own + self._bound.get(name, [])
            except SyntaxError:
                # Cut inside a string.
                self._definitions, self._others = {}, self.text
                self._known[name] = self._bound.get(name, [])
        return self._known[name]

    def _definition(self, name: str, piece: str) -> Binding:
        if piece.startswith("class"):
            return Class(name, piece, self.text)
        statement = ast.parse(piece).body[0]
        assert isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef))
        return statement

    @cached_property
    def stars(self) -> list[str]:
        """The modules it takes every name from."""
        return [
            self._absolute(statement)
            for statement in self._statements
            if isinstance(statement, ast.ImportFrom) and statement.names[0].name == "*"
        ]

    def sets(self, attribute: str) -> bool:
        """Whether it gives any object this ``attribute``."""
        return f".{attribute}" in self.text and any(
            isinstance(target, ast.Attribute) and target.attr == attribute
            for target in _targets(ast.parse(self.text).body)
        )

    def spells(self, text: str) -> bool:
        """Whether one of its strings is ``text``."""
        return re.search(rf"""(["']){re.escape(text)}\1""", self.text) is not None

    @cached_property
    def _statements(self) -> list[ast.stmt]:
        return list(_flat(ast.parse(self._others).body))

    @cached_property
    def _bound(self) -> dict[str, list[Binding]]:
        bound: dict[str, list[Binding]] = {}
        for statement in self._statements:
            for name, binding in self._names(statement):
                bound.setdefault(name, []).append(binding)
        return bound

    def _names(self, statement: ast.stmt) -> Iterator[tuple[str, Binding]]:
        if isinstance(statement, ast.Import):
            for alias in statement.names:
                name = alias.asname or alias.name.partition(".")[0]
                yield name, Imported(alias.name if alias.asname else name, None)
        elif isinstance(statement, ast.ImportFrom):
            for alias in statement.names:
                yield alias.asname or alias.name, Imported(self._absolute(statement), alias.name)
        else:
            yield from _defined(statement)

    def _absolute(self, statement: ast.ImportFrom) -> str:
        if not statement.level:
            return statement.module or ""
        parents = self._package.split(".")
        kept = parents[: len(parents) - statement.level + 1]
        return ".".join([*kept, *filter(None, [statement.module])])


class Sources:
    """The sources of one package.

    Args:
        folder: The package's folder, which has its name.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.package = folder.name
        self._modules: dict[str, Module | None] = {}

    def module(self, name: str) -> Module | None:
        """The module of this dotted ``name``; None where there is none."""
        if name not in self._modules:
            first, *rest = name.split(".")
            path = self.folder.joinpath(*rest)
            files = (path / "__init__.py", path.with_name(f"{path.name}.py"))
            file = next((file for file in files if file.is_file()), None)
            known = first == self.package and file is not None
            self._modules[name] = Module(name, file) if known and file is not None else None
        return self._modules[name]

    def find(self, module: str, name: str) -> list[Found]:
        """Every definition of a qualified ``name``, as ``Class.method``, in a module.

        Args:
            module: The module's dotted name.
            name: The name, from the module.

        Returns:
            The definitions, one for each branch that has one; none where it is not found.
        """
        top, *inner = name.split(".")
        found = self._named(module, top, frozenset())
        for attribute in inner:
            found = [
                member for owner in found for member in self._member(owner, attribute, frozenset())
            ]
        return found

    def _named(self, module: str, name: str, seen: frozenset[tuple[str, str]]) -> list[Found]:
        known = self.module(module)
        if known is None or (module, name) in seen:
            return []
        seen |= {(module, name)}
        found: list[Found] = []
        for binding in known.bindings(name):
            found += self._followed(known, binding, seen)
        if not found:
            for star in known.stars:
                found += self._named(star, name, seen)
        return found

    def _followed(
        self, module: Module, binding: Binding, seen: frozenset[tuple[str, str]]
    ) -> list[Found]:
        """``binding``, or what it stands for, if it is another name in the package."""
        if isinstance(binding, Imported) and binding.name is not None:
            if self.module(f"{binding.module}.{binding.name}") is not None:
                return [Found(module, Imported(f"{binding.module}.{binding.name}", None))]
            # A module without source is compiled, and what it has is out of reach.
            if self.module(binding.module) is not None:
                return self._named(binding.module, binding.name, seen)
        if isinstance(binding, Assigned) and isinstance(binding.value, ast.Name):
            return self._named(module.name, binding.value.id, seen) or [Found(module, binding)]
        return [Found(module, binding)]

    def _member(self, owner: Found, name: str, seen: frozenset[Class]) -> list[Found]:
        """What ``name`` is in a class, or in the first of its bases to have it."""
        cls = owner.binding
        if not isinstance(cls, Class) or cls in seen:
            return []
        own = cls.members.get(name)
        if own is not None:
            return [Found(owner.module, binding) for binding in own]
        for base in cls.node.bases:
            for above in self._expression(owner.module, base):
                found = self._member(above, name, seen | {cls})
                if found:
                    return found
        return []

    def _expression(self, module: Module, base: ast.expr) -> list[Found]:
        """What a class is derived from."""
        if isinstance(base, ast.Subscript):
            return self._expression(module, base.value)
        if isinstance(base, ast.Name):
            return self._named(module.name, base.id, frozenset())
        if isinstance(base, ast.Attribute):
            return [
                found
                for owner in self._expression(module, base.value)
                if isinstance(owner.binding, Imported) and owner.binding.name is None
                for found in self._named(owner.binding.module, base.attr, frozenset())
            ]
        return []


def fields(cls: Class) -> list[tuple[str, bool]]:
    """The fields of a dataclass, in order, and whether each has a default."""
    return [
        (statement.target.id, statement.value is not None)
        for statement in cls.node.body
        if isinstance(statement, ast.AnnAssign) and isinstance(statement.target, ast.Name)
    ]


def is_static(function: Function) -> bool:
    """Whether a method is called without its object or class."""
    return any(
        isinstance(by, ast.Name) and by.id == "staticmethod" for by in function.decorator_list
    )


def _flat(body: Iterable[ast.stmt]) -> Iterator[ast.stmt]:
    """The statements of ``body``, with those of its branches in their place."""
    for statement in body:
        if isinstance(statement, (ast.If, ast.Try, ast.With, ast.For, ast.While)):
            yield from _flat(statement.body)
            for handler in getattr(statement, "handlers", ()):
                yield from _flat(handler.body)
            for part in ("orelse", "finalbody"):
                yield from _flat(getattr(statement, part, ()))
        else:
            yield statement


def _defined(statement: ast.stmt) -> Iterator[tuple[str, Binding]]:
    """The names that a statement binds, other than by an import."""
    if isinstance(statement, ast.ClassDef):
        yield statement.name, Class.parsed(statement)
    elif isinstance(statement, (ast.FunctionDef, ast.AsyncFunctionDef)):
        yield statement.name, statement
    elif isinstance(statement, ast.AnnAssign):
        if isinstance(statement.target, ast.Name):
            yield statement.target.id, Assigned(statement.value)
    elif isinstance(statement, ast.Assign):
        for target in _targets([statement]):
            if isinstance(target, ast.Name):
                yield target.id, Assigned(statement.value)


def _targets(body: Iterable[ast.stmt]) -> Iterator[ast.expr]:
    """Whatever the statements of ``body`` assign to, at any depth."""
    waiting: list[Any] = list(body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.Assign):
            targets = list(node.targets)
        elif isinstance(node, (ast.AnnAssign, ast.AugAssign, ast.For, ast.AsyncFor)):
            targets = [node.target]
        elif isinstance(node, ast.withitem) and node.optional_vars is not None:
            targets = [node.optional_vars]
        else:
            targets = []
        while targets:
            target = targets.pop()
            if isinstance(target, (ast.Tuple, ast.List)):
                targets += target.elts
            else:
                yield target
        # Past the expressions, which are most of a module and assign nothing.
        for part in ("body", "orelse", "finalbody", "handlers", "items", "cases"):
            waiting += getattr(node, part, ()) if not isinstance(node, ast.expr) else ()


def _members(cls: ast.ClassDef) -> dict[str, list[Binding]]:
    members: dict[str, list[Binding]] = {}
    for statement in _flat(cls.body):
        for name, binding in _defined(statement):
            members.setdefault(name, []).append(binding)
            if name == "__slots__" and isinstance(binding, Assigned) and binding.value is not None:
                for slot in ast.walk(binding.value):
                    if isinstance(slot, ast.Constant) and isinstance(slot.value, str):
                        members.setdefault(slot.value, []).append(Assigned(None))
    for method in _flat(cls.body):
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef)) and method.args.args:
            own = method.args.args[0].arg
            for target in _targets(method.body):
                if (
                    isinstance(target, ast.Attribute)
                    and isinstance(target.value, ast.Name)
                    and target.value.id == own
                ):
                    members.setdefault(target.attr, []).append(Assigned(None))
    return members
