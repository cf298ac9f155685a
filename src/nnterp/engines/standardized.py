"""Defines what the two model classes share.

Each model class is nnsight's own for its engine, with one step more before the load: read the
checkpoint's config, take the family for its ``model_type``, and hand the family's aliases and
envoy classes to nnsight. The sizes, the values of the model as a whole and the methods for
research are the same on both, and are defined here.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType, ModuleType
from typing import Any, Literal

import torch
from nnsight.intervention import aliasing
from torch import Tensor, nn
from tqdm.auto import tqdm

from nnterp import families
from nnterp.collecting.collected import Collected
from nnterp.collecting.request import wanted_places
from nnterp.collecting.selections import selection
from nnterp.editing.request import resolved
from nnterp.engines.multimodal import with_multimodal
from nnterp.engines.prompts import token_ids
from nnterp.engines.runs import Job, Outcome, Run
from nnterp.engines.survey import part, survey
from nnterp.errors import UnsupportedFamily, did_you_mean
from nnterp.records.edits import Edit
from nnterp.records.positions import Length, Positions
from nnterp.records.reads import Read
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

#: What a caller may give for prompts.
Prompts = Iterable[str | Sequence[int] | Sequence[Mapping[str, Any]] | Tensor] | Mapping[str, Any]

#: What a caller may give for edits: those of every prompt, or for each prompt its own.
Edits = Sequence[Edit] | Sequence[Sequence[Edit]]

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
        vectors: Vectors by name, for edits to name.
    """

    vectors: dict[str, Tensor]

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
        self.vectors = {}
        self._row_shapes: dict[Place, tuple[int, ...]] = {}
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
        prompts: Prompts,
        values: Mapping[str, Positions],
        *,
        edits: Edits = (),
        max_tokens: int = 1,
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
                keep: ``"last"``, ``"all"``, ``"prompt"``, ``"generated"``, ``"mean"`` (over the
                prompt, in float32), a position such as ``0`` or ``-2``; for each prompt a
                position, several, or a mask of ``[tokens]``; or a function that takes the value,
                in the layout of a trace with batch 1, and returns a tensor of one shape for all
                prompts.
            edits: What is changed meanwhile, as `run` takes it.
            max_tokens: The number of tokens to generate, greedily. Values are kept of the prompt
                and of each of them but the last.
            batch_size: The most prompts at a time. The default is as many as make a good forward on
                transformers, and as vLLM keeps waiting.
            progress: Whether to show a progress bar; by default for more than a few prompts.
            lora_request: On vLLM, the adapter that the prompts run with, as ``trace`` takes it:
                one for all, or a list with one or None for each.

        Returns:
            By name, a tensor ``[prompts, ...]``, or, where prompts may keep different numbers of
            positions (``"all"``, masks, ``"last"`` of several steps), a `Ragged`.

        Raises:
            Unavailable: A value is not served here.
            ValueError: A name is no value's, positions are not valid, or it is called in a block.
            RuntimeError: A function failed on vLLM; the message names the error.
        """
        if not values:
            raise ValueError("no value is asked for; write {'layers.0.layer_output': 'last'}")
        return self._run(
            "collect",
            prompts,
            [Read(name, positions) for name, positions in values.items()],
            edits,
            max_tokens,
            False,
            batch_size,
            progress,
            lora_request,
            {},
        ).values

    def run(
        self,
        prompts: Prompts,
        *,
        reads: Sequence[Read] = (),
        edits: Edits = (),
        max_tokens: int = 1,
        batch_size: int | None = None,
        progress: bool | None = None,
        lora_request: Any = None,
        **settings: Any,
    ) -> Run:
        """Generate from prompts, with reads and edits of the model's inside given as data.

        They are made for all prompts of a forward at once, so this is much faster than a trace for
        each. Every prompt may have edits of its own::

            steered = model.run(
                texts, edits=[Add("layers.6.layer_output", vector, factor=4.0)], max_tokens=20
            )
            steered.texts

            swept = model.run(
                [corrupted] * len(model.layers),
                reads=[Read("logits")],
                edits=[
                    [Replace(f"layers.{i}.layer_output", clean[i], positions=4)]
                    for i in range(len(model.layers))
                ],
            )
            swept["logits"]  # [prompts, vocab]

        Args:
            prompts: Texts, token ids, chats, or the output of a tokenizer.
            reads: What to keep.
            edits: What to change, in order: edits of every prompt, or for each prompt a list of its
                own. A read of an edited value has the edits.
            max_tokens: The most tokens to generate for each prompt, greedily unless ``settings``
                say otherwise.
            batch_size: The most prompts at a time. The default is as many as make a good forward on
                transformers, and as vLLM keeps waiting.
            progress: Whether to show a progress bar; by default for more than a few prompts.
            lora_request: On vLLM, the adapter that the prompts run with, as ``trace`` takes it:
                one for all, or a list with one or None for each.
            **settings: Further settings of the generation, as vLLM's ``SamplingParams`` or
                transformers' ``generate`` call them.

        Returns:
            The texts and tokens that were generated, and what was read, in the order of the
            prompts.

        Raises:
            Unavailable: A value is not served here.
            ValueError: A name is no value's or vector's, a value is read-only, a vector has the
                wrong width, positions are not valid, or it is called in a block.
            IndexError: A block, a head or a position of a prompt does not exist.
            TypeError: An edit does not suit its value, or a setting is none.
            RuntimeError: A function failed on vLLM; the message names the error.
        """
        return self._run(
            "run",
            prompts,
            reads,
            edits,
            max_tokens,
            True,
            batch_size,
            progress,
            lora_request,
            settings,
        )

    def _run(
        self,
        caller: str,
        prompts: Prompts,
        reads: Sequence[Read],
        edits: Edits,
        max_tokens: int,
        generates: bool,
        batch_size: int | None,
        progress: bool | None,
        lora_request: Any,
        settings: Mapping[str, Any],
    ) -> Run:
        """Check what `run` or `collect` is given, and do it."""
        require_outside_blocks(caller)
        job = self._job(
            prompts,
            reads,
            edits,
            max_tokens,
            generates=generates,
            batch_size=batch_size,
            lora_request=lora_request,
            settings=settings,
        )
        ids = job.ids
        shown = len(ids) >= BAR_FROM if progress is None else progress
        disabled = not shown or os.environ.get("TQDM_DISABLE", "0") not in ("", "0")
        said = "Running" if generates else "Collecting"
        with tqdm(total=len(ids), desc=said, unit="prompt", disable=disabled) as bar:
            rows, tokens, texts = self._do(replace(job, advance=bar.update))
        run = [len(own) + max(len(new) - 1, 0) for own, new in zip(ids, tokens, strict=True)]
        return Run(list(texts), list(tokens), Collected.of(job.wanted, rows, run))

    def _job(
        self,
        prompts: Prompts,
        reads: Sequence[Read],
        edits: Edits,
        max_tokens: int,
        *,
        generates: bool = True,
        batch_size: int | None = None,
        lora_request: Any = None,
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> Job:
        """Return what `run` is given as a job, once it is checked; it raises what `run` does."""
        if max_tokens < 1:
            raise ValueError(f"max_tokens is the number to generate, 1 at least, not {max_tokens}")
        ids = token_ids(self.tokenizer, prompts)
        lengths = [Length(len(own), len(own) + max_tokens - 1) for own in ids]
        wanted = wanted_places(self, reads, lengths)
        changes = resolved(self, edits, lengths)
        return Job(
            ids, max_tokens, generates, wanted, changes, batch_size, int, lora_request, settings
        )

    def row_shapes(self, at: Sequence[Place]) -> Mapping[Place, tuple[int, ...]]:
        """Return the shape of one position's row of the value at each place.

        They are found by running one token, once for each place: ``(hidden,)`` for a stream,
        ``(heads, head_dim)`` for queries, ``(heads, 1)`` for a pattern.
        """
        unknown = [place for place in dict.fromkeys(at) if place not in self._row_shapes]
        if unknown:
            every = [Length(1, 1)]
            last = selection("last", every)
            job = Job([[0]], 1, False, dict.fromkeys(unknown, last), {}, None, int, None, {})
            rows = self._do(job).rows
            self._row_shapes |= {place: tuple(rows[place].shape[1:]) for place in unknown}
        return self._row_shapes

    def require_declared(self, place: Place, use: Literal["edits", "reads"]) -> None:
        """Refuse ``place`` where a compiled forward has no such edits or reads in it.

        Raises:
            Unavailable: It has none.
        """

    def _do(self, job: Job) -> Outcome:
        """Run the prompts of ``job``, with its edits, and keep what it wants."""
        raise NotImplementedError

    def steer(
        self,
        layers: int | Iterable[int],
        vector: Tensor,
        factor: float = 1.0,
        positions: int | Sequence[int] | slice | None = None,
        batch_index: int | Sequence[int] | slice | None = None,
    ) -> None:
        """Add ``factor * vector`` to the residual stream leaving some blocks, in a trace.

        Args:
            layers: A block's index, or several; negative counts from the last.
            vector: ``[hidden]``, or anything that broadcasts to the rows it is added to,
                ``[prompts, positions, hidden]`` without the axis of one that is an int.
            factor: The strength.
            positions: The token positions to steer; all of this step's by default.
            batch_index: The prompts to steer, of those of the invoke; all by default. On vLLM an
                invoke has one.

        Raises:
            IndexError: A block, a position or a prompt does not exist.
        """
        prompts, at = (
            slice(None) if chosen is None else chosen for chosen in (batch_index, positions)
        )
        for index in sorted(self._indices(layers)):
            stream = self.layers[index].layer_output
            rows: Any = (prompts, at)
            if not any(isinstance(chosen, int | slice) for chosen in rows):
                # Two lists would be taken for pairs, where every prompt has every position.
                chosen_prompts = torch.arange(stream.shape[0])[prompts]
                rows = chosen_prompts[:, None], torch.arange(stream.shape[1])[at]
            stream[rows] += factor * vector.to(stream.device, stream.dtype)

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

    def unembed(self, normed: Tensor) -> Tensor:
        """Return the logits of a stream that is past the final norm, before any soft cap.

        In a trace. They are linear in ``normed``, but for a bias where the projection has one.

        Args:
            normed: ``[..., hidden]``.

        Returns:
            ``[..., vocab]``, scaled as the model scales its logits.
        """
        raise NotImplementedError

    def apply_final_norm(self, stream: Tensor) -> Tensor:
        """Return a residual stream past the modules that precede the output projection.

        In a trace. They are the final norm in most families, and none in those that end without.

        Args:
            stream: ``[..., hidden]``.

        Returns:
            ``[..., hidden]``.
        """
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
