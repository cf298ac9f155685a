"""The modules of a model: blocks as a list has them, weights, and calls of a block's own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import nnsight
import pytest
import torch

from nnterp.errors import Unavailable
from nnterp.tools.checking.compare import relative_error

IDS = [5, 91, 17, 203, 44]
ONE_STEP = {"temperature": 0.0, "max_tokens": 1}


def settings(model: Any) -> dict[str, Any]:
    return ONE_STEP if model.engine_adapter.engine == "vllm" else {}


def paths(blocks: Any) -> list[str]:
    return [block.path for block in blocks]


SLICES = [slice(None), slice(0, 1), slice(-1, None), slice(None, None, -1), slice(5, 9)]


def test_blocks_are_indexed_as_a_list(either: Any) -> None:
    blocks = list(either.layers)
    assert len(blocks) == len(either.layers) == either.num_layers == 2
    assert either.layers[-1] is blocks[1]
    assert either.layers[torch.tensor(-2)] is blocks[0]
    for cut in SLICES:
        assert either.layers[cut] == blocks[cut]
    for index in (2, 7, -3):
        with pytest.raises(IndexError, match=rf"layers\[{index}\]: there are 2, 0 to 1"):
            either.layers[index]
    with pytest.raises(TypeError):
        either.layers[0.5]


def test_blocks_are_indexed_as_a_list_in_a_trace(either: Any) -> None:
    with torch.no_grad(), either.trace(IDS, **settings(either)):
        streams = [block.layer_output for block in either.layers]
        of_slices = nnsight.save([paths(either.layers[cut]) for cut in SLICES])
        last = (streams[-1] * 1).save()
        found = nnsight.save([len(either.layers), either.layers[-1].path])
    assert of_slices == [paths(list(either.layers)[cut]) for cut in SLICES]
    assert found == [2, "model.model.layers.1"]
    with torch.no_grad(), either.trace(IDS, **settings(either)):
        same = either.layers[-1].layer_output.save()
    assert torch.equal(last, same)
    with pytest.raises((IndexError, RuntimeError), match=r"layers\[2\]: there are 2, 0 to 1"):
        with either.trace(IDS, **settings(either)):
            stream = either.layers[2].layer_output.save()  # noqa: F841


def test_a_stream_is_projected_whatever_its_leading_axes(either: Any) -> None:
    with torch.no_grad(), either.trace(IDS, **settings(either)):
        stream = either.layers[-1].layer_output
        whole = either.project_on_vocab(stream).save()
        rows = either.project_on_vocab(stream[0]).save()
        row = either.project_on_vocab(stream[0, -1]).save()
        found = nnsight.save(
            [
                either.get_topk_closest_tokens(part, k=3)
                for part in (stream, stream[0], stream[0, -1], stream[None])
            ]
        )
    vocab = either.vocab_size
    assert (whole.shape, rows.shape, row.shape) == ((1, 5, vocab), (5, vocab), (vocab,))
    assert relative_error(rows, whole[0]) < 1e-6
    assert relative_error(row, whole[0, -1]) < 1e-6
    chances, ids = whole.softmax(-1).topk(3)
    texts = [[either.tokenizer.decode(token) for token in best] for best in ids[0].tolist()]
    for index, (given, probabilities) in enumerate(found):
        expected = (chances, chances[0], chances[0, -1], chances[None])[index]
        assert given == ([texts], texts, texts[-1], [[texts]])[index]
        assert probabilities.shape == expected.shape
        assert relative_error(probabilities, expected) < 1e-5


@pytest.fixture(scope="module")
def model(engine: Callable[[str], Any]) -> Any:
    return engine("llama")


def test_weights_are_in_the_engine_and_the_caller_is_told_so(model: Any) -> None:
    for name in ("layers.0.self_attn.o_proj.weight", "norm.weight", "embed_tokens.weight"):
        with pytest.raises(Unavailable, match=r"weight, \(.*float32, is in the engine.*a trace"):
            model.get(name)
    with pytest.raises(Unavailable, match="norm is in the engine: call it in a trace"):
        model.norm(torch.ones(1, 64))


def test_weights_that_are_not_packed_are_read_in_a_trace(model: Any, transformer: Any) -> None:
    with model.trace(IDS, **ONE_STEP):
        norm = model.norm.weight.clone().save()
        embedding = model.embed_tokens.weight[:7].clone().save()
    alone = transformer._module.model
    assert torch.equal(norm, alone.norm.weight)
    assert torch.equal(embedding, alone.embed_tokens.weight[:7])


def test_a_packed_weight_says_to_call_its_module(model: Any) -> None:
    with pytest.raises(RuntimeError, match=r"^Unavailable: .*o_proj\.weight is packed.*module\("):
        with model.trace(IDS, **ONE_STEP):
            weight = model.layers[0].self_attn.o_proj.weight.save()  # noqa: F841


@pytest.mark.parametrize(
    "shape", [(128,), (1, 128), (7, 128), (1, 300, 128), (2, 3, 128), (0, 128)]
)
def test_a_module_is_called_on_any_number_of_rows(
    model: Any, transformer: Any, shape: tuple[int, ...]
) -> None:
    rows = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    with model.trace(IDS, **ONE_STEP):
        attention = model.layers[0].self_attn
        output, bias = attention.o_proj(rows)
        output = output.save()
        without = nnsight.save([bias])
        last = model.layers[-1].layer_output.save()
    assert without == [None]
    expected = transformer._module.model.layers[0].self_attn.o_proj(rows)
    assert output.shape == expected.shape
    assert relative_error(output, expected.detach()) < 1e-6 if output.numel() else True
    with model.trace(IDS, **ONE_STEP):
        undisturbed = model.layers[-1].layer_output.save()
    assert torch.equal(last, undisturbed)


def test_rows_that_lie_otherwise_in_memory_are_rows(model: Any, transformer: Any) -> None:
    rows = torch.randn(64, 9, generator=torch.Generator().manual_seed(1)).t()
    with model.trace(IDS, **ONE_STEP):
        output = model.layers[0].mlp(rows).save()
    expected = transformer._module.model.layers[0].mlp(rows).detach()
    assert relative_error(output, expected) < 1e-6


def test_a_head_that_cannot_be_called_says_what_can(model: Any) -> None:
    with pytest.raises(RuntimeError, match=r"^Unavailable: .*lm_head.*project_on_vocab"):
        with model.trace(IDS, **ONE_STEP):
            logits = model.lm_head(model.norm(model.layers[-1].layer_output)).save()  # noqa: F841
