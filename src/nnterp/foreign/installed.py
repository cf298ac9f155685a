"""The check of the releases that are installed, once a process."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import warnings
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from importlib import metadata
from pathlib import Path

from nnterp.foreign.internals import Internal, Problem, Release, check
from nnterp.foreign.nnsight import NNSIGHT
from nnterp.foreign.sources import Sources
from nnterp.foreign.torch import TORCH
from nnterp.foreign.transformers import TRANSFORMERS
from nnterp.foreign.vllm import VLLM

#: What is relied on of each package.
TABLES: Mapping[str, Sequence[Internal]] = {
    "nnsight": NNSIGHT,
    "torch": TORCH,
    "transformers": TRANSFORMERS,
    "vllm": VLLM,
}


class ForeignPackageChanged(ImportError):
    """An installed release lacks something that this package relies on."""


def folder(package: str) -> Path:
    """Where the installed ``package`` is.

    Args:
        package: Its name, as it is imported.

    Returns:
        The folder of its sources.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    found = importlib.util.find_spec(package)
    if found is None or not found.submodule_search_locations:
        raise ModuleNotFoundError(f"there is no package {package!r} to check")
    return Path(found.submodule_search_locations[0])


@cache
def problems(package: str) -> tuple[Problem, ...]:
    """What the installed release of ``package`` lacks.

    Args:
        package: Its name, as it is imported.

    Returns:
        The problems, in the order of its table.

    Raises:
        ModuleNotFoundError: It is not installed.
    """
    at = folder(package)
    with _uncollected():
        return tuple(check(TABLES[package], Sources(at), release(at), running=True))


@contextlib.contextmanager
def _uncollected() -> Iterator[None]:
    """Keep garbage for a moment.

    A parsed module is a great many objects at once, and looking for garbage in all that an engine's
    process holds, each time there are some more, takes longer than the parsing.
    """
    collected = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if collected:
            gc.enable()


def release(at: Path) -> Release:
    """What to call the release whose package is at ``at``: its distribution and version.

    An installed package's are noted in a folder beside its own, an unpacked source release's in
    a file beside or above it.
    """
    notes = (
        *sorted(at.parent.glob(f"{at.name}*.dist-info")),
        at.parent / "PKG-INFO",
        at.parent.parent / "PKG-INFO",
    )
    for note in notes:
        if not note.exists():
            continue
        distribution = metadata.Distribution.at(note)
        name = distribution.metadata["Name"]
        if name == at.name or name.startswith(f"{at.name}-"):
            return Release(name, distribution.version)
    return Release(f"{at.name} in {at.parent}")


def require(*packages: str) -> None:
    """Refuse installed releases that lack what this package relies on.

    What is lost without it may be advice alone: then this warns.

    Raises:
        ForeignPackageChanged: One lacks something else; it names all that is missing.
    """
    found = [problem for package in packages for problem in problems(package)]
    for problem in found:
        if problem.internal.harmless:
            warnings.warn(str(problem), UserWarning, stacklevel=2)
    missing = [str(problem) for problem in found if not problem.internal.harmless]
    if missing:
        raise ForeignPackageChanged(
            "an installed package is not what this release of nnterp was written for; install "
            "versions within the bounds of its requirements:\n" + "\n".join(missing)
        )
