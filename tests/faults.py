"""Blocks that go wrong, each by a name that says how, and what must be said of each.

A fault runs twice, between two good requests. It must end, if it ends at all, with the sentence
given here, and the requests beside it must get what they get beside a harmless one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

ONE_STEP: Mapping[str, Any] = {"temperature": 0.0, "max_tokens": 1}


@dataclass(frozen=True)
class Fault:
    """One way for a block to go wrong.

    Attributes:
        block: What the block does, given the model and its tracer.
        said: A regular expression that the client's error starts with; None where going
            wrong is the request's own affair and no error.
        settings: The sampling settings of its request.
        harmless: Those of the harmless request in its place, which ends when it ends.
    """

    block: Callable[[Any, Any], Any]
    said: str | None
    settings: Mapping[str, Any] = field(default_factory=lambda: ONE_STEP)
    harmless: Mapping[str, Any] = field(default_factory=lambda: ONE_STEP)

    @property
    def name(self) -> str:
        return self.block.__name__


FAULTS: dict[str, Fault] = {}


def fault(
    said: str | None,
    settings: Mapping[str, Any] = ONE_STEP,
    harmless: Mapping[str, Any] | None = None,
) -> Callable[[Callable[[Any, Any], Any]], Callable[[Any, Any], Any]]:
    def register(block: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
        FAULTS[block.__name__] = Fault(block, said, settings, harmless or settings)
        return block

    return register


OUTPUT = r"model\.model\.layers\.0\.layer_output"
SHAPE = rf"ValueError: {OUTPUT} has shape \(1, 7, 64\) on this request, and a value of shape "


# -- assignments that do not fit ------------------------------------------------------------


@fault(SHAPE + r"\(1, 6, 64\)")
def assign_fewer_rows(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = model.layers[0].layer_output[:, :-1]


@fault(SHAPE + r"\(1, 8, 64\)")
def assign_more_rows(model: Any, tracer: Any) -> None:
    stream = model.layers[0].layer_output
    model.layers[0].layer_output = torch.cat([stream, stream[:, :1]], dim=1)


@fault(SHAPE + r"\(7, 64\)")
def assign_without_the_batch_axis(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = model.layers[0].layer_output[0]


@fault(SHAPE + r"\(1, 1, 7, 64\)")
def assign_with_an_axis_more(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = model.layers[0].layer_output[None]


@fault(SHAPE + r"\(2, 7, 64\)")
def assign_a_batch_of_two(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = model.layers[0].layer_output.repeat(2, 1, 1)


@fault(SHAPE + r"\(1, 64, 7\)")
def assign_transposed(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = model.layers[0].layer_output.transpose(1, 2)


@fault(SHAPE + r"\(1, 7, 63\)")
def assign_narrower(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = model.layers[0].layer_output[..., :-1]


@fault(SHAPE + r"\(0,\)")
def assign_nothing_at_all(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = torch.empty(0)


@fault(SHAPE + r"\(\)")
def assign_a_scalar_tensor(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = torch.tensor(0.0)


@fault(rf"TypeError: {OUTPUT} holds a tensor .* cannot become None")
def assign_none(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = None


@fault(rf"TypeError: {OUTPUT} holds a tensor .* cannot become 'zero'")
def assign_a_string(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = "zero"


@fault(rf"TypeError: {OUTPUT} holds a tensor .* cannot become 0")
def assign_a_number(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = 0


@fault(rf"TypeError: {OUTPUT} holds a tensor .* cannot become \(")
def assign_the_pair_vllm_passes(model: Any, tracer: Any) -> None:
    stream = model.layers[0].layer_output
    model.layers[0].layer_output = (stream, stream)


@fault(rf"TypeError: {OUTPUT} holds a tensor .* cannot become array")
def assign_a_numpy_array(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = np.zeros((1, 7, 64), dtype="float32")


@fault(rf"TypeError: {OUTPUT} cannot become a meta tensor")
def assign_a_meta_tensor(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = torch.empty(1, 7, 64, device="meta")


@fault(rf"TypeError: {OUTPUT} cannot become a torch.sparse_coo tensor")
def assign_a_sparse_tensor(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = torch.zeros(1, 7, 64).to_sparse()


@fault(rf"TypeError: {OUTPUT} is torch\.\w+ and cannot hold torch.complex64")
def assign_a_complex_tensor(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = torch.zeros(1, 7, 64, dtype=torch.complex64)


@fault(rf"TypeError: {OUTPUT} takes no gradients")
def assign_a_tensor_that_needs_grad(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = torch.zeros(1, 7, 64, requires_grad=True)


@fault(rf"ValueError: {OUTPUT} has shape \(1, 7, 64\) on this request")
def resize_in_place(model: Any, tracer: Any) -> None:
    stream = model.layers[0].layer_output
    stream.resize_(1, 3, 64).zero_()
    model.layers[1].layer_output.sum()


@fault(r"ValueError: .*attention_queries has shape \(1, 4, 7, 32\) on this request")
def assign_queries_of_fewer_heads(model: Any, tracer: Any) -> None:
    attention = model.layers[0].self_attn
    attention.attention_queries = attention.attention_queries[:, :2]


@fault(r"ValueError: model.logits has shape \(1, 1, 256\) on this request")
def assign_logits_of_every_position(model: Any, tracer: Any) -> None:
    model.logits = model.logits.repeat(1, 7, 1)


# -- what cannot be written, or read ---------------------------------------------------------


@fault(r"ValueError: .*attention_scores is read-only on vllm")
def write_scores(model: Any, tracer: Any) -> None:
    model.layers[0].self_attn.attention_scores = torch.zeros(1, 4, 7, 7)


@fault(r"ValueError: .*attention_probabilities is read-only on vllm")
def write_the_pattern_in_place(model: Any, tracer: Any) -> None:
    model.layers[0].self_attn.attention_probabilities[:] = 0
    model.layers[0].layer_output.sum()


@fault(r"ValueError: model.next_token_probs is read-only on vllm")
def write_next_token_probs(model: Any, tracer: Any) -> None:
    model.next_token_probs = torch.zeros(1, 256)


@fault(r"ValueError: model.input_ids is read-only on vllm")
def write_input_ids_in_place(model: Any, tracer: Any) -> None:
    model.input_ids[:] = 3


@fault(
    r"Unavailable: .*attention_scores.*prefill step only",
    {"temperature": 0.0, "max_tokens": 4, "ignore_eos": False},
    {"temperature": 0.0, "max_tokens": 2, "ignore_eos": True},
)
def read_scores_of_a_decode_step(model: Any, tracer: Any) -> None:
    for _ in tracer.iter[:2]:
        model.layers[0].self_attn.attention_scores.sum()


@fault(r"AttributeError: .*'attention_ouput'; did you mean 'attention_output'")
def read_a_misspelt_value(model: Any, tracer: Any) -> None:
    model.layers[0].self_attn.attention_ouput.sum()


@fault(r"AttributeError: .*no value 'layer_ouput' to set; did you mean 'layer_output'")
def write_a_misspelt_value(model: Any, tracer: Any) -> None:
    model.layers[0].layer_ouput = torch.zeros(1, 7, 64)


@fault(r"AttributeError: .*no value 'stash' to set.*use a variable")
def leave_something_on_a_shared_module(model: Any, tracer: Any) -> None:
    model.layers[0].stash = model.layers[0].layer_output


@fault(
    r"OutOfOrderError: .*layers\.0\.layer_output was asked for after .*layers\.1\.layer_output.*"
    "on a line above"
)
def read_out_of_forward_order(model: Any, tracer: Any) -> None:
    model.layers[1].layer_output.sum()
    model.layers[0].layer_output.sum()


@fault(
    r"OutOfOrderError: .*layers\.0\.layer_input was asked for after .*layers\.1\.layer_output",
    {"temperature": 0.0, "max_tokens": 5, "ignore_eos": False},
    {"temperature": 0.0, "max_tokens": 2, "ignore_eos": True},
)
def read_out_of_order_in_a_later_step(model: Any, tracer: Any) -> None:
    for step in tracer.iter[:4]:
        model.layers[1].layer_output.sum()
        if step == 1:
            model.layers[0].layer_input.sum()


# -- nnsight's own handles ---------------------------------------------------------------------


@fault(r"ValueError: model\.model\.layers\.0\.output has shape \(7, 64\) on this request")
def swap_a_shorter_pair(model: Any, tracer: Any) -> None:
    hidden, residual = model.layers[0].output
    model.layers[0].output = (hidden[:-1], residual[:-1])


@fault(r"ValueError: model\.model\.layers\.0\.output is a tuple of 2; it cannot become a Tensor")
def swap_a_bare_tensor_for_the_pair(model: Any, tracer: Any) -> None:
    model.layers[0].output = model.layers[0].output[0]


@fault(r"ValueError: model\.model\.layers\.0\.output is a tuple of 2; it cannot become a tuple")
def swap_a_triple_for_the_pair(model: Any, tracer: Any) -> None:
    model.layers[0].output = (*model.layers[0].output, None)


@fault(r"ValueError: model\.model\.layers\.0\.output is a tuple of 2; .*NoneType")
def swap_none_for_the_pair(model: Any, tracer: Any) -> None:
    model.layers[0].output = None


@fault(r"ValueError: model\.model\.layers\.0\.output has shape \(7, 64\) on this request")
def skip_a_block_with_a_misfit(model: Any, tracer: Any) -> None:
    model.layers[0].skip((torch.zeros(3, 64), torch.zeros(3, 64)))


@fault(None)
def skip_a_block_beside_others(model: Any, tracer: Any) -> None:
    (_, hidden, _), _ = model.layers[0].inputs
    model.layers[0].skip((torch.zeros_like(hidden), hidden.clone()))


@fault(r"ValueError: model\.samples has shape \(1, 1\) on this request")
def force_two_tokens_at_once(model: Any, tracer: Any) -> None:
    model.samples = torch.zeros(2, 1, dtype=model.samples.dtype)


# -- exceptions ----------------------------------------------------------------------------------


@fault(r"ZeroDivisionError: ")
def divide_by_zero_on_the_first_line(model: Any, tracer: Any) -> None:
    _ = 1 / 0


@fault(r"KeyError: 'boom'")
def raise_after_a_save(model: Any, tracer: Any) -> None:
    kept = model.layers[0].layer_output.save()
    assert kept.shape == (1, 7, 64)
    raise KeyError("boom")


@fault(r"AttributeError: 'NoneType' object has no attribute 'sum'")
def reach_into_none(model: Any, tracer: Any) -> None:
    nothing = None
    model.layers[0].layer_output.sum()
    nothing.sum()  # type: ignore[attr-defined]


@fault(r"RuntimeError: The size of tensor a")
def add_what_does_not_broadcast(model: Any, tracer: Any) -> None:
    stream = model.layers[0].layer_output
    stream += stream.new_zeros(63)


@fault(r"RecursionError: ")
def recurse_without_end(model: Any, tracer: Any) -> None:
    def deeper() -> Any:
        return deeper()

    model.layers[0].layer_output.sum()
    deeper()


@fault(r"SystemExit: 3")
def exit_the_process(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output.sum()
    raise SystemExit(3)


@fault(r"KeyboardInterrupt: ")
def interrupt(model: Any, tracer: Any) -> None:
    raise KeyboardInterrupt


@fault(r"ValueError: from the cleanup")
def raise_while_cleaning_up(model: Any, tracer: Any) -> None:
    try:
        model.layers[0].layer_output = None
    finally:
        raise ValueError("from the cleanup")


@fault(
    r"KeyError: 3",
    {"temperature": 0.0, "max_tokens": 6},
    {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True},
)
def raise_in_step_three(model: Any, tracer: Any) -> None:
    for step in tracer.iter[:6]:
        model.layers[0].layer_output[:] *= 1.5
        if step == 3:
            raise KeyError(step)


@fault(
    r"KeyError: 'early'",
    {"temperature": 0.0, "max_tokens": 6, "min_tokens": 3},
    {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True},
)
def raise_where_min_tokens_holds_the_request_open(model: Any, tracer: Any) -> None:
    raise KeyError("early")


@fault(
    r"KeyError: 'both'",
    {"temperature": 0.5, "max_tokens": 1, "n": 2, "seed": 1},
)
def raise_in_both_of_n_sequences(model: Any, tracer: Any) -> None:
    raise KeyError("both")


@fault(r"TypeError: kept, a (generator|function), was saved but cannot be sent back")
def save_what_cannot_travel(model: Any, tracer: Any) -> Any:
    model.layers[0].layer_output.sum()
    return (n for n in range(3))


@fault(
    r"TypeError: kept, a (generator|function), was saved but cannot be sent back",
    {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True},
)
def save_what_cannot_travel_steps_before_the_end(model: Any, tracer: Any) -> Any:
    model.layers[0].layer_output.sum()
    return (n for n in range(3))


@fault(r"KeyError: 'after the run'")
def raise_below_the_result(model: Any, tracer: Any) -> None:
    tracer.result  # noqa: B018
    raise KeyError("after the run")


@fault(r"ValueError: model\.trace runs the model, which is running already.*close the trace")
def open_a_trace_in_a_trace(model: Any, tracer: Any) -> None:
    model.trace([1, 2, 3])


@fault(r"ValueError: model\.model\.layers\.0\.mlp\.trace runs the model")
def open_a_trace_of_a_part(model: Any, tracer: Any) -> None:
    model.layers[0].mlp.trace([1, 2, 3])


@fault(r"ValueError: collect runs the model")
def collect_in_a_trace(model: Any, tracer: Any) -> None:
    model.collect([[1, 2, 3]], {"logits": "last"})


@fault(
    r"ValueError: .*o_proj takes rows of 128 features in torch\.float32, and was given \(300, 192\)"
)
def call_a_projection_on_wider_rows(model: Any, tracer: Any) -> None:
    # As many numbers as 450 rows that fit: vLLM's kernel would write those, over what is not its.
    model.layers[0].self_attn.o_proj(torch.ones(300, 192))


@fault(
    r"ValueError: .*mlp\.\w+ takes rows of 64 features in torch\.float32, and was given \(300, 96\)"
)
def call_a_block_of_projections_on_wider_rows(model: Any, tracer: Any) -> None:
    model.layers[0].mlp(torch.ones(300, 96))


@fault(
    r"ValueError: .*o_proj takes rows of 128 features in torch\.float32, and was .* torch\.float16"
)
def call_a_projection_on_halves(model: Any, tracer: Any) -> None:
    model.layers[0].self_attn.o_proj(torch.ones(2, 128, dtype=torch.float16))


# -- no error, and no one else's affair -----------------------------------------------------------


@fault(
    None,
    {"temperature": 0.0, "max_tokens": 6},
    {"temperature": 0.0, "max_tokens": 1, "ignore_eos": True},
)
def stop(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output.sum()
    tracer.stop()


@fault(None)
def write_not_a_number(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = model.layers[0].layer_output * float("nan")


@fault(None)
def write_infinity_in_place(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output[:] = float("inf")


@fault(None)
def write_not_a_number_into_queries_keys_and_values(model: Any, tracer: Any) -> None:
    attention = model.layers[0].self_attn
    attention.attention_queries[:, :, 0] = float("nan")
    attention.attention_keys[:, :, -1] = float("inf")
    attention.attention_values[:, :, 1] = float("-inf")


@fault(None)
def write_not_a_number_where_tokens_enter(model: Any, tracer: Any) -> None:
    model.token_embeddings[:, 1:] = float("nan")


@fault(None, {"temperature": 0.0, "max_tokens": 4, "ignore_eos": True})
def write_infinity_in_later_steps(model: Any, tracer: Any) -> None:
    for step in tracer.iter[:4]:
        if step:
            model.layers[1].mlp.mlp_output[:] = float("inf")


@fault(None)
def write_not_a_number_through_nnsights_own_handle(model: Any, tracer: Any) -> None:
    model.layers[0].output[0][:] = float("nan")


@fault(None)
def edit_another_dtype(model: Any, tracer: Any) -> None:
    model.layers[0].layer_output = model.layers[0].layer_output.double()


@fault(None)
def leave_gradients_switched_on(model: Any, tracer: Any) -> None:
    torch.set_grad_enabled(True)
    model.layers[0].layer_output.sum()
    model.layers[1].layer_output.sum()


@fault(None)
def wait_inside_autocast(model: Any, tracer: Any) -> None:
    with torch.autocast("cpu", torch.bfloat16), torch.autocast("cuda", torch.bfloat16):
        model.layers[0].layer_output.sum()
        model.layers[1].layer_output.sum()
        assert torch.is_autocast_enabled("cpu")


@fault(None)
def wait_inside_a_default_device(model: Any, tracer: Any) -> None:
    with torch.device("meta"):
        model.layers[0].layer_output.sum()
        model.layers[1].layer_output.sum()
        assert torch.zeros(1).is_meta
    assert not torch.zeros(1).is_meta


@fault(r"KeyError: 'inside'")
def raise_inside_a_default_device(model: Any, tracer: Any) -> None:
    torch.set_default_device("meta")
    model.layers[0].layer_output.sum()
    raise KeyError("inside")


@fault(None)
def wait_with_gradients_on(model: Any, tracer: Any) -> None:
    with torch.enable_grad():
        model.layers[0].layer_output.sum()
        assert torch.is_grad_enabled()
        model.layers[1].layer_output.sum()
        assert torch.is_grad_enabled()
    assert not torch.is_grad_enabled()


@fault(None)
def wait_inside_inference_mode(model: Any, tracer: Any) -> None:
    with torch.inference_mode():
        model.layers[0].layer_output[:] *= 2
        model.layers[1].layer_output.sum()


@fault(None)
def leave_another_default_dtype(model: Any, tracer: Any) -> None:
    torch.set_default_dtype(torch.float64)
    model.layers[0].layer_output.sum()


@fault(
    None,
    {"temperature": 0.0, "max_tokens": 3, "ignore_eos": True},
)
def read_without_end(model: Any, tracer: Any) -> None:
    for _ in tracer.iter[:]:
        model.layers[0].layer_output.sum()


@fault(
    None,
    {"temperature": 0.0, "max_tokens": 2, "ignore_eos": True},
)
def ask_for_more_steps_than_there_are(model: Any, tracer: Any) -> None:
    for _ in tracer.iter[:5]:
        model.layers[0].layer_output[:] *= 0.5


@fault(None, {"temperature": 0.5, "max_tokens": 2, "n": 2, "seed": 1, "ignore_eos": True})
def edit_two_sequences_of_one_prompt(model: Any, tracer: Any) -> None:
    for _ in tracer.iter[:2]:
        model.layers[0].layer_output[:, -1] *= 0.1


@fault(None)
def edit_after_moving_on(model: Any, tracer: Any) -> None:
    stream = model.layers[0].layer_output
    model.layers[1].layer_input.sum()
    stream.zero_()
