"""What a router is served to say is what it said in the forward."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import checkpoints
from nnterp import StandardizedTransformer
from nnterp.sites.routing import router_of
from nnterp.tools.checking import readings
from nnterp.tools.checking.compare import relative_error


@pytest.mark.parametrize("name", ["mixtral", "gpt_oss", "granitemoe", "glm4_moe", "olmoe"])
def test_a_routers_choice_is_the_forwards_own(
    name: str, tiny_folder: Callable[[str], Path]
) -> None:
    model = StandardizedTransformer(
        str(tiny_folder(name)), dispatch=True, dtype=torch.float32, attn_implementation="eager"
    )
    last = model.num_layers - 1
    router = router_of(model.layers[last].mlp._module)
    assert router is not None
    said: list[Any] = []
    hook = router.register_forward_hook(lambda module, given, returned: said.append(returned))
    with torch.no_grad():
        model._module(torch.tensor([checkpoints.PROMPT]))
    hook.remove()
    found = readings.values(model, checkpoints.PROMPT)
    (indices,) = [part for part in said[0] if not part.is_floating_point()]
    assert torch.equal(found[f"{last}.expert_indices"][0], indices)
    numbers = [part for part in said[0] if part.is_floating_point()]
    assert any(relative_error(found[f"{last}.expert_weights"][0], part) < 1e-6 for part in numbers)
    assert any(relative_error(found[f"{last}.router_logits"][0], part) < 1e-6 for part in numbers)
