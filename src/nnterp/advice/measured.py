"""How far each release of an engine was from what it should compute, family by family.

Tiny checkpoints of every family are run on the engines, and what came of each is kept in
``measured.json``: the worst difference, or what did not hold. A checkpoint of a family that no
run was of, on the release and the platform that it is loaded on, or that a run failed on, is
loaded all the same, and a warning says so. A release is one with all of its patches, and
transformers' is one on all platforms.
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

#: Figures no more than so many times apart, or so small, are one: other machines round otherwise.
_ALIKE, _NOTHING = 3, 1e-7


class UnverifiedWarning(UserWarning):
    """A checkpoint of a family that was not found to hold on the engine in use."""


@dataclass(frozen=True)
class Outcome:
    """What came of running a checkpoint on an engine.

    Attributes:
        relative_error: The worst difference, relative to a value's largest magnitude: on vLLM from
            transformers, on transformers between the difference a block makes and what its
            parts add. None where nothing was compared.
        failed: What did not hold; empty where all did.
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


#: By the ``model_type``, the checkpoint's name and the engine's.
Measured = Mapping[str, Mapping[str, Mapping[str, Outcome]]]


def engine_name(engine: Engine, version: str, platform: str) -> str:
    """What a release of ``engine`` on ``platform`` (``cpu``, ``cuda``) is called here."""
    name = f"{engine} {'.'.join(version.split('.')[:2])}"
    return f"{name} {platform}" if engine == "vllm" else name


@cache
def read() -> Measured:
    """What was measured."""
    return loads(FILE.read_text())


def loads(text: str) -> Measured:
    """What `dumps` wrote."""
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
    """As JSON, in order: for what held its figure alone."""
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
    """``old`` with what ``new`` measured, where figures that are alike stay what they were."""
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
    if one.failed != other.failed or one.relative_error is None or other.relative_error is None:
        return one == other
    small, large = sorted((one.relative_error, other.relative_error))
    return large <= _ALIKE * max(small, _NOTHING)


def cell(engines: Mapping[str, Outcome]) -> str:
    """What came of one checkpoint on every engine, for the table of families."""
    return "; ".join(f"{engine}: {outcome}" for engine, outcome in sorted(engines.items()))


def doubt(measured: Measured, model_type: str, engine: Engine, on: str) -> str | None:
    """Why a family may not hold on an engine; None where all of its checkpoints did.

    Args:
        measured: What was measured.
        model_type: The family.
        engine: The engine.
        on: Its release and platform, as `engine_name` has them.
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
    """How unlike two releases of an engine are: in their platforms, and then in their numbers."""
    (_, release, *platform), (_, release_there, *platform_there) = one.split(), other.split()
    return platform != platform_there, abs(_number(release) - _number(release_there)), one


def _number(release: str) -> int:
    major, minor, *_ = [*map(int, re.findall(r"\d+", release)), 0, 0]
    return 1000 * major + minor


_warned: set[tuple[str, str]] = set()


def warn(config: Any, engine: Engine, platform: str) -> None:
    """Warn, once for each family, where it was not found to hold on the engine in use.

    Args:
        config: Of the decoder, or of a model around one.
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
