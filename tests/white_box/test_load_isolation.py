"""A load leaves the classes of models as they were."""

from __future__ import annotations

import pytest
from torch import nn
from transformers import GPTNeoXModel


def test_a_load_that_fails_leaves_the_class_of_its_model_as_it_was() -> None:
    from vllm.compilation.decorators import support_torch_compile

    from nnterp.engines.vllm.load_isolation import classes_unchanged

    bases, before = GPTNeoXModel.__bases__, dict(vars(GPTNeoXModel))

    def build() -> nn.Module:
        support_torch_compile(dynamic_arg_dims={"input_ids": 1})(GPTNeoXModel)
        assert GPTNeoXModel.__bases__ != bases
        raise RuntimeError("no memory")

    with pytest.raises(RuntimeError, match="no memory"):
        classes_unchanged(build)
    assert GPTNeoXModel.__bases__ == bases
    assert dict(vars(GPTNeoXModel)) == before
