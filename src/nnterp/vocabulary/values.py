"""Defines the vocabulary: every value that nnterp names, as data.

A *value* is a tensor that a transformer computes and that researchers have a name for. One row
says which module hosts it, in which layout it is served, whether it can be written, and on which
steps of a generation it exists. The rows are the only source of those facts: the descriptors,
`support()`, the error messages, the documentation and the tests all read them here.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

from jaxtyping import Float, Int
from torch import Tensor

Host = Literal["model", "layer", "self_attn", "mlp"]
Engine = Literal["transformers", "vllm"]

Stream = Float[Tensor, "batch seq hidden"]
Ids = Int[Tensor, "batch seq"]
Logits = Float[Tensor, "batch seq vocab"]
Probabilities = Float[Tensor, "batch vocab"]
Queries = Float[Tensor, "batch heads seq qk_head_dim"]
Keys = Float[Tensor, "batch kv_heads seq qk_head_dim"]
HeadValues = Float[Tensor, "batch kv_heads seq head_dim"]
Pattern = Float[Tensor, "batch heads query key"]
RouterLogits = Float[Tensor, "batch seq experts"]
ExpertIndices = Int[Tensor, "batch seq top_k"]
ExpertWeights = Float[Tensor, "batch seq top_k"]
HeadOutputs = Float[Tensor, "batch seq heads head_dim"]

BOTH: frozenset[Engine] = frozenset({"transformers", "vllm"})
TRANSFORMERS_ONLY: frozenset[Engine] = frozenset({"transformers"})
NEITHER: frozenset[Engine] = frozenset()


@dataclass(frozen=True)
class Value:
    """A `Value` describes one name of the vocabulary.

    Attributes:
        name: What the user writes, ``block.<name>``.
        host: The module whose envoy serves it: the model, a block, its attention or its MLP.
        type: Its axes and kind of number, as a jaxtyping annotation; a tensor that is served is an
            instance of it. On vLLM ``batch`` is 1, because a request is one sequence.
        description: What the tensor is.
        writable_on: The engines on which it can be edited or replaced.
        prefill_only_on: The engines that serve it on the prefill step alone.
        vllm_layout: The axes on vLLM, where they are narrower.
    """

    name: str
    host: Host
    type: Any
    description: str
    writable_on: frozenset[Engine] = BOTH
    prefill_only_on: frozenset[Engine] = NEITHER
    vllm_layout: str | None = None

    @cached_property
    def layout(self) -> str:
        """Return the axes in which the value is served, such as ``batch seq hidden``."""
        return " ".join(self.type.dim_str.split())

    @cached_property
    def axes(self) -> tuple[str, ...]:
        """Return the names of the axes, in order."""
        return tuple(self.layout.split())

    @cached_property
    def token_axis(self) -> int | None:
        """Return the index of the axis that has one row per token, or None where there is none."""
        return next((i for i, axis in enumerate(self.axes) if axis in ("seq", "query")), None)

    def layout_on(self, engine: Engine) -> str:
        """Return the axes in which ``engine`` serves the value."""
        return self.vllm_layout if engine == "vllm" and self.vllm_layout else self.layout


INPUT_IDS = Value(
    "input_ids",
    "model",
    Ids,
    "the token ids that enter the embedding",
    writable_on=TRANSFORMERS_ONLY,
)
TOKEN_EMBEDDINGS = Value(
    "token_embeddings",
    "model",
    Stream,
    "the tokens' embeddings as the model uses them, scaled where the family scales",
)
LOGITS = Value(
    "logits",
    "model",
    Logits,
    "the logits, after any soft cap or scale",
    vllm_layout="1 1 vocab",
)
NEXT_TOKEN_PROBS = Value(
    "next_token_probs",
    "model",
    Probabilities,
    "the softmax of logits[:, -1]",
    writable_on=NEITHER,
)
LAYER_INPUT = Value("layer_input", "layer", Stream, "the residual stream entering the block")
LAYER_OUTPUT = Value("layer_output", "layer", Stream, "the residual stream leaving the block")
ATTENTION_OUTPUT = Value(
    "attention_output", "self_attn", Stream, "what attention adds to the residual stream"
)
MLP_OUTPUT = Value("mlp_output", "mlp", Stream, "what the MLP adds to the residual stream")
ATTENTION_QUERIES = Value(
    "attention_queries",
    "self_attn",
    Queries,
    "the queries as they enter the attention kernel, after rope and norm",
)
ATTENTION_KEYS = Value(
    "attention_keys",
    "self_attn",
    Keys,
    "this step's keys as they enter the attention kernel, not repeated over query heads",
)
ATTENTION_VALUES = Value(
    "attention_values",
    "self_attn",
    HeadValues,
    "this step's values as they enter the attention kernel, not repeated over query heads",
)
ATTENTION_SCORES = Value(
    "attention_scores",
    "self_attn",
    Pattern,
    "the scores, scaled, capped and masked: -inf where a key is not seen",
    writable_on=TRANSFORMERS_ONLY,
    prefill_only_on=frozenset({"vllm"}),
)
ATTENTION_PROBABILITIES = Value(
    "attention_probabilities",
    "self_attn",
    Pattern,
    "the attention pattern; rows sum to 1, or to less where the family has sinks",
    writable_on=TRANSFORMERS_ONLY,
    prefill_only_on=frozenset({"vllm"}),
)
ATTENTION_HEAD_OUTPUTS = Value(
    "attention_head_outputs",
    "self_attn",
    HeadOutputs,
    "each head's output, before the output projection",
)

ROUTER_LOGITS = Value(
    "router_logits",
    "mlp",
    RouterLogits,
    "the router's linear scores of every expert, before any softmax, sigmoid or correction",
    writable_on=NEITHER,
)
EXPERT_INDICES = Value(
    "expert_indices",
    "mlp",
    ExpertIndices,
    "the experts chosen for each token",
    writable_on=NEITHER,
)
EXPERT_WEIGHTS = Value(
    "expert_weights",
    "mlp",
    ExpertWeights,
    "the weights the chosen experts' outputs are summed with, in the order of expert_indices",
    writable_on=NEITHER,
)

#: The names of the values that exist inside attention, around its kernel and in it.
INSIDE_ATTENTION = frozenset(
    value.name
    for value in (
        ATTENTION_QUERIES,
        ATTENTION_KEYS,
        ATTENTION_VALUES,
        ATTENTION_SCORES,
        ATTENTION_PROBABILITIES,
        ATTENTION_HEAD_OUTPUTS,
    )
)

#: The names of the values that describe the routing of a mixture of experts.
ROUTING = frozenset({ROUTER_LOGITS.name, EXPERT_INDICES.name, EXPERT_WEIGHTS.name})

#: Every value, in the order a forward reaches them.
VALUES: dict[str, Value] = {
    value.name: value
    for value in (
        INPUT_IDS,
        TOKEN_EMBEDDINGS,
        LAYER_INPUT,
        ATTENTION_QUERIES,
        ATTENTION_KEYS,
        ATTENTION_VALUES,
        ATTENTION_SCORES,
        ATTENTION_PROBABILITIES,
        ATTENTION_HEAD_OUTPUTS,
        ATTENTION_OUTPUT,
        ROUTER_LOGITS,
        EXPERT_INDICES,
        EXPERT_WEIGHTS,
        MLP_OUTPUT,
        LAYER_OUTPUT,
        LOGITS,
        NEXT_TOKEN_PROBS,
    )
}
