"""Lists where an engine is known to compute something else than the model's authors meant.

Each row is one family on one engine in some of its releases, with the cause. Loading such a
checkpoint warns: nnterp serves what the engine computes, and that is not what it should compute.
The measurements of families (`nnterp.advice.measured`) are of checkpoints without the features
that these rows are about; so on a release in which a row was not tried, a load warns of that too.
"""

from __future__ import annotations

import importlib
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from packaging.specifiers import SpecifierSet

from nnterp.advice.ignored_fields import IGNORED_FIELDS, IgnoredField
from nnterp.advice.measured import UnverifiedWarning
from nnterp.vocabulary.values import Engine

Condition = Callable[[Any, Mapping[str, Any]], bool]


class KnownWrongWarning(UserWarning):
    """Warns of a checkpoint that the engine in use is known to compute wrongly."""


@dataclass(frozen=True)
class KnownWrong:
    """A `KnownWrong` describes one way in which one engine computes some families wrongly.

    Attributes:
        model_types: The families; empty for every family.
        engine: The engine.
        versions: The releases of the engine's package in which it was seen, as a version specifier.
        cause: What is wrong.
        size: How large the error is, in the logits of a tiny random checkpoint unless it says so.
        applies: Takes the decoder's config and the load's arguments, and returns whether the error
            occurs.
        platform: The only platform on which it occurs; None for all.
        inside: The ``model_type``s around the decoder in which it occurs; empty for any or none.
    """

    model_types: tuple[str, ...]
    engine: Engine
    versions: str
    cause: str
    size: str
    applies: Condition = lambda config, arguments: True
    platform: Literal["cpu", "cuda"] | None = None
    inside: tuple[str, ...] = ()

    def seen(self, version: str) -> bool:
        """Return whether the error was seen in a release of the engine."""
        release = version.partition("+")[0]
        return SpecifierSet(self.versions).contains(release, prereleases=True)


