"""Defines what the two model classes share.

Each model class is nnsight's own for its engine, with one step more before the load: read the
checkpoint's config, take the family for its ``model_type``, and hand the family's aliases and
envoy classes to nnsight. The sizes, the values of the model as a whole and the methods for
research are the same on both, and are defined here.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import ModuleType
from typing import Any

import torch
from nnsight.intervention import aliasing
from torch import Tensor, nn
from tqdm.auto import tqdm

from nnterp import families
from nnterp.collecting.collected import Collected
from nnterp.collecting.request import wanted_places
from nnterp.collecting.selections import Positions, Selection
from nnterp.engines.multimodal import with_multimodal
from nnterp.engines.prompts import token_ids
from nnterp.engines.survey import part, survey
from nnterp.errors import UnsupportedFamily, did_you_mean
from nnterp.sites.base import find_module
from nnterp.sites.choice import FromFamily
from nnterp.sites.primitive import FirstArgument, Output
from nnterp.tracing.envoy import StandardEnvoy
from nnterp.tracing.module_list import Entries
from nnterp.tracing.running_block import require_outside_blocks
from nnterp.tracing.standard_value import StandardValue
from nnterp.vocabulary import values
from nnterp.vocabulary.names import Place
from nnterp.vocabulary.support import Support
from nnterp.vocabulary.values import Value

#: The number of prompts from which a progress bar is shown; fewer are done before it can be read.
BAR_FROM = 64


class Standardized(StandardEnvoy):
    """`Standardized` is the vocabulary of a whole model: its sizes, root values and methods.

    Attributes:
        family: The family module in use, such as `nnterp.families.llama`.
        layers: The decoder blocks.
        embed_tokens: The token embedding.
        norm: The norm after the last block.
        lm_head: The output projection.
        tokenizer: The tokenizer.
    """

    family: ModuleType
    layers: Any
    embed_tokens: Any
    norm: Any
    lm_head: Any
    tokenizer: Any

    input_ids = StandardValue(values.INPUT_IDS, FirstArgument(of="embed_tokens"))
    token_embeddings = StandardValue(
        values.TOKEN_EMBEDDINGS, FromFamily("TOKEN_EMBEDDINGS", Output(of="embed_tokens"))
    )

    def _take_family(
        self,
        config: Any,
        family: Any,
        rename: Mapping[Any, Any] | None,
        envoys: Mapping[Any, Any] | None,
    ) -> dict[str, Any]:
        """Take the family for ``config``, and return the arguments nnsight builds the tree with."""
        self._config = config.get_text_config(decoder=True)
        self.family = families.find(family, self._config, self.engine_adapter.engine)
        self._added_rename = dict(rename or {})
        self._added_envoys = dict(envoys or {})
        return {
            "rename": {**with_multimodal(self.family.RENAME), **self._added_rename},
            # nnsight takes the first key that fits a module, so the user's own keys come first.
            "envoys": self._added_envoys
            | {
                key: envoy
                for key, envoy in {
                    nn.ModuleList: Entries,
                    **self._engine_envoys(),
                    **self.family.ENVOYS,
                }.items()
                if key not in self._added_envoys
            },
        }

    def _engine_envoys(self) -> Mapping[Any, Any]:
        """Return the envoy classes that nnsight itself needs on this engine."""
        return {}

    def _serve_through_engine_envoys(self) -> None:
        """Make modules that the engine has an envoy class for serve the family's values as well.

        nnsight looks up an envoy class by a module's class before it looks it up by the module's
        path.
        """
        engine = set(self._engine_envoys().values())
        for path, envoy in self.named_modules():
            if type(envoy) not in engine:
                continue
            spellings = aliasing.spellings(self._rename, path, envoy._module)
            for key, served in self.family.ENVOYS.items():
                if isinstance(key, str) and any(
                    aliasing.path_ends_with(spelling, key) for spelling in spellings
                ):
                    both = (served, type(envoy))
                    envoy.__class__ = type(served.__name__, both, {"__doc__": served.__doc__})

    def _check_tree(self) -> None:
        """Refuse a family whose blocks are not in this model, and a key that names no module."""
        tree = self.named_modules()
        if "layers" not in self.__dict__:
            looked = [key for key, alias in self._rename.items() if alias == "layers"]
            raise UnsupportedFamily(
                f"{type(self._module).__name__} has no blocks where its family looks for them: "
                f"{', '.join(map(repr, looked))}. If another family's names fit, pass its name as "
                "family=; else say where they are with rename={'path.of.the.blocks': 'layers', "
                "'path.of.the.last.norm': 'norm', 'path.of.the.embedding': 'embed_tokens'}"
            )
        for key in self._added_rename:
            if not any(aliasing.named(envoy, key) for _, envoy in tree):
                raise ValueError(f"rename key {key!r} names no module{self._nearest(key)}")
        for key in self._added_envoys:
            if isinstance(key, type):
                if any(isinstance(envoy._module, key) for _, envoy in tree):
                    continue
            elif any(
                aliasing.path_ends_with(spelling, key)
                for path, envoy in tree
                for spelling in aliasing.spellings(self._rename, path, envoy._module)
            ):
                continue
            raise ValueError(f"envoys key {key!r} names no module{self._nearest(key)}")

    def _nearest(self, key: Any) -> str:
        """Return ``; did you mean 'x'?`` for the module path nearest to ``key``, or nothing."""
        if isinstance(key, type):
            return ""
        paths = {path.partition(".")[2] for path, _ in self.named_modules()}
        return did_you_mean(key, paths | {path.rpartition(".")[2] for path in paths})

    # -- sizes ---------------------------------------------------------------

    @property
    def num_layers(self) -> int:
        """Return the number of decoder blocks."""
        return len(self.layers)

    @property
    def hidden_size(self) -> int:
        """Return the width of the residual stream."""
        return self._config.hidden_size

    @property
    def vocab_size(self) -> int:
        """Return the width of the logits."""
        return self._config.vocab_size

    @property
    def num_heads(self) -> int:
        """Return the number of query heads per block, by the config."""
        return self._config.num_attention_heads

    @property
    def num_kv_heads(self) -> int:
        """Return the number of key and value heads per block, by the config.

        It is `num_heads` where the config gives none, because no heads are shared there.
        """
        return self._first("num_key_value_heads") or self.num_heads

    @property
    def head_dim(self) -> int:
        """Return the width of a head's values and output."""
        return self._first("v_head_dim", "head_dim") or self.hidden_size // self.num_heads

    @property
    def qk_head_dim(self) -> int:
        """Return the width of a head's queries and keys; not `head_dim` under latent attention."""
        return self._first("qk_head_dim", "head_dim") or self.hidden_size // self.num_heads

    @property
    def intermediate_size(self) -> int:
        """Return the width inside the MLP."""
        return self._first("intermediate_size", "n_inner", "ffn_dim") or 4 * self.hidden_size

    def _first(self, *fields: str) -> int | None:
        """Return the first of the config's ``fields`` that is there and not zero or None."""
        found = (getattr(self._config, field, None) for field in fields)
        return next((width for width in found if width), None)

    # -- methods -------------------------------------------------------------

    def trace(self, *inputs: Any, **kwargs: Any) -> Any:
        """Open nnsight's trace, of a prompt or of several invokes.

        Args:
            *inputs: A text, token ids, a chat, or a tokenizer's output.
            **kwargs: The same by name, ``input_ids`` and ``attention_mask``, and what the run takes
                beside it, such as sampling settings on vLLM.

        Raises:
            ValueError: It is opened in the block of another trace.
        """
        require_outside_blocks(f"{self.path}.trace")
        return super().trace(*inputs, **kwargs)

    def support(self) -> Support:
        """Return which values this checkpoint serves, in which layout, and why not the others."""
        return survey(self)

    def host_of(self, value: Value, layer: int) -> Any:
        """Return the envoy that serves ``value`` for block ``layer``: model, block or part.

        Args:
            value: The vocabulary row.
            layer: The block's index, which may be negative; a value of the model ignores it.

        Returns:
            The envoy, or None where the block has no such part.
        """
        if value.host == "model":
            return self
        block = self.layers[self._index(layer)]
        return block if value.host == "layer" else part(block, value.host)

    def collect(
        self,
        prompts: Iterable[str | Sequence[int] | Sequence[Mapping[str, Any]] | Tensor]
        | Mapping[str, Any],
        values: Mapping[str, Positions],
        *,
        batch_size: int | None = None,
        progress: bool | None = None,
        lora_request: Any = None,
    ) -> Collected:
        """Keep a few values of many prompts, much faster than a trace for each.

        No block of code runs beside the forward: the values are taken for all prompts of a forward
        at once. They are returned on the CPU, in the order of the prompts::

            found = model.collect(texts, {"layers.*.layer_output": "last", "logits": "last"})
            found["layers.12.layer_output"]  # [prompts, hidden]

        Args:
            prompts: Texts, token ids, chats, or the output of a tokenizer.
            values: For each value's name, ``*`` standing for every block, the positions to
                keep: ``"last"``, ``"all"``, ``"mean"`` (in float32), a position such as
                ``0`` or ``-2``, a position for each prompt, a mask of ``[tokens]`` for each,
                or a function that takes the value, in the layout of a trace with batch 1, and
                returns a tensor of one shape for all prompts.
            batch_size: The most prompts at a time. The default is as many as make a good forward on
                transformers, and as vLLM keeps waiting.
            progress: Whether to show a progress bar; by default for more than a few prompts.
            lora_request: On vLLM, the adapter that the prompts run with, as ``trace`` takes it:
                one for all, or a list with one or None for each.

        Returns:
            By name, a tensor ``[prompts, ...]``, or, where prompts keep different numbers of
            positions (``"all"``, masks), a `Ragged`.

        Raises:
            Unavailable: A value is not served here.
            ValueError: A name is no value's, positions are not valid, or it is called in a block.
            RuntimeError: A function failed on vLLM; the message names the error.
        """
        require_outside_blocks("collect")
        ids = token_ids(self.tokenizer, prompts)
        wanted = wanted_places(self, values, [len(prompt) for prompt in ids])
        shown = len(ids) >= BAR_FROM if progress is None else progress
        disabled = not shown or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
        with tqdm(total=len(ids), desc="Collecting", unit="prompt", disable=disabled) as bar:
            rows = self._gather(ids, wanted, batch_size, bar.update, lora_request)
            return Collected.of(wanted, rows)

    def _gather(
        self,
        ids: Sequence[list[int]],
        wanted: Mapping[Place, Selection],
        batch_size: int | None,
        advance: Callable[[int], Any],
        lora_request: Any,
    ) -> Mapping[Place, Tensor]:
        """Run the prompts ``ids`` and keep what is ``wanted``.

        Args:
            ids: The token ids of each prompt.
            wanted: The selection at each place.
            batch_size: The most prompts at a time, or None.
            advance: Called with the number of prompts that are done, every few.
            lora_request: On vLLM, the adapters of the prompts.

        Returns:
            The rows kept at each place, ``[rows, ...]``.
        """
        raise NotImplementedError

    def steer(
        self,
        layers: int | Iterable[int],
        vector: Tensor,
        factor: float = 1.0,
        positions: int | Sequence[int] | slice | None = None,
    ) -> None:
        """Add ``factor * vector`` to the residual stream leaving some blocks, in a trace.

        Args:
            layers: A block's index, or several; negative counts from the last.
            vector: ``[hidden]``, or anything that broadcasts to the rows it is added to.
            factor: The strength.
            positions: The token positions to steer; all of this step's by default.
        """
        rows = slice(None) if positions is None else positions
        for index in sorted(self._indices(layers)):
            stream = self.layers[index].layer_output
            stream[:, rows] += factor * vector.to(stream.device, stream.dtype)

    def skip_layers(self, start: int, end: int) -> None:
        """Pass the residual stream by blocks ``start`` to ``end``, both included, in a trace.

        The blocks still run, for this prompt as for others in the batch, but their work is
        discarded: the stream that entered the first leaves the last.

        Args:
            start: The index of the first block to skip.
            end: The index of the last block to skip.

        Raises:
            ValueError: ``start`` comes after ``end``.
        """
        first, last = self._index(start), self._index(end)
        if first > last:
            raise ValueError(f"block {start} comes after block {end}: nothing lies between them")
        entering = self.layers[first].layer_input
        self.layers[last].layer_output = entering

    def project_on_vocab(self, stream: Tensor) -> Tensor:
        """Return the logits that the model would compute from a residual stream, in a trace.

        It applies the final norm, the output projection, and any soft cap or scale, as the model
        does: on the last block's ``layer_output`` it equals ``logits``.

        Args:
            stream: ``[..., hidden]``: ``[batch, seq, hidden]``, some positions' rows, or one.

        Returns:
            ``[..., vocab]``.
        """
        raise NotImplementedError

    def _normed(self, stream: Tensor) -> Tensor:
        """Return ``stream``, ``[..., hidden]``, past the modules that precede the projection."""
        for name in getattr(self.family, "BEFORE_HEAD", ("norm",)):
            module = find_module(self, name)
            if module is not None:
                # vLLM's linear layers return a tuple of their output and their bias.
                given = module(stream)
                stream = given[0] if isinstance(given, tuple) else given
        return stream

    def get_topk_closest_tokens(self, stream: Tensor, k: int = 5) -> tuple[list[Any], Tensor]:
        """Return the ``k`` tokens that a residual stream is closest to, by `project_on_vocab`.

        Args:
            stream: ``[..., hidden]``: ``[batch, seq, hidden]``, some positions' rows, or one.
            k: The number of tokens.

        Returns:
            The tokens' texts, most probable first, in lists nested as the leading axes of
            ``stream``
            are, ``[batch][seq][k]``, and their probabilities, ``[..., k]``.
        """
        probabilities, ids = (
            self.project_on_vocab(stream).softmax(-1, dtype=torch.float32).topk(k, dim=-1)
        )

        def texts(of: Any) -> Any:
            return list(map(texts, of)) if isinstance(of, list) else self.tokenizer.decode(of)

        return texts(ids.tolist()), probabilities

    def _index(self, layer: int) -> int:
        """Return the index of block ``layer``, counted from the first."""
        count = self.num_layers
        if not -count <= layer < count:
            raise IndexError(f"there is no block {layer}: this model has {count}")
        return layer % count

    def _indices(self, layers: int | Iterable[int]) -> set[int]:
        """Return the indices of the blocks ``layers``, counted from the first."""
        return {self._index(i) for i in ([layers] if isinstance(layers, int) else layers)}
