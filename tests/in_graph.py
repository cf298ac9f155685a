"""Random edits and reads for an engine that has them in its compiled forward.

What comes of them is held against transformers, where the same records are made beside the forward.
"""

from __future__ import annotations

from random import Random
from typing import Any, NamedTuple

import torch
from torch import Tensor

from nnterp import Add, Edit, ProjectOut, Read, Replace, Scale, SetCoefficient, Zero

STREAMS = (
    "token_embeddings",
    "layers.{}.layer_input",
    "layers.{}.self_attn.attention_output",
    "layers.{}.mlp.mlp_output",
    "layers.{}.layer_output",
)
HEADS = ("layers.{}.self_attn.attention_queries", "layers.{}.self_attn.attention_head_outputs")

#: What the engines are loaded with.
PLACES = [name.format("*") for name in (*STREAMS, *HEADS)]

READS = [
    Read("layers.*.layer_output", "all"),
    Read("layers.0.layer_input", "last"),
    Read("layers.1.mlp.mlp_output", "mean"),
    Read("layers.1.self_attn.attention_output", "generated"),
    Read("layers.1.self_attn.attention_head_outputs", "all", steps=slice(0, 2)),
    Read("layers.0.self_attn.attention_queries", lambda queries: queries[0, :, -1]),
    Read("logits", "last"),
]

NEW = 4


class Program(NamedTuple):
    """Prompts that are run together, and the edits of each."""

    prompts: list[list[int]]
    edits: list[list[Edit]]


def program(model: Any, seed: int, longest: int = 20) -> Program:
    """A program of one to six prompts."""
    draw = Random(seed)
    prompts = [
        [draw.randrange(3, 250) for _ in range(draw.randint(2, longest))]
        for _ in range(draw.randint(1, 6))
    ]
    return Program(prompts, [_edits(model, draw, len(own)) for own in prompts])


def _edits(model: Any, draw: Random, length: int) -> list[Edit]:
    """Edits of a prompt, of which one at most is along a direction."""
    found: list[Edit] = []
    directed = draw.random() < 0.4
    for _ in range(draw.choice((0, 1, 1, 2, 3))):
        found.append(_edit(model, draw, length, directed))
        directed = False
    return found


def _edit(model: Any, draw: Random, length: int, directed: bool) -> Edit:
    """An edit of a prompt of ``length`` tokens."""
    noise = torch.Generator().manual_seed(draw.randrange(1 << 30))
    has_heads = draw.random() < 0.3
    name = draw.choice(HEADS if has_heads else STREAMS).format(
        draw.choice((*range(model.num_layers), "*"))
    )
    width = (model.head_dim,) if has_heads else (model.hidden_size,)
    heads: Any = None
    if has_heads and draw.random() < 0.6:
        heads = sorted(draw.sample(range(model.num_heads), draw.randint(1, model.num_heads)))
    some = sorted(draw.sample(range(length), draw.randint(1, min(3, length))))
    positions: Any = draw.choice(("all", "prompt", "generated", "last", -1, some))
    steps: Any = draw.choice((None, None, 0, slice(1, None), [0, 2]))
    where: dict[str, Any] = {"positions": positions, "steps": steps, "heads": heads}
    vector = torch.randn(width, generator=noise)
    if directed:
        made = draw.choice((ProjectOut, SetCoefficient))
        more = (draw.uniform(-2, 2),) if made is SetCoefficient else ()
        return made(name, vector, *more, **where)
    kind = draw.choice(("add", "add", "scale", "replace", "rows", "zero"))
    if kind == "scale":
        return Scale(name, draw.uniform(0.5, 1.5), **where)
    if kind == "zero":
        return Zero(name, **{**where, "positions": some})
    if kind == "rows":
        rows = torch.randn(len(some), *([len(heads)] if heads else []), *width, generator=noise)
        if has_heads and not heads:
            rows = torch.randn(len(some), model.num_heads, *width, generator=noise)
        return Replace(name, rows, **{**where, "positions": some, "steps": None})
    return (Add if kind == "add" else Replace)(name, vector, **where)


def run(model: Any, given: Program, **settings: Any) -> Any:
    """What comes of a program."""
    if model.engine_adapter.engine == "vllm":
        settings = {"ignore_eos": True, **settings}
    else:
        settings = {"eos_token_id": -1, **settings}
    return model.run(
        given.prompts, reads=READS, edits=given.edits, max_tokens=NEW, progress=False, **settings
    )


def gap(found: Any, expected: Any) -> float:
    """How far two runs of a program are apart, of the largest magnitude of each value.

    Two that have drawn different tokens are compared up to there: a tie of the logits is broken
    either way.
    """
    worst = 0.0
    for prompt, (own, other) in enumerate(zip(found.tokens, expected.tokens, strict=True)):
        same = own == other
        for read in READS:
            name = read.value
            for place in found.values if "*" in name else [name]:
                if "*" in name and not str(place).endswith(name.rpartition(".")[2]):
                    continue
                a, b = found[place][prompt], expected[place][prompt]
                rows = slice(None) if same else slice(0, 1)
                worst = max(worst, _apart(a[rows], b[rows]))
    return worst


def _apart(one: Tensor, other: Tensor) -> float:
    """The largest difference, of the largest magnitude; both of one shape."""
    assert one.shape == other.shape
    if not other.numel():
        return 0.0
    return float((one.float() - other.float()).abs().max() / other.float().abs().max().clamp(1e-9))
