"""What this package relies on of others that they do not promise, and a check that it is there.

An `Internal` is one such name: private, or public and undocumented. The tables beside this module
list them. A release that renames one is found by `check`, which reads the release's sources, where
an attribute that is asked for with a default would go wrong in silence.
"""

from __future__ import annotations

import ast
import importlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, NamedTuple

from packaging.version import Version

from nnterp.foreign.sources import Class, Found, Function, Imported, Sources, fields, is_static

#: What an internal is. An ``attribute`` is of a class: set on its objects, declared in it or a
#: property. A ``mark`` is an attribute that a module sets on objects of any class, a ``word`` a
#: string of its own. What is ``compiled`` has no source, and is looked for in the running package.
Kind = Literal["class", "function", "attribute", "variable", "module", "mark", "word", "compiled"]

#: What a function may take beside what is relied on.
Rest = Literal["anything", "optional", "nothing"]


@dataclass(frozen=True)
class Internal:
    """One name of another package.

    Attributes:
        kind: What it is.
        name: Its qualified name in its module: ``function``, ``Class.method``.
        module: The module, in full.
        by: The module of this package that relies on it.
        takes: The parameters that are passed by position, in order, without ``self``.
        named: Those that are passed by name.
        rest: What else it may take: ``optional`` parameters where it is called, ``nothing`` where
            it is overridden by a function that takes no more, ``anything`` where whatever comes is
            passed on.
        harmless: Whether all that is lost without it is advice.
        since: The first release that has it, where it is done without in those before.
    """

    kind: Kind
    name: str
    module: str = ""
    by: str = ""
    takes: tuple[str, ...] = ()
    named: tuple[str, ...] = ()
    rest: Rest = "optional"
    harmless: bool = False
    since: str = ""

    def __str__(self) -> str:
        return f"{self.module}.{self.name}" if self.name else self.module


def function(
    name: str, *takes: str, named: Sequence[str] = (), rest: Rest = "optional"
) -> Internal:
    """A function or method, and the parameters that it is called with."""
    return Internal("function", name, takes=takes, named=tuple(named), rest=rest)


def overridden(name: str, *takes: str, rest: Rest = "nothing") -> Internal:
    """A method that a class of this package replaces, and the parameters that it is called with."""
    return Internal("function", name, takes=takes, rest=rest)


def passed_on(name: str, *takes: str, named: Sequence[str] = ()) -> Internal:
    """A function whose further arguments, whatever they are, are passed on."""
    return Internal("function", name, takes=takes, named=tuple(named), rest="anything")


def class_(name: str, *takes: str, named: Sequence[str] = ()) -> Internal:
    """A class; where its parameters are given, one that is constructed with them."""
    rest: Rest = "optional" if takes or named else "anything"
    return Internal("class", name, takes=takes, named=tuple(named), rest=rest)


def attributes(owner: str, *names: str) -> tuple[Internal, ...]:
    """Attributes of the class ``owner``."""
    return tuple(Internal("attribute", f"{owner}.{name}") for name in names)


def variable(name: str) -> Internal:
    """A name of a module's top level."""
    return Internal("variable", name)


def mark(name: str) -> Internal:
    """An attribute that a module sets on objects of other classes."""
    return Internal("mark", name)


def word(name: str) -> Internal:
    """A string that a module and this package both spell."""
    return Internal("word", name)


def compiled(name: str) -> Internal:
    """A name of a module that is written in C."""
    return Internal("compiled", name)


def within(module: str, by: str, *rows: Internal | tuple[Internal, ...]) -> tuple[Internal, ...]:
    """``rows`` as those of a ``module`` that the module ``by`` of this package relies on."""
    flat = [one for row in rows for one in (row if isinstance(row, tuple) else (row,))]
    return tuple(replace(row, module=module, by=f"nnterp.{by}") for row in flat)


class Problem(NamedTuple):
    """Something that is relied on and is not there.

    Attributes:
        internal: What.
        sentence: What is wrong, in which release, and for whom.
    """

    internal: Internal
    sentence: str

    def __str__(self) -> str:
        return self.sentence


class Release(NamedTuple):
    """What is checked.

    Attributes:
        name: The distribution's name, or where the package is.
        version: Its version; empty where that is not said.
    """

    name: str
    version: str = ""

    def __str__(self) -> str:
        return f"{self.name} {self.version}".rstrip()

    def has(self, row: Internal) -> bool:
        """Whether ``row`` is relied on in this release."""
        return not (row.since and self.version) or Version(self.version) >= Version(row.since)


