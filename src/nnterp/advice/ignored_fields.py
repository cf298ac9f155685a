"""Lists the fields of a checkpoint's config that an engine ignores.

An engine's definition of a family is written for the checkpoints that were released. It may leave
out a field in which all of those agree; a checkpoint that differs there is then loaded without a
warning, and computed as if it did not differ. Each row was found by changing one field of a tiny
checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from nnterp.vocabulary.values import Engine


@dataclass(frozen=True)
class IgnoredField:
    """An `IgnoredField` is a config field that an engine's definitions of families do not read.

    Attributes:
        field: The field's name.
        taken_for: The only value of it that the engine computes with.
        model_types: The families.
        engine: The engine.
        unset: Whether the engine computes with weights instead that the checkpoint does not hold,
            and leaves them as uninitialized memory.
    """

    field: str
    taken_for: bool | float | str
    model_types: tuple[str, ...]
    engine: Engine = "vllm"
    unset: bool = False

    @property
    def cause(self) -> str:
        """Return a description of what is wrong, for a warning."""
        said = f"{self.field} is not read, and taken for {self.taken_for!r}"
        return f"{said}, whose weights are left unset" if self.unset else said

    def differs(self, config: Any, arguments: Mapping[str, Any]) -> bool:
        """Return whether a config has a value that the engine does not compute with."""
        value = getattr(config, self.field, None)
        return value is not None and value != self.taken_for


#: All ignored fields that are known, in vLLM 0.32 and transformers 5.17 to 5.19.
IGNORED_FIELDS: tuple[IgnoredField, ...] = (
    IgnoredField(
        "attention_bias",
        False,
        (
            "afmoe",
            "axk1",
            "cohere",
            "cohere2",
            "cohere2_moe",
            "deepseek_v2",
            "deepseek_v3",
            "falcon_h1",
            "gemma",
            "glm4_moe_lite",
            "granitemoe",
            "granitemoe_swa",
            "granitemoeshared",
            "hy_v3",
            "minicpm3",
            "olmoe",
        ),
    ),
    IgnoredField("attention_bias", True, ("gpt_oss", "phimoe"), unset=True),
    IgnoredField("mlp_bias", False, ("deepseek_v2", "falcon_h1", "hy_v3", "minicpm3")),
    IgnoredField("use_bias", False, ("ernie4_5", "ernie4_5_moe")),
    IgnoredField("projectors_bias", False, ("falcon_h1",)),
    IgnoredField(
        "hidden_act",
        "silu",
        (
            "cohere",
            "cohere2",
            "cohere2_moe",
            "dots1",
            "flex_olmo",
            "granitemoe",
            "granitemoe_swa",
            "hunyuan_v1_moe",
            "llama4_text",
            "mellum",
            "mixtral",
            "olmoe",
            "phimoe",
            "solar_open",
            "stablelm",
        ),
    ),
    IgnoredField("hidden_act", "gelu_pytorch_tanh", ("gemma",)),
    IgnoredField("tie_word_embeddings", True, ("cohere", "cohere2", "cohere2_moe")),
    IgnoredField(
        "tie_word_embeddings",
        False,
        (
            "afmoe",
            "axk1",
            "deepseek_v2",
            "deepseek_v3",
            "glm4_moe",
            "glm4_moe_lite",
            "gpt_oss",
            "mimo_v2_flash",
            "olmoe",
            "phimoe",
        ),
        unset=True,
    ),
    IgnoredField("rms_norm_eps", 1e-5, ("gpt_oss", "olmoe")),
    IgnoredField("norm_topk_prob", False, ("deepseek_v2", "olmoe")),
    IgnoredField("norm_topk_prob", True, ("cohere2_moe",)),
    IgnoredField("routed_scaling_factor", 1.0, ("mimo_v2_flash",)),
    IgnoredField("swiglu_alpha", 1.702, ("gpt_oss",)),
    IgnoredField("use_sliding_window", False, ("qwen2_moe",)),
    IgnoredField("use_bidirectional_attention", False, ("gemma3_text",)),
    IgnoredField("use_conv_bias", True, ("zamba2",), engine="transformers"),
)
