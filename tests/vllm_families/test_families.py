"""Every family on both engines: the same values, edits that do the same, sums that add up.

A family that vLLM cannot run here is held against transformers' own outputs, and the
definitions of the values, alone; its row in `tiny` says why.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

import tiny_runs
from edits import IN_THE_CACHE
from nnterp import families
from nnterp.advice import measured
from nnterp.tools.checking import table
from nnterp.tools.checking.compare import relative_error
from nnterp.tools.checking.verdict import CLOSE
from nnterp.vocabulary.values import VALUES
from tiny import IGNORED, OTHERWISE, TINY, WRONG
from tiny_runs import Run

#: How far an edit's effect may be from the same edit's, made another way.
SAME = 2e-5

#: What an edit changes at least, far above what counts as the same.
EFFECT = 10 * SAME

#: Families whose cache holds latents on transformers, and keys and values on vLLM.
CACHE_LATENTS = ("minicpm3",)

RunOf = Callable[[str], Run]

ON_BOTH = [name for name, row in TINY.items() if not row.not_on_vllm]

#: Families of which every checkpoint of their kind is warned of; the tiny ones leave out what an
#: engine gets wrong, or have limits.
WARNED = {"apertus", "bloom", "cohere2", "cohere2_moe", "ernie4_5_moe"}

#: What is held against something, in `Line.kind`; the first list on one engine.
KINDS = ["own", "identity", "stream", "projection", "effect", "support", "overwritten"]
KINDS += ["untouched", "neighbours"]
BETWEEN = ["value", "edit", "decoded"]


def wrong(name: str, run: Run, kind: str) -> list[str]:
    assert run.error == ""
    return [text for text in tiny_runs.failures(name, run) if text.split()[0] == kind]


def edited_gaps(run: Run) -> dict[str, float]:
    """How far apart what an edit as data does on the two engines is, by the case's key."""
    if len(run.edited) < 2:
        return {}
    ours, theirs = run.edited["vllm"].by_run, run.edited["transformers"].by_run
    return {key: relative_error(ours[key], theirs[key]) for key in ours}


def collected_gaps(run: Run) -> dict[str, float]:
    """How far apart what the two engines collected is, by the value's name."""
    if len(run.collected) < 2:
        return {}
    ours, theirs = run.collected["vllm"], run.collected["transformers"]
    return {key: relative_error(ours[key], theirs[key]) for key in ours.keys() & theirs.keys()}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", TINY)
def test_a_family_is_what_it_says_on_its_own(name: str, kind: str, run_of: RunOf) -> None:
    assert wrong(name, run_of(name), kind) == []


@pytest.mark.parametrize("kind", BETWEEN)
@pytest.mark.parametrize("name", ON_BOTH)
def test_the_two_engines_agree(name: str, kind: str, run_of: RunOf) -> None:
    run = run_of(name)
    assert wrong(name, run, kind) == []
    assert any(line.kind == kind for line in tiny_runs.lines(run))


@pytest.mark.parametrize("name", ON_BOTH)
def test_what_is_collected_is_the_same_on_both_engines(name: str, run_of: RunOf) -> None:
    run = run_of(name)
    for key, size in collected_gaps(run).items():
        close, _ = TINY[name].limits.get(key.rpartition(".")[2], (CLOSE, ""))
        assert run.collected["vllm"][key].dtype == run.collected["transformers"][key].dtype
        assert size < close, key
    assert "logits" in run.collected["vllm"]


@pytest.mark.parametrize("name", TINY)
def test_an_edit_as_data_is_what_a_trace_makes(name: str, run_of: RunOf) -> None:
    for edited in run_of(name).edited.values():
        assert edited.by_run.keys() == edited.by_trace.keys()
        for key, logits in edited.by_run.items():
            assert relative_error(logits, edited.by_trace[key]) < SAME, key


@pytest.mark.parametrize("name", TINY)
def test_every_edit_has_an_effect_and_none_on_who_stands_beside(name: str, run_of: RunOf) -> None:
    for edited in run_of(name).edited.values():
        assert relative_error(edited.beside, edited.plain) < SAME
        size = {key: relative_error(row, edited.plain) for key, row in edited.by_run.items()}
        # A norm that follows may undo a factor.
        assert not {
            key: own for key, own in size.items() if own < EFFECT and not key.endswith(" scale")
        }
        assert max(size[key] for key in size if key.endswith(" scale")) > EFFECT


@pytest.mark.parametrize("name", ON_BOTH)
def test_an_edit_as_data_does_the_same_on_both_engines(name: str, run_of: RunOf) -> None:
    edited = run_of(name).edited
    limit, _ = TINY[name].limits.get("edited", (SAME, ""))
    for key, logits in edited["vllm"].by_run.items():
        other = edited["transformers"].by_run[key]
        steps = 1 if name in CACHE_LATENTS and key.split()[0] in IN_THE_CACHE else None
        assert relative_error(logits[:steps], other[:steps]) < limit, key


