"""What is known to be computed wrongly is said at the load, and where it is not met it is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import checkpoints
from nnterp import KnownWrongWarning, StandardizedTransformer
from nnterp.tools.checking.compare import relative_error
from tiny import TINY


def test_loading_one_warns(tiny_folder: Callable[[str], Path]) -> None:
    path = str(tiny_folder("falcon_rw"))
    with pytest.warns(KnownWrongWarning, match="adds ALiBi twice.*sdpa"):
        StandardizedTransformer(path, attn_implementation="eager")
    with warnings.catch_warnings():
        warnings.simplefilter("error", KnownWrongWarning)
        StandardizedTransformer(path, attn_implementation="sdpa")


@pytest.mark.parametrize(
    ("decoder", "around", "field"),
    [
        ("cohere2", "aya_vision", "logit_scale"),
        ("cohere2", "cohere2_vision", "logit_scale"),
        ("granite", "llava", "logits_scaling"),
        ("granite", "llava_next", "logits_scaling"),
        ("gemma2", "paligemma", "final_logit_softcapping"),
    ],
)
def test_a_model_around_a_decoder_leaves_out_how_its_logits_are_read(
    tmp_path: Path, decoder: str, around: str, field: str
) -> None:
    path = checkpoints.write(replace(TINY[decoder], inside=around), tmp_path / around)
    with pytest.warns(KnownWrongWarning, match=f"{decoder} inside {around} .* its {field}"):
        model = StandardizedTransformer(str(path), dispatch=True)
    with torch.no_grad(), model.trace(checkpoints.PROMPT):
        projected = model.project_on_vocab(model.layers[-1].layer_output).save()
        logits = model.logits.save()
    assert relative_error(logits, projected) > 1e-2
    assert (
        relative_error(model.family.READOUT(logits, model.config.get_text_config()), projected)
        < 1e-6
    )


@pytest.mark.parametrize("name", ["falcon_mamba", "mamba", "mamba2"])
def test_a_load_rescales_weights_that_a_checkpoint_holds(tmp_path: Path, name: str) -> None:
    row = TINY[name]
    changed = replace(row, config={**row.config, "rescale_prenorm_residual": True})
    path = checkpoints.write(changed, tmp_path / name)
    with pytest.warns(KnownWrongWarning, match=r"divides .* by sqrt\(num_hidden_layers\)"):
        model = StandardizedTransformer(str(path), dispatch=True)
    weight = "backbone.layers.0.mixer.out_proj.weight"
    held = load_file(path / "model.safetensors")[weight]
    assert relative_error(model._module.get_parameter(weight) * model.num_layers**0.5, held) < 1e-6
