"""``python -m nnterp.foreign PACKAGE PATH``: what an unpacked release lacks, and how much."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from nnterp.foreign.installed import TABLES, release
from nnterp.foreign.internals import check
from nnterp.foreign.sources import Sources

#: The most that an exit status can say.
_MOST = 255


def main(arguments: Sequence[str] | None = None) -> int:
    """Print what a release lacks.

    Args:
        arguments: The command line's; by default this process's own.

    Returns:
        How many problems there are, and 255 at most.
    """
    parser = argparse.ArgumentParser(
        prog="python -m nnterp.foreign",
        description="Say what an unpacked release lacks of what nnterp relies on. What is compiled "
        "has no source and is passed over.",
    )
    parser.add_argument("package", choices=sorted(TABLES))
    parser.add_argument("path", type=Path, help="the package's folder, or one that it is in")
    given = parser.parse_args(arguments)
    inside = (given.path, given.path / given.package, given.path / "src" / given.package)
    folder = next((at for at in inside if (at / "__init__.py").is_file()), None)
    if folder is None or folder.resolve().name != given.package:
        parser.error(f"there is no package {given.package} at {given.path}")
    folder = folder.resolve()
    problems = check(TABLES[given.package], Sources(folder), release(folder))
    for problem in problems:
        print(problem)
    print(f"{release(folder)}: {len(problems)} problems, {len(TABLES[given.package])} internals")
    return min(len(problems), _MOST)


if __name__ == "__main__":
    sys.exit(main())
