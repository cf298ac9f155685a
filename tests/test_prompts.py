"""What a trace and a `collect` take for a prompt: the same on both engines, or a word on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest
import torch

from nnterp.engines.prompts import token_ids
from nnterp.tools.checking.compare import relative_error

CLOSE = 1e-5
IDS = [5, 91, 17, 203, 44]
TEMPLATE = (
    "{{ bos_token }}{% for message in messages %}<{{ message['role'] }}>{{ message['content'] }}"
    "{% if not loop.last %}<end>{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<end><assistant>{% endif %}"
)
CHAT = [{"role": "system", "content": "Short."}, {"role": "user", "content": "Where?"}]


def settings(model: Any) -> dict[str, Any]:
    return {"temperature": 0.0, "max_tokens": 1} if model.engine_adapter.engine == "vllm" else {}


@pytest.fixture(scope="module")
def alone(transformer: Any) -> Callable[[list[int]], torch.Tensor]:
    """The stream leaving block 0 at the last of some tokens, by a hook on transformers' module."""
    module = transformer._module

    def run(ids: list[int]) -> torch.Tensor:
        kept: list[torch.Tensor] = []

        def keep(_: Any, __: Any, output: Any) -> None:
            kept.append(output[0] if isinstance(output, tuple) else output)

        hook = module.model.layers[0].register_forward_hook(keep)
        with torch.no_grad():
            module(torch.tensor([ids]))
        hook.remove()
        return kept[0][0, -1]

    return run


@pytest.fixture
def template(either: Any) -> Iterator[Any]:
    """The model, with a template for chats."""
    either.tokenizer.chat_template = TEMPLATE
    yield either
    either.tokenizer.chat_template = None


PADDED = {"input_ids": [[0, 0, *IDS]], "attention_mask": [[0, 0, *[1] * len(IDS)]]}
NAMED: dict[str, dict[str, Any]] = {
    "a list": {"input_ids": IDS},
    "a batch of one": {"input_ids": [IDS]},
    "a tensor": {"input_ids": torch.tensor([IDS])},
    "an array": {"input_ids": np.array(IDS)},
    "padded lists": PADDED,
    "padded tensors": {name: torch.tensor(rows) for name, rows in PADDED.items()},
    "padded on the right": {
        "input_ids": torch.tensor([[*IDS, 0, 0]]),
        "attention_mask": torch.tensor([[*[True] * len(IDS), False, False]]),
    },
    "with types of one kind": {
        "input_ids": torch.tensor([IDS]),
        "attention_mask": torch.ones(1, len(IDS)),
        "token_type_ids": torch.zeros(1, len(IDS), dtype=torch.long),
    },
}


@pytest.mark.parametrize("form", NAMED)
def test_the_models_inputs_by_name_are_a_prompt(
    either: Any, alone: Callable[[list[int]], torch.Tensor], form: str
) -> None:
    if form == "with types of one kind" and either.engine_adapter.engine == "transformers":
        pytest.skip("this model's own forward takes no token_type_ids")
    given = NAMED[form]
    right = -3 if form == "padded on the right" and either.engine_adapter.engine != "vllm" else -1
    with torch.no_grad(), either.trace(**given, **settings(either)):
        traced = either.layers[0].layer_output[0, right].save()
    with torch.no_grad(), either.trace(**settings(either)) as tracer:
        with tracer.invoke(**given):
            invoked = either.layers[0].layer_output[0, right].save()
    assert relative_error(traced, alone(IDS)) < CLOSE
    assert relative_error(invoked, alone(IDS)) < CLOSE


def test_a_mask_by_name_goes_with_ids_given_without(
    either: Any, alone: Callable[[list[int]], torch.Tensor]
) -> None:
    ids, mask = (torch.tensor(PADDED[name]) for name in ("input_ids", "attention_mask"))
    with torch.no_grad(), either.trace(ids, attention_mask=mask, **settings(either)):
        last = either.layers[0].layer_output[0, -1].save()
    assert relative_error(last, alone(IDS)) < CLOSE


def test_masked_tokens_are_no_part_of_a_request(engine: Callable[[str], Any]) -> None:
    model = engine("llama")
    with model.trace(**PADDED, **settings(model)):
        ids = model.input_ids.save()
    assert ids.tolist() == [IDS]


