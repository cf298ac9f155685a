"""Refuses arguments that nothing behind a model class takes, before anything is built.

Both model classes hand most of their arguments on: to nnsight, to the load of transformers or of
vLLM, to the model's class. An argument that none of them takes would be detected at the load,
which may be as late as the first trace, and reported for a class the user never named. So each
argument is looked up beforehand, in what those functions and classes themselves say they take.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from types import CodeType
from typing import Any

from nnterp.errors import did_you_mean
from nnterp.vocabulary.values import Engine

_NOTHING = "there is nothing to pass in its place"

#: What to do instead of passing an argument that nnterp 1.3 took, or that has another name here.
_INSTEAD: Mapping[str, str] = {
    "model": "the checkpoint is the first argument, repo_id",
    "check_renaming": f"{_NOTHING}; `nnterp check MODEL` compares every value",
    "check_attn_probs_with_trace": f"{_NOTHING}; `nnterp check MODEL` compares every value",
    "allow_dispatch": f"{_NOTHING}; a load with dispatch=False reads no weights before a trace",
    "rename_config": "pass rename={'path.of.a.module': 'its standard name'}, or family=",
}

_INSTEAD_ON: Mapping[Engine, Mapping[str, str]] = {
    "transformers": {
        "enable_attention_probs": "pass attn_implementation='eager', under which the pattern is "
        "served",
        "tokenizer_kwargs": "pass tokenizer=AutoTokenizer.from_pretrained(...) with them, or set "
        "them on model.tokenizer",
        "model_kwargs": "pass what it holds as arguments of their own",
        "load_in_4bit": "pass dtype='nf4', or a quantization_config",
        "load_in_8bit": "pass dtype='int8', or a quantization_config",
    },
    "vllm": {
        "enable_attention_probs": f"{_NOTHING}: the pattern is always served",
        "tokenizer_kwargs": "set them on model.tokenizer and pass token ids, or save a tokenizer "
        "that has them and pass tokenizer='its folder'",
        "force_dangerous_prefix_caching": "pass enable_prefix_caching=True alone",
        "attn_implementation": f"{_NOTHING}: vLLM has kernels of its own, and the pattern is "
        "always served",
        "torch_dtype": "pass dtype",
        "device_map": "pass tensor_parallel_size, the number of GPUs",
        "device": f"{_NOTHING}: vLLM takes the GPUs it sees, or the CPU where there are none",
        "worker_cls": f"{_NOTHING}: blocks run in nnterp's own worker",
    },
}


#: The load's own arguments that the model classes fill in themselves.
_FILLED = frozenset({"self", "model", "module", "parent", "model_kwargs", "worker_cls", "kwargs"})


@dataclass(frozen=True)
class Known:
    """`Known` holds the arguments that something takes.

    Attributes:
        names: Their names.
        config: The checkpoint's config, any field of which is taken as well.
        others: Whether it may take further arguments that cannot be found out.
        beside: What they are passed with, as a phrase for the refusal of any other argument.
    """

    names: frozenset[str]
    config: Any = None
    others: bool = False
    beside: str = ""

    def __contains__(self, name: str) -> bool:
        return name in self.names or hasattr(self.config, name)

    def nearest(self, name: str) -> str:
        """Return ``; did you mean 'x'?`` for the nearest known name, or an empty string."""
        fields = self.config.to_dict() if self.config is not None else ()
        return did_you_mean(name, self.names | set(fields))


def require_known(owner: type, engine: Engine, given: Iterable[str], known: Known) -> None:
    """Refuse an argument that nothing behind a model class takes.

    Args:
        owner: The class that is constructed.
        engine: Its engine.
        given: The names of the arguments that were passed.
        known: The arguments that are taken.

    Raises:
        TypeError: One is not taken; the message says what to pass instead, if there is anything.
    """
    instead = {**_INSTEAD, **_INSTEAD_ON[engine]}
    for name in given:
        if name in known or (known.others and name not in instead):
            continue
        advice = f": {instead[name]}" if name in instead else known.nearest(name)
        raise TypeError(f"{owner.__name__} takes no argument {name!r}{known.beside}{advice}")


def of_wrapped(owner: type) -> Known:
    """Return what is taken together with a transformers module that is loaded already.

    Args:
        owner: The model class.
    """
    from transformers import pipeline

    names = (_of_class(owner) | _parameters(pipeline)) - _FILLED
    return Known(names, beside=" beside a module that is loaded already")


def of_transformers(owner: type, config: Any, arguments: Mapping[str, Any]) -> Known:
    """Return what is taken for a load by transformers.

    Args:
        owner: The model class.
        config: The checkpoint's config.
        arguments: What was passed, which determines which of transformers' classes is loaded.
    """
    from nnsight.modeling import quantization
    from transformers import AutoConfig, PretrainedConfig, PreTrainedModel
    from transformers.models.auto.auto_factory import _BaseAutoModelClass

    passed_on = frozenset[str]().union(
        *(
            _parameters(function) | _words(_code(function))
            for function in (
                _BaseAutoModelClass.from_pretrained,
                PreTrainedModel.from_pretrained,
                AutoConfig.from_pretrained,
                PretrainedConfig.from_pretrained,
                PretrainedConfig.get_config_dict,
                PretrainedConfig._get_config_dict,
                PretrainedConfig.from_dict,
            )
        ),
        quantization._COMPUTE_DTYPE_KEYS,
    )
    of_models, others = _of_model_classes(config, arguments)
    names = of_wrapped(owner).names | passed_on | of_models
    return Known(names - _FILLED, config, others)


def of_vllm(owner: type, asynchronous: bool) -> Known:
    """Return what is taken for a load by vLLM.

    Args:
        owner: The model class.
        asynchronous: Whether vLLM's asynchronous engine is loaded.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs, EngineArgs

    engine = AsyncEngineArgs if asynchronous else EngineArgs
    return Known((_of_class(owner) | {field.name for field in fields(engine)}) - _FILLED)


