"""One family's tests make and run that family's checkpoints, and all tests all."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import selected
from tiny import ROWS

TESTS = Path(selected.__file__).parent


def item(fixtures: Sequence[str], **parameters: Any) -> Any:
    """A collected test, as far as `selected` looks at one."""
    found = SimpleNamespace(fixturenames=fixtures)
    if parameters:
        found.callspec = SimpleNamespace(params=parameters)
    return found


def test_each_checkpoint_is_named_once_in_the_order_of_the_tests() -> None:
    items = [
        item(["engine"], name="gpt2"),
        item(["run_of", "name"], name="phi"),
        item(["run_of", "name", "kind"], name="llama", kind="own"),
        item(["run_of", "name", "kind"], name="phi", kind="own"),
    ]
    assert selected.names(items, "run_of") == ["phi", "llama"]
    assert selected.names(items, "reference") == []


def test_a_test_without_a_name_asks_for_every_checkpoint_behind_those_named_before() -> None:
    items = [item(["run_of"], name="phi"), item(["run_of"]), item(["run_of"], kind="own")]
    assert selected.names(items, "run_of", every=["llama", "phi"]) == ["phi", "llama"]
    assert selected.names(items, "run_of") == ["phi"]


#: What some arguments of pytest each select, and which checkpoints that would be a run of.
SELECTIONS: dict[str, set[str]] = {
    "arcee": {"arcee"},
    "test_the_two_engines_agree and helium": {"helium"},
    "test_every_family_has_a_row": set(),
    "": set(ROWS),
}

COLLECT = """
import sys, pytest, selected, tiny

class Names:
    def pytest_collection_finish(self, session):
        names = selected.names(session.items, "run_of", every=list(tiny.ROWS))
        print(*names, file=sys.stderr)

for chosen in sys.argv[1:]:
    arguments = ["vllm_families", "--collect-only", "-q", "-p", "no:cacheprovider", "-k", chosen]
    pytest.main(arguments, plugins=[Names()])
"""


def test_what_is_selected_is_what_is_run() -> None:
    """In one process, for what takes the time is the imports."""
    command = [sys.executable, "-c", COLLECT, *SELECTIONS]
    ended = subprocess.run(command, cwd=TESTS, capture_output=True, text=True, check=True)
    runs = [line.split() for line in ended.stderr.splitlines()[-len(SELECTIONS) :]]
    for names, expected in zip(runs, SELECTIONS.values(), strict=True):
        assert len(names) == len(set(names))
        assert set(names) == expected
