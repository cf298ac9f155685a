"""A value and a family of one's own, on both engines; run as a script, it prints what it saw.

In a process of its own, for what is registered stays so, and with vLLM's worker in another,
which has to be told.

    python tests/registered.py CHECKPOINT
"""

from __future__ import annotations

import json
import os
import sys
from types import SimpleNamespace
from typing import Any

os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")

import torch
from jaxtyping import Float
from torch import Tensor
from transformers import AutoModelForCausalLM

import nnterp
from nnterp import StandardizedTransformer, StandardizedVLLM, Value
from nnterp.engines.transformers.envoys import Layer
from nnterp.families import llama
from nnterp.families.vllm import llama as vllm_llama
from nnterp.sites.mapped import scaled
from nnterp.sites.primitive import FirstArgument
from nnterp.tools.checking.compare import relative_error

PROMPT = [5, 17, 3, 99, 42]

HIDDEN = Value(
    "mlp_hidden",
    "mlp",
    Float[Tensor, "batch seq intermediate"],
    "what enters the MLP's down projection",
)


class OwnLayer(Layer):
    """A block of a user's own class."""


def register() -> None:
    """Register the value on both engines, twice as large as it is, and the family on one."""
    site = scaled(FirstArgument(of="down_proj"), lambda host: 2.0)
    nnterp.register_value(HIDDEN, after="expert_weights", transformers=site, vllm=site)
    family = SimpleNamespace(RENAME=llama.RENAME, ENVOYS=llama.ENVOYS | {"layers.*": OwnLayer})
    nnterp.register_family("llama", family)
    plain = SimpleNamespace(RENAME=vllm_llama.RENAME, ENVOYS=vllm_llama.ENVOYS)
    nnterp.register_family("llama", plain, engine="vllm")


def expected(path: str) -> dict[str, Tensor]:
    """The value of block 1, and the logits with block 0's zeroed, by plain hooks."""
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32).eval()
    seen: dict[str, Tensor] = {}
    layers = model.model.layers
    watching = layers[1].mlp.down_proj.register_forward_pre_hook(
        lambda module, args: seen.update(value=2 * args[0].clone())
    )
    with torch.no_grad():
        model(torch.tensor([PROMPT]))
        watching.remove()
        layers[0].mlp.down_proj.register_forward_pre_hook(lambda module, args: args[0] * 0)
        seen["logits"] = model(torch.tensor([PROMPT])).logits[:, -1]
    return seen


def found(model: Any) -> dict[str, Tensor]:
    """The same, by the registered value."""
    with model.trace(PROMPT):
        value = model.layers[1].mlp.mlp_hidden.save()
    with model.trace(PROMPT):
        model.layers[0].mlp.mlp_hidden[:] = 0
        logits = model.logits[:, -1].save()
    collected = model.collect([PROMPT], {"layers.1.mlp.mlp_hidden": "all"})
    rows = collected["layers.1.mlp.mlp_hidden"][0]
    return {"value": value.cpu(), "logits": logits.cpu(), "collected": rows[None]}


def main(path: str) -> None:
    register()
    want = expected(path)
    want["collected"] = want["value"]
    engine = {"dtype": "float32", "max_model_len": 64, "kv_cache_memory_bytes": 50_000_000}
    models = {
        "transformers": StandardizedTransformer(path, dtype=torch.float32, dispatch=True),
        "vllm": StandardizedVLLM(path, dispatch=True, **engine),
    }
    said: dict[str, Any] = {"block": type(models["transformers"].layers[0]).__name__}
    for name, model in models.items():
        got = found(model)
        said[name] = {
            "far": {key: relative_error(got[key], want[key]) for key in want},
            "is_its_type": isinstance(got["value"], HIDDEN.type),
            "support": repr(model.support()["mlp_hidden"].layout),
            "available": model.support()["mlp_hidden"].available,
        }
    print("\n" + json.dumps(said))


if __name__ == "__main__":
    main(sys.argv[1])