def test_what_vllm_does_not_take_is_named(engine: Callable[[str], Any]) -> None:
    model = engine("llama")

    def refused(kind: type[Exception], says: str, *prompt: Any, **given: Any) -> None:
        with pytest.raises(kind, match=says):
            with model.trace(*prompt, **given):
                logits = model.logits.save()
        with pytest.raises(kind, match=says):
            with model.trace() as tracer:
                with tracer.invoke(*prompt, **given):
                    logits = model.logits.save()  # noqa: F841

    refused(TypeError, "inputs_embeds is no input of vLLM's", inputs_embeds=torch.zeros(1, 3, 64))
    positions = torch.arange(5)[None]
    refused(TypeError, "position_ids is no input", input_ids=IDS, position_ids=positions)
    refused(TypeError, "token_type_ids is no", input_ids=IDS, token_type_ids=[0, 0, 1, 1, 1])
    refused(TypeError, "position_ids is no", {"input_ids": IDS, "position_ids": positions})
    refused(ValueError, "attention_mask is not of the shape", input_ids=IDS, attention_mask=[1])
    refused(ValueError, "holds no tokens", input_ids=IDS, attention_mask=[0] * 5)
    refused(ValueError, "holds no tokens", [])
    refused(TypeError, "attention_mask goes with .* pass input_ids", attention_mask=[1, 1])
    refused(TypeError, "attention_mask goes with .* pass input_ids", "a b", attention_mask=[1, 1])
    refused(TypeError, "'max_token' is no setting.*did you mean 'max_tokens'", IDS, max_token=1)
    refused(TypeError, "'use_cache' is no setting of vLLM's", IDS, use_cache=False)
    for several in (
        [[5, 6], [7, 8, 9]],
        ["a b", "c"],
        torch.tensor([[5, 6], [7, 8]]),
        {"input_ids": [[5, 6], [7, 8]]},
        [CHAT, "a b"],
    ):
        model.tokenizer.chat_template = TEMPLATE
        refused(ValueError, r"one prompt, and here are 2: .*tracer\.invoke\(prompt\)", several)
        model.tokenizer.chat_template = None
    rows = torch.tensor([[5, 6], [7, 8]])
    refused(ValueError, "one prompt, and here are 2", input_ids=rows)
    refused(ValueError, "one prompt, and here are 2", "a b", "c d")


def test_what_the_refusal_of_several_prompts_says_works(either: Any) -> None:
    prompts = [[5, 6], [7, 8, 9]]
    with torch.no_grad(), either.trace(**settings(either)) as tracer:
        for prompt in prompts:
            with tracer.invoke(prompt):
                last = either.layers[1].layer_output[:, -1].save()
    found = either.collect(prompts, {"layers.1.layer_output": "last"})["layers.1.layer_output"]
    # On transformers every invoke binds the one name, and the last is kept.
    rows = torch.cat(last) if isinstance(last, list) else last
    assert relative_error(rows, found[-len(rows) :]) < CLOSE


def test_a_second_prompt_is_not_dropped(transformer: Any) -> None:
    with pytest.raises(TypeError, match="several prompts are a list of them, and here are 2"):
        with transformer.trace("a b", "c d"):
            logits = transformer.logits.save()  # noqa: F841


def test_a_generation_is_as_long_as_transformers_words_for_it_say(
    engine: Callable[[str], Any],
) -> None:
    model = engine("llama")
    with model.trace(temperature=0.0, ignore_eos=True) as tracer:
        with tracer.invoke(IDS, max_new_tokens=2):
            result = tracer.result.save()
    assert len(result.outputs[0].token_ids) == 2


def test_a_chat_is_what_the_template_makes_of_it(template: Any) -> None:
    tokenizer = template.tokenizer
    text = "<system>Short.<end><user>Where?<end><assistant>"
    expected = [tokenizer.bos_token_id, *tokenizer(text)["input_ids"]]
    with torch.no_grad(), template.trace(CHAT, **settings(template)):
        ids = template.input_ids.save()
        last = template.layers[1].layer_output[0, -1].save()
    assert ids.tolist() == [expected]  # it begins once
    with torch.no_grad(), template.trace(**settings(template)) as tracer:
        with tracer.invoke(CHAT):
            invoked = template.input_ids.save()
    assert invoked.tolist() == [expected]
    found = template.collect([CHAT, "a b", tuple(CHAT), [CHAT]], {"layers.1.layer_output": "last"})
    rows = found["layers.1.layer_output"]
    for row in (rows[0], rows[2], rows[3]):
        assert relative_error(row, last) < CLOSE


def test_a_chat_that_ends_with_the_assistant_goes_on_there(template: Any) -> None:
    begun = [*CHAT, {"role": "assistant", "content": "In"}]
    text = "<system>Short.<end><user>Where?<end><assistant>In"
    expected = [template.tokenizer.bos_token_id, *template.tokenizer(text)["input_ids"]]
    with torch.no_grad(), template.trace(begun, **settings(template)):
        ids = template.input_ids.save()
    assert ids.tolist() == [expected]
    assert token_ids(template.tokenizer, [begun]) == [expected]


def test_a_chat_without_a_template_is_refused(either: Any) -> None:
    assert either.tokenizer.chat_template is None
    with pytest.raises(ValueError, match=r"has none: set model\.tokenizer\.chat_template"):
        with either.trace(CHAT, **settings(either)):
            logits = either.logits.save()
    with pytest.raises(ValueError, match=r"has none: set model\.tokenizer\.chat_template"):
        with either.trace([CHAT], **settings(either)):
            logits = either.logits.save()  # noqa: F841
    with pytest.raises(ValueError, match=r"has none: set model\.tokenizer\.chat_template"):
        either.collect([CHAT], {"layers.0.layer_output": "last"})


def test_one_chat_is_no_list_of_chats(template: Any) -> None:
    with pytest.raises(TypeError, match=r"this is one: write \[messages\]"):
        template.collect(CHAT, {"layers.0.layer_output": "last"})


def test_an_image_in_a_chat_is_not_dropped(engine: Callable[[str], Any]) -> None:
    model = engine("llama")
    model.tokenizer.chat_template = TEMPLATE
    parts = [{"type": "image"}, {"type": "text", "text": "What?"}]
    with pytest.raises(ValueError, match="of text alone here, and a message has {'image'}"):
        with model.trace([{"role": "user", "content": parts}], **settings(model)):
            logits = model.logits.save()  # noqa: F841
    model.tokenizer.chat_template = None
