"""A thousand traced requests leave nothing behind."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import apart
import memory_runs
from conftest import TINY_ENGINE

#: Bytes a request. A worker that runs no block at all gains about 200.
FLAT = 800


def test_memory_is_flat_over_a_thousand_requests(
    tiny_folder: Callable[[str], Path], tmp_path: Path
) -> None:
    found = tmp_path / "slopes.json"
    script = str(Path(memory_runs.__file__))
    print(apart.run([script, str(tiny_folder("llama")), str(found), json.dumps(TINY_ENGINE)]))
    slopes = json.loads(found.read_text())
    assert slopes["client"] < FLAT
    assert slopes["worker"] < FLAT
    assert slopes["left"] == 0