def check(
    table: Iterable[Internal], sources: Sources, release: Release, running: bool = False
) -> list[Problem]:
    """What of ``table`` is missing in a release, or has lost a parameter that is relied on.

    Args:
        table: What is relied on.
        sources: The sources of the release.
        release: Which one it is.
        running: Whether these are the sources of the package that this process would import, so
            that what is compiled can be looked for there. Elsewhere it is passed over.

    Returns:
        The problems, in the order of the table.
    """
    found = ((row, _wrong(row, sources, running)) for row in table if release.has(row))
    return [
        Problem(row, f"{release}: {row} {said}; {row.by} relies on it")
        for row, said in found
        if said is not None
    ]


def _wrong(row: Internal, sources: Sources, running: bool) -> str | None:
    """What is wrong with ``row``, said of it; None where nothing is."""
    if row.kind == "compiled":
        return "is not there" if running and not _runs(row) else None
    module = sources.module(row.module)
    if module is None:
        return f"is not there, for there is no module {row.module}" if row.name else "is not there"
    if row.kind == "module":
        return None
    if row.kind == "mark":
        return None if module.sets(row.name) else "is set on no object there"
    if row.kind == "word":
        return None if module.spells(row.name) else "is no string there"
    found = sources.find(row.module, row.name)
    if not found:
        return "is not there"
    if row.kind == "class":
        return _wrong_class(row, sources, found)
    if row.kind == "function":
        return _wrong_function(row, found)
    return None


def _runs(row: Internal) -> bool:
    found: Any = importlib.import_module(row.module)
    for name in row.name.split("."):
        found = getattr(found, name, None)
    return found is not None


def _wrong_class(row: Internal, sources: Sources, found: Sequence[Found]) -> str | None:
    classes = [one.binding for one in found if isinstance(one.binding, Class)]
    if not classes:
        return None if _is_elsewhere(found) else "is no class"
    if not (row.takes or row.named):
        return None
    constructors = sources.find(row.module, f"{row.name}.__init__")
    if constructors:
        return _wrong_function(row, constructors)
    names = [name for name, _ in fields(classes[0])]
    required = [name for name, has_default in fields(classes[0]) if not has_default]
    return _unlike(row, _Signature(names, names, required, False, False))


def _wrong_function(row: Internal, found: Sequence[Found]) -> str | None:
    functions = [
        one.binding
        for one in found
        if isinstance(one.binding, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]
    if not functions:
        return None if _is_elsewhere(found) else "is no function"
    said = [
        _unlike(row, _signature(own, "." in row.name or row.kind == "class")) for own in functions
    ]
    # Of several, as under a condition or of overloads, one has to fit.
    return None if None in said else said[-1]


def _is_elsewhere(found: Sequence[Found]) -> bool:
    """Whether a name is taken from another package, whose sources are not at hand."""
    return any(isinstance(one.binding, Imported) for one in found)


class _Signature(NamedTuple):
    """What a function takes.

    Attributes:
        by_position: The parameters it takes by position, in order.
        by_name: Those it takes by name.
        required: Those without a default.
        any_position: Whether it takes any more by position.
        any_name: Whether it takes any more by name.
    """

    by_position: list[str]
    by_name: list[str]
    required: list[str]
    any_position: bool
    any_name: bool


def _signature(own: Function, method: bool) -> _Signature:
    args = own.args
    positional = [*args.posonlyargs, *args.args]
    defaults = len(args.defaults)
    required = [one.arg for one in positional[: len(positional) - defaults]]
    required += [
        one.arg
        for one, default in zip(args.kwonlyargs, args.kw_defaults, strict=True)
        if not default
    ]
    names = [one.arg for one in positional]
    bound = names[:1] if method and not is_static(own) else []
    return _Signature(
        names[len(bound) :],
        [one.arg for one in (*args.args, *args.kwonlyargs) if one.arg not in bound],
        [name for name in required if name not in bound],
        args.vararg is not None,
        args.kwarg is not None,
    )


def _unlike(row: Internal, own: _Signature) -> str | None:
    """How a function's parameters are not those that ``row`` relies on; None where they are."""
    begins = own.by_position[: len(row.takes)]
    if tuple(begins) != row.takes[: len(begins)] or (
        len(begins) < len(row.takes) and not own.any_position
    ):
        return f"takes {_listed(own.by_position)} by position, and not {_listed(row.takes)} first"
    lost = [name for name in row.named if name not in own.by_name and not own.any_name]
    if lost:
        return f"takes no {_listed(lost)}"
    passed = {*row.takes, *row.named}
    others = [
        name for name in dict.fromkeys((*own.by_position, *own.by_name)) if name not in passed
    ]
    if row.rest == "nothing" and others:
        return f"takes {_listed(others)} as well"
    needed = [name for name in others if name in own.required]
    if row.rest == "optional" and needed:
        return f"cannot do without {_listed(needed)}"
    return None


def _listed(names: Iterable[str]) -> str:
    return ", ".join(names) or "nothing"
