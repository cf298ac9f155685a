"""Why rows that an edit leaves alone may move by rounding after a mixture of experts.

No part of nnterp takes part: the modules are transformers' own. An expert computes the rows that
chose it in one product, so a row may be rounded otherwise where the number of rows of one of its
experts changes, and nowhere else.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoModelForCausalLM

from nnterp.tools.checking.compare import relative_error
from nnterp.tools.checking.verdict import ROUNDING

ROWS = 9
DRAWS = 40

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.mark.parametrize("name", ["glm4_moe", "minimax_m2", "mixtral", "qwen3_moe"])
def test_a_row_is_rounded_otherwise_only_where_its_experts_have_other_numbers_of_rows(
    name: str, tiny_folder: Callable[[str], Path]
) -> None:
    model = AutoModelForCausalLM.from_pretrained(tiny_folder(name), dtype=torch.float32).eval()
    mixture = model.model.layers[-1].mlp
    chosen: list[Tensor] = []

    def keep(module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        (own,) = (
            given
            for given in (*args, *kwargs.values())
            if isinstance(given, Tensor) and not given.is_floating_point()
        )
        chosen.append(own.clone())

    mixture.experts.register_forward_pre_hook(keep, with_kwargs=True)

    @torch.no_grad()
    def through(rows: Tensor) -> Tensor:
        found = mixture(rows[None])
        return (found[0] if isinstance(found, tuple) else found).reshape(ROWS, -1)

    draw = torch.Generator().manual_seed(0)
    compared = 0
    for _ in range(DRAWS):
        rows = torch.randn(ROWS, model.config.hidden_size, generator=draw)
        edited = rows.clone()
        edited[-1] = torch.randn(model.config.hidden_size, generator=draw)
        before, after = through(rows), through(edited)
        own, others = chosen[-2:]
        experts = int(torch.stack([own, others]).max()) + 1
        same = own.flatten().bincount(minlength=experts) == others.flatten().bincount(
            minlength=experts
        )
        for row in range(ROWS - 1):
            if same[own[row]].all():
                assert torch.equal(before[row], after[row])
                compared += 1
        assert relative_error(after[:-1], before[:-1]) < ROUNDING
    assert compared > DRAWS