def _default_rope(config: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether the config's rotary embedding is of the default type."""
    rope = getattr(config, "rope_parameters", None) or {}
    return rope.get("rope_type", "default") == "default"


def _has_windows(config: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether any of the decoder's layers has a sliding window."""
    return "sliding_attention" in (getattr(config, "layer_types", None) or ())


def _is_set(field: str) -> Condition:
    """Return a condition that is met where the config's ``field`` is true."""
    return lambda config, arguments: bool(getattr(config, field, False))


def _eager_alibi(config: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether ALiBi is used with eager attention."""
    return bool(config.alibi) and arguments.get("attn_implementation") == "eager"


def _flex_attention(config: Any, arguments: Mapping[str, Any]) -> bool:
    """Return whether vLLM is loaded with its FlexAttention backend."""
    chosen = arguments.get("attention_backend") or ""
    return "FLEX_ATTENTION" in str(getattr(chosen, "name", chosen))


#: The releases of each engine in which rows that name no others were seen.
_SEEN: Mapping[Engine, str] = {"vllm": "==0.32.*", "transformers": ">=5.17,<5.20"}


def _of(ignored: IgnoredField) -> KnownWrong:
    """Return the row for an ``ignored`` field."""
    return KnownWrong(
        ignored.model_types,
        ignored.engine,
        _SEEN[ignored.engine],
        ignored.cause,
        "the values are another model's",
        ignored.differs,
    )


#: Every known error.
KNOWN_WRONG: tuple[KnownWrong, ...] = (
    *map(_of, IGNORED_FIELDS),
    KnownWrong(
        (),
        "vllm",
        _SEEN["vllm"],
        "on a CPU, a request without an adapter that shares a step with one that has one is "
        "computed with the adapter in the last of max_loras slots",
        "all that the adapter makes",
        lambda config, arguments: bool(arguments.get("enable_lora")),
        "cpu",
    ),
    KnownWrong(
        (),
        "vllm",
        "==0.26.*",
        "FLEX_ATTENTION weighs the values of other requests with zero, and zero times one that is "
        "not finite, as an edit may make it, is not a number: it reaches those beside and after",
        "all of them",
        _flex_attention,
        "cuda",
    ),
    KnownWrong(
        ("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "lfm2", "lfm2_moe"),
        "vllm",
        _SEEN["vllm"],
        "the CPU's rotary kernel turns queries given as [tokens, heads, head_dim] wrongly",
        "the logits are another model's",
        _default_rope,
        "cpu",
    ),
    KnownWrong(
        ("cohere2", "cohere2_moe"),
        "vllm",
        _SEEN["vllm"],
        "its sliding windows are one key too wide",
        "0.1 of a log-probability",
        _has_windows,
    ),
    KnownWrong(
        ("ernie4_5_moe",),
        "vllm",
        _SEEN["vllm"],
        "the CPU's router leaves out e_score_correction_bias, and chooses other experts",
        "up to 1 of a log-probability, at some tokens",
        platform="cpu",
    ),
    KnownWrong(
        ("phimoe",),
        "vllm",
        _SEEN["vllm"],
        "the bias of lm_head is dropped",
        "0.3 of a log-probability",
        _is_set("lm_head_bias"),
    ),
    KnownWrong(
        ("qwen3", "qwen3_moe"),
        "vllm",
        _SEEN["vllm"],
        "the bias of the attention's output projection is dropped",
        "0.8 of the logits",
        _is_set("attention_bias"),
    ),
    KnownWrong(
        ("apertus",),
        "vllm",
        _SEEN["vllm"],
        "the parameters of its activation are rounded to bfloat16",
        "1e-3 of the values",
    ),
    KnownWrong(
        ("bloom",),
        "vllm",
        _SEEN["vllm"],
        "its GELU is the exact one, in place of the tanh form that the model was trained with",
        "3e-4 of the values",
    ),
    KnownWrong(
        ("llama4_text",),
        "vllm",
        _SEEN["vllm"],
        "attn_temperature_tuning is left out up to a max_model_len of 32768, which matters from "
        "position floor_scale - 1 on",
        "nothing in shorter prompts; 0.1 of the values in longer ones",
        _is_set("attn_temperature_tuning"),
    ),
    KnownWrong(
        ("gemma3n_text",),
        "vllm",
        _SEEN["vllm"],
        "the embeddings of each layer are not added",
        "the logits are another model's",
    ),
    KnownWrong(
        ("gemma4_text",),
        "vllm",
        _SEEN["vllm"],
        "the gate of each layer's own embeddings and the experts are gelu_pytorch_tanh, "
        "whatever hidden_activation says",
        "3e-2 of what the MLP adds",
        lambda config, arguments: config.hidden_activation != "gelu_pytorch_tanh",
    ),
    KnownWrong(
        ("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "minicpm3"),
        "vllm",
        _SEEN["vllm"],
        "the norms inside its latent attention take rms_norm_eps, and not the 1e-6 that the "
        "model has there",
        "about as much as rms_norm_eps",
        lambda config, arguments: config.rms_norm_eps > 1e-5,
    ),
    KnownWrong(
        ("hrm_text",),
        "vllm",
        _SEEN["vllm"],
        "the prefill attends to later tokens as well",
        "1 of a log-probability",
    ),
    KnownWrong(
        ("doge",),
        "vllm",
        _SEEN["vllm"],
        "its dynamic mask is left out",
        "0.2 of a log-probability",
    ),
    KnownWrong(
        ("falcon_h1",),
        "vllm",
        _SEEN["vllm"],
        "its mixer gates before it norms even where mamba_norm_before_gate says otherwise",
        "0.3 of the logits",
        lambda config, arguments: config.mamba_rms_norm and config.mamba_norm_before_gate,
    ),
    KnownWrong(
        ("nemotron_h",),
        "vllm",
        _SEEN["vllm"],
        "a sliding_window in the config is applied, which the model does not have",
        "0.3 of the logits",
        _is_set("sliding_window"),
    ),
    KnownWrong(
        ("nemotron_h", "zamba2"),
        "transformers",
        _SEEN["transformers"],
        "its scan clamps time steps from below at time_step_min, where its own step for a single "
        "token, and vLLM, do not",
        "up to 3e-2 of the values, by how small the steps are",
        lambda config, arguments: config.time_step_min > 1e-6,
    ),
    KnownWrong(
        ("mamba2",),
        "transformers",
        _SEEN["transformers"],
        "its gated norm runs over all groups at once, where vLLM's runs over each",
        "0.7 of the logits",
        lambda config, arguments: config.n_groups > 1,
    ),
    KnownWrong(
        ("falcon_mamba", "mamba", "mamba2"),
        "transformers",
        _SEEN["transformers"],
        "a load divides the output projections by sqrt(num_hidden_layers) where "
        "rescale_prenorm_residual is set, as if it were to make new weights",
        "0.4 of what each block adds",
        _is_set("rescale_prenorm_residual"),
    ),
    KnownWrong(
        ("falcon",),
        "transformers",
        _SEEN["transformers"],
        "eager attention adds ALiBi twice; load with attn_implementation='sdpa'",
        "0.4 of a log-probability",
        _eager_alibi,
    ),
    KnownWrong(
        ("cohere2",),
        "transformers",
        _SEEN["transformers"],
        "around it, its logits are read without its logit_scale",
        "the factor itself",
        lambda config, arguments: config.logit_scale != 1,
        inside=("aya_vision", "cohere2_vision"),
    ),
    KnownWrong(
        ("granite",),
        "transformers",
        _SEEN["transformers"],
        "around it, its logits are read without its logits_scaling",
        "the factor itself",
        lambda config, arguments: config.logits_scaling != 1,
        inside=("llava", "llava_next"),
    ),
    KnownWrong(
        ("gemma2",),
        "transformers",
        _SEEN["transformers"],
        "around it, its logits are read without its final_logit_softcapping",
        "as much as the cap takes",
        _is_set("final_logit_softcapping"),
        inside=("paligemma",),
    ),
)


def met_by(
    config: Any,
    engine: Engine,
    version: str,
    platform: str,
    arguments: Mapping[str, Any],
) -> list[KnownWrong]:
    """Return the known errors that a checkpoint meets on a release of an engine.

    Args:
        config: The config of the decoder, or of a model around one.
        engine: The engine.
        version: The version of the engine's package.
        platform: ``cpu`` or ``cuda``, where the engine runs.
        arguments: The arguments of the load.
    """
    return [
        row for row in _of_any_release(config, engine, platform, arguments) if row.seen(version)
    ]


def _of_any_release(
    config: Any, engine: Engine, platform: str, arguments: Mapping[str, Any]
) -> list[KnownWrong]:
    """Return the known errors that a checkpoint meets in some release of an engine."""
    decoder = config.get_text_config(decoder=True)
    return [
        row
        for row in KNOWN_WRONG
        if row.engine == engine
        and (not row.model_types or decoder.model_type in row.model_types)
        and (not row.inside or config.model_type in row.inside)
        and row.platform in (None, platform)
        and row.applies(decoder, arguments)
    ]


def warn(config: Any, engine: Engine, platform: str, arguments: Mapping[str, Any]) -> None:
    """Warn of the known errors that a checkpoint about to be loaded meets.

    Args:
        config: The config of the decoder, or of a model around one.
        engine: The engine.
        platform: ``cpu`` or ``cuda``, where the engine runs.
        arguments: The arguments of the load.
    """
    version = importlib.import_module(engine).__version__
    decoder = config.get_text_config(decoder=True).model_type
    for row in _of_any_release(config, engine, platform, arguments):
        kind = f"{decoder} inside {config.model_type}" if row.inside else decoder
        said = f"{kind} is known to be computed wrongly by {engine}"
        wrong = f"{row.cause} ({row.size})"
        if row.seen(version):
            warnings.warn(f"{said} {version}: {wrong}", KnownWrongWarning, stacklevel=4)
        else:
            warnings.warn(
                f"{said} {row.versions}: {wrong}. {version} was not tried",
                UnverifiedWarning,
                stacklevel=4,
            )