@pytest.mark.parametrize("name", CACHE_LATENTS)
def test_of_latents_in_the_cache_only_this_steps_keys_and_values_are_edited(
    name: str, run_of: RunOf
) -> None:
    """Where vLLM expands latents before its cache, an edit of a key stays."""
    edited = run_of(name).edited
    for key, logits in edited["vllm"].by_run.items():
        if key.split()[0] in IN_THE_CACHE and not key.endswith(" scale"):
            other = edited["transformers"].by_run[key]
            assert relative_error(logits[1:], other[1:]) > EFFECT, key


@pytest.mark.parametrize("name", TINY)
def test_every_block_serves_what_all_blocks_have(name: str, run_of: RunOf) -> None:
    """What an engine leaves out it gives a reason for, and the stream needs a good one."""
    for found in run_of(name).found.values():
        for block in range(found.num_layers):
            for value in VALUES.values():
                key = f"{block}.{value.name}"
                if value.host != "model":
                    assert (key in found.values) is not bool(found.missing.get(key)), key
        served = {key.rpartition(".")[2] for key in found.values}
        assert {"logits", "next_token_probs", "token_embeddings", "input_ids"} <= served


@pytest.mark.parametrize("name", TINY)
def test_what_is_served_is_of_its_values_type(name: str, run_of: RunOf) -> None:
    for found in run_of(name).found.values():
        served = {key: found.values[key] for key in found.values.keys() - {"projected"}}
        assert len(served) >= found.num_layers
        for key, tensor in served.items():
            assert isinstance(tensor, VALUES[key.rpartition(".")[2]].type), key


@pytest.mark.parametrize("name", [name for name, row in TINY.items() if row.limits])
def test_no_limit_is_wider_than_what_it_is_for(name: str, run_of: RunOf) -> None:
    run = run_of(name)
    sizes: dict[str, float] = {}
    held = [(line.kind, line.key, line.size) for line in tiny_runs.lines(run)]
    held += [("collected", key, size) for key, size in collected_gaps(run).items()]
    for kind, key, size in held:
        value = key.rpartition(".")[2]
        for at in (f"{kind}.{value}", kind, value) if kind != "effect" else ():
            sizes[at] = max(sizes.get(at, 0.0), size)
    sizes["edited"] = max(edited_gaps(run).values(), default=0.0)
    for key, (limit, cause) in TINY[name].limits.items():
        assert cause
        assert limit / 10 < sizes[key] < limit, f"{key}: {sizes[key]:.1e}"


@pytest.mark.parametrize("name", [*WRONG, *OTHERWISE])
def test_what_is_listed_as_wrong_is_wrong_and_warned_of(name: str, run_of: RunOf) -> None:
    """And what nnterp hands over is what the engine computes: on its own all holds."""
    run = run_of(name)
    assert run.error == ""
    assert any(line.kind == "value" and not line.size < 1e-4 for line in tiny_runs.lines(run))
    assert run.warned
    if name in IGNORED and IGNORED[name].unset:
        return  # what it computes, from weights that are any numbers, may be none
    assert [text for kind in KINDS for text in wrong(name, run, kind)] == []


@pytest.mark.parametrize("name", TINY)
def test_what_is_right_is_not_warned_of(name: str, run_of: RunOf) -> None:
    assert bool(run_of(name).warned) is (name in WARNED)


def test_enough_families_are_held_against_the_other_engine() -> None:
    assert len({TINY[name].model_type for name in ON_BOTH}) >= 75
    assert len({row.model_type for row in TINY.values()}) >= 100


def test_every_family_has_a_row() -> None:
    rows = {row.model_type.replace("-", "_") for row in TINY.values()}
    assert set(families.known("transformers")) == rows
    on_vllm = {TINY[name].model_type.replace("-", "_") for name in ON_BOTH}
    assert on_vllm <= set(families.known("vllm"))


def test_the_table_of_families_is_of_these_runs(run_of: RunOf) -> None:
    """`python tests/tiny_runs.py FOLDER --table` writes it anew."""
    made = tiny_runs.table_of({name: run_of(name) for name in TINY}, measured.read())
    assert made == table.read()


def test_what_is_kept_as_measured_is_what_came_of_these_runs(run_of: RunOf) -> None:
    """As far as rounding is the same on every machine; the same command writes it."""
    new = tiny_runs.measurement({name: run_of(name) for name in TINY})
    made = tiny_runs.known(measured.merge(measured.read(), new))
    assert measured.dumps(made) == measured.FILE.read_text()
    assert {name for checkpoints in new.values() for name in checkpoints} == set(TINY)