def _of_class(owner: type) -> frozenset[str]:
    """Return the arguments that the constructors of ``owner`` and its bases name."""
    constructors = (vars(base).get("__init__") for base in owner.__mro__[:-1])
    return frozenset().union(*(_parameters(init) for init in constructors if init is not None))


def _of_model_classes(config: Any, arguments: Mapping[str, Any]) -> tuple[frozenset[str], bool]:
    """Return what transformers' classes for a config take, and whether they may take more."""
    from transformers.pipelines import check_task

    if hasattr(config, "auto_map") and arguments.get("trust_remote_code"):
        return frozenset(), True
    names: frozenset[str] = frozenset()
    others = False
    for auto in check_task(arguments.get("task") or "text-generation")[1]["pt"]:
        found = auto._model_mapping.get(type(config), ())
        for model_class in found if isinstance(found, (list, tuple)) else (found,):
            names |= _parameters(model_class.__init__)
            kinds = [p.kind for p in inspect.signature(model_class.__init__).parameters.values()]
            others |= inspect.Parameter.VAR_KEYWORD in kinds
    return names, others


def _parameters(function: Callable[..., Any]) -> frozenset[str]:
    """Return the names of the parameters of ``function``, without ``*args`` and ``**kwargs``."""
    parameters = inspect.signature(function).parameters.values()
    collecting = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    return frozenset(parameter.name for parameter in parameters if parameter.kind not in collecting)


def _code(function: Callable[..., Any]) -> CodeType:
    """Return the code object of a function or method, without its decorators."""
    return inspect.unwrap(getattr(function, "__func__", function)).__code__


def _words(code: CodeType) -> frozenset[str]:
    """Return the strings in ``code`` that could be names.

    Much of what ``from_pretrained`` takes it takes out of its ``**kwargs``, by such a string. There
    are other strings among them, which does no harm: every argument that is taken must be in the
    result, but not everything in the result must be one.
    """

    def within(constants: Iterable[Any]) -> Iterator[str]:
        for constant in constants:
            if isinstance(constant, str) and constant.isidentifier():
                yield constant
            elif isinstance(constant, (tuple, frozenset)):
                yield from within(constant)
            elif isinstance(constant, CodeType):
                yield from within(constant.co_consts)

    return frozenset(within(code.co_consts))
