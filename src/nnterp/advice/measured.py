"""Records how far each release of an engine was from correct, family by family.

Tiny checkpoints of every family are run on the engines, and the outcome of each run is kept in
``measured.json``: the worst difference, or what failed. A load warns of a family that failed, or
that was not run, on the release and platform in use, and goes on. All patches of a release count
as one release, and transformers is not distinguished by platform.
"""

from __future__ import annotations

import importlib
import json
import re
import warnings
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

from nnterp.vocabulary.values import Engine

FILE = Path(__file__).with_name("measured.json")

#: Errors within this factor of each other, or below this size, count as equal, because machines
#: round differently.
_ALIKE, _NOTHING = 3, 1e-7


class UnverifiedWarning(UserWarning):
    """Warns of a checkpoint whose family was not found to be correct on the engine in use."""


@dataclass(frozen=True)
class Outcome:
    """An `Outcome` is the result of running a checkpoint on an engine.

    Attributes:
        relative_error: The worst difference, relative to a value's largest magnitude: on vLLM from
            transformers, on transformers between the difference a block makes and the sum of what
            its parts add. None where nothing was compared.
        failed: What failed; empty where nothing did.
    """

    relative_error: float | None = None
    failed: str = ""

    def __str__(self) -> str:
        relative_error = "" if self.relative_error is None else f"{self.relative_error:.0e}"
        return (
            f"FAILED {relative_error} ({self.failed})".replace("  ", " ")
            if self.failed
            else relative_error
        )


#: The outcomes by ``model_type``, then the checkpoint's name, then the engine's (`engine_name`).
Measured = Mapping[str, Mapping[str, Mapping[str, Outcome]]]


def engine_name(engine: Engine, version: str, platform: str) -> str:
    """Return the name used here for a release of ``engine`` on ``platform`` (``cpu``, ``cuda``)."""
    name = f"{engine} {'.'.join(version.split('.')[:2])}"
    return f"{name} {platform}" if engine == "vllm" else name


@cache
def read() -> Measured:
    """Return the outcomes in ``measured.json``."""
    return loads(FILE.read_text())


def loads(text: str) -> Measured:
    """Return the outcomes in ``text``, which `dumps` wrote."""
    return {
        model_type: {
            name: {
                engine: Outcome(**said) if isinstance(said, dict) else Outcome(said)
                for engine, said in engines.items()
            }
            for name, engines in checkpoints.items()
        }
        for model_type, checkpoints in json.loads(text).items()
    }


def dumps(measured: Measured) -> str:
    """Return ``measured`` as sorted JSON, with an outcome that did not fail as its error alone."""
    said = {
        model_type: {
            name: {
                engine: asdict(outcome) if outcome.failed else outcome.relative_error
                for engine, outcome in engines.items()
            }
            for name, engines in checkpoints.items()
        }
        for model_type, checkpoints in measured.items()
    }
    return json.dumps(said, indent=2, sort_keys=True) + "\n"


def merge(old: Measured, new: Measured) -> Measured:
    """Return ``old`` updated by ``new``, except where the two count as equal."""
    merged = {
        model_type: {name: dict(engines) for name, engines in checkpoints.items()}
        for model_type, checkpoints in old.items()
    }
    for model_type, checkpoints in new.items():
        for name, engines in checkpoints.items():
            known = merged.setdefault(model_type, {}).setdefault(name, {})
            for engine, outcome in engines.items():
                if engine not in known or not _alike(known[engine], outcome):
                    known[engine] = outcome
    return merged


def _alike(one: Outcome, other: Outcome) -> bool:
    """Return whether two outcomes count as equal."""
    if one.failed != other.failed or one.relative_error is None or other.relative_error is None:
        return one == other
    small, large = sorted((one.relative_error, other.relative_error))
    return large <= _ALIKE * max(small, _NOTHING)


def cell(engines: Mapping[str, Outcome]) -> str:
    """Return the outcomes of one checkpoint on every engine as text, for the table of families."""
    return "; ".join(f"{engine}: {outcome}" for engine, outcome in sorted(engines.items()))


def doubt(measured: Measured, model_type: str, engine: Engine, on: str) -> str | None:
    """Return why a family may not be correct on an engine, or None where all its checkpoints were.

    Args:
        measured: The outcomes.
        model_type: The family.
        engine: The engine.
        on: The engine's release and platform, as `engine_name` names them.
    """
    checkpoints = measured.get(model_type, {})
    here = {name: engines[on] for name, engines in checkpoints.items() if on in engines}
    failed = [f"{name} {outcome}" for name, outcome in sorted(here.items()) if outcome.failed]
    if failed:
        return f"{model_type} was measured on {on} and did not hold: {'; '.join(failed)}"
    if here:
        return None
    others = {other for engines in checkpoints.values() for other in engines}
    elsewhere = [other for other in others if other.split()[0] == engine]
    if not elsewhere:
        return f"{model_type} was measured on no release of {engine}"
    nearest = min(elsewhere, key=lambda other: _distance(other, on))
    there = {name: run[nearest] for name, run in sorted(checkpoints.items()) if nearest in run}
    said = ", ".join(f"{name} {outcome}" for name, outcome in there.items())
    return f"{model_type} was not measured on {on}, but on {nearest}: {said}"


def _distance(one: str, other: str) -> tuple[bool, int, str]:
    """Return how unlike two releases of an engine are: by platform, and then by version."""
    (_, release, *platform), (_, release_there, *platform_there) = one.split(), other.split()
    return platform != platform_there, abs(_number(release) - _number(release_there)), one


def _number(release: str) -> int:
    """Return a release's major and minor version as one number."""
    major, minor, *_ = [*map(int, re.findall(r"\d+", release)), 0, 0]
    return 1000 * major + minor


_warned: set[tuple[str, str]] = set()


def warn(config: Any, engine: Engine, platform: str) -> None:
    """Warn, once for each family, if it was not found to be correct on the engine in use.

    Args:
        config: The config of the decoder, or of a model around one.
        engine: The engine.
        platform: ``cpu`` or ``cuda``, where vLLM runs.
    """
    version = importlib.import_module(engine).__version__
    on = engine_name(engine, version, platform)
    model_type = config.get_text_config(decoder=True).model_type
    reason = doubt(read(), model_type, engine, on)
    if reason is None or (model_type, on) in _warned:
        return
    _warned.add((model_type, on))
    warnings.warn(
        f"{reason}. `nnterp check MODEL` tells whether yours holds", UnverifiedWarning, stacklevel=4
    )
