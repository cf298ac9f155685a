"""Runs the same code on both engines and prints the results side by side (``nnterp demo``)."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import nnsight
import torch
from torch import Tensor

from nnterp.errors import CheckpointNotFound, UnservableCheckpoint, UnsupportedFamily
from nnterp.tools.checking.compare import relative_error
from nnterp.vocabulary.values import VALUES

#: How far the engines may be apart in float32, relative to a value's largest magnitude.
TOLERANCE = {"cpu": 1e-5, "cuda": 2e-5}

_QUIET = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_NO_USAGE_STATS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
    "TOKENIZERS_PARALLELISM": "false",
    "TRANSFORMERS_VERBOSITY": "error",
    "PYTHONWARNINGS": "ignore",
    "GLOG_minloglevel": "2",
}


@dataclass
class Observed:
    """`Observed` is what the demo reads from one engine.

    Attributes:
        values: Every value of the block, by name.
        clean: The next token's logits, ``[vocab]``.
        patched: The next token's logits after the edit, ``[vocab]``.
    """

    values: dict[str, Tensor]
    clean: Tensor
    patched: Tensor


def run(model_id: str | None, prompt: str, donor: str, layer: int | None, dtype: str) -> int:
    """Show the demo; return 0 if the engines agree, 1 if they do not, and 2 on unusable input.

    Args:
        model_id: A hub id or a checkpoint's folder; the packaged model if None.
        prompt: The prompt to read values on.
        donor: The prompt whose residual stream is patched into ``prompt``.
        layer: The block whose values are compared; the middle one if None.
        dtype: The name of the dtype on both engines.
    """
    for name, value in _QUIET.items():
        os.environ.setdefault(name, value)
    warnings.simplefilter("ignore")
    try:
        from rich.console import Console
    except ImportError:
        print("the demo draws with rich, which is not installed: pip install 'nnterp[demo]'")
        return 2
    console = Console()
    try:
        return _Demo(console, model_id, prompt, donor, layer, dtype).run()
    except (CheckpointNotFound, UnservableCheckpoint, UnsupportedFamily, ImportError) as error:
        console.print(f"[red]{type(error).__name__}[/]: {error}", highlight=False)
        return 2


class _Demo:
    """Loads a model on both engines, observes it on each, and prints the comparison."""

    def __init__(
        self,
        console: Any,
        model_id: str | None,
        prompt: str,
        donor: str,
        layer: int | None,
        dtype: str,
    ) -> None:
        self.console = console
        self.model_id = model_id
        self.prompt = prompt
        self.donor = donor
        self.layer = layer
        self.dtype = dtype
        self.device = "cuda" if torch.cuda.is_available() else "cpu"

    def run(self) -> int:
        from nnterp.engines.transformers.model import StandardizedTransformer
        from nnterp.engines.vllm.client import preflight
        from nnterp.engines.vllm.client.model import StandardizedVLLM

        preflight.require_vllm()
        path = self.model_id or self._packaged()
        self.console.print(f"[bold]{path}[/] in {self.dtype} on {self.device}", highlight=False)

        with self.console.status("loading on transformers"):
            _hush_progress_bars()
            reference = StandardizedTransformer(
                path,
                dispatch=True,
                device=self.device,
                dtype=getattr(torch, self.dtype),
                attn_implementation="eager",
            )
        if self.layer is None:
            self.layer = reference.num_layers // 2
        self.tokens = [
            reference.tokenizer.decode(token)
            for token in reference.tokenizer(self.prompt).input_ids
        ]
        self.decode = reference.tokenizer.decode
        self.console.print(f"  transformers: {reference.family.__name__}", highlight=False)
        self.patched = reference.num_layers * 4 // 5
        there = observe(reference, self.prompt, self.donor, self.layer, self.patched)
        del reference
        gc.collect()

        starting = self.console.status("starting the vLLM engine (about half a minute)")
        with starting, _stderr_aside():
            engine = StandardizedVLLM(path, dispatch=True, dtype=self.dtype, **self._engine_size())
        self.console.print(f"  vLLM:         {engine.family.__name__}", highlight=False)
        here = observe(engine, self.prompt, self.donor, self.layer, self.patched)

        agreed = self._show_values(here, there)
        self._show_edit(here, there)
        self._show_pattern(here.values["attention_probabilities"])
        return 0 if agreed else 1

    def _packaged(self) -> str:
        from nnterp.engines.gguf import smollm2

        with self.console.status("reading the packaged SmolLM2-135M (once, some seconds)"):
            _hush_progress_bars()
            return str(smollm2())

    def _engine_size(self) -> dict[str, Any]:
        size: dict[str, Any] = {"max_model_len": 256, "use_tqdm_on_load": False}
        if self.device == "cpu":
            return {**size, "kv_cache_memory_bytes": 256 * 2**20}
        return {**size, "gpu_memory_utilization": 0.4}

    def _show_values(self, here: Observed, there: Observed) -> bool:
        from rich.table import Table

        limit = TOLERANCE[self.device] if self.dtype == "float32" else None
        table = Table(title=f"block {self.layer} on {self.prompt!r}", title_justify="left")
        table.add_column("value", no_wrap=True)
        table.add_column("layout on vLLM", overflow="fold")
        table.add_column("gap", justify="right", no_wrap=True)
        agreed = True
        for name, value in here.values.items():
            difference = relative_error(value, there.values[name])
            within = limit is None or difference < limit
            agreed = agreed and within
            style = "bold red" if not within else "green" if limit else "default"
            sizes = zip(VALUES[name].layout_on("vllm").split(), value.shape, strict=True)
            layout = " ".join(a if a == str(n) else f"{a} {n}" for a, n in sizes)
            table.add_row(name, f"[dim]{layout}[/]", f"[{style}]{difference:.1e}[/]")
        self.console.print(table)
        bound = "" if limit is None else f"; {'all' if agreed else 'NOT all'} under {limit:.0e}"
        self.console.print(
            f"gap: the engines' largest difference over the value's largest magnitude{bound}",
            highlight=False,
        )
        return agreed

    def _show_edit(self, here: Observed, there: Observed) -> None:
        from rich.table import Table

        self.console.print(
            f"\nnext token: [bold]{self._best(there.clean)!r}[/] on transformers, "
            f"[bold]{self._best(here.clean)!r}[/] on vLLM",
            highlight=False,
        )
        table = Table(
            title=f"with layers[{self.patched}].layer_output[:, -1] taken from {self.donor!r}",
            title_justify="left",
        )
        for column in ("transformers", "", "vLLM", ""):
            table.add_column(column, justify="right" if not column else "left")
        for (token, p), (other, q) in zip(
            self._top(there.patched), self._top(here.patched), strict=True
        ):
            table.add_row(repr(token), f"{p:.4f}", repr(other), f"{q:.4f}")
        self.console.print(table)
        moved = [
            (o.patched - o.clean).abs().max().item() / o.clean.abs().max().item()
            for o in (there, here)
        ]
        self.console.print(
            f"largest change of a logit, relative to the largest: {moved[0]:.4f} on transformers, "
            f"{moved[1]:.4f} on vLLM",
            highlight=False,
        )

    def _show_pattern(self, probabilities: Tensor) -> None:
        head = int(_off_first_token(probabilities[0]).argmax())
        self.console.print(
            f"\nattention pattern of block {self.layer}, head {head} (rows look at columns)",
            highlight=False,
        )
        for line in heatmap(probabilities[0, head], [t.strip() or "·" for t in self.tokens]):
            self.console.print(line, highlight=False)

    def _best(self, logits: Tensor) -> str:
        return self.decode(int(logits.argmax()))

    def _top(self, logits: Tensor, k: int = 5) -> list[tuple[str, float]]:
        best = logits.float().softmax(-1).topk(k)
        pairs = zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return [(self.decode(token), probability) for token, probability in pairs]


def observe(model: Any, prompt: str, donor: str, layer: int, patched_layer: int) -> Observed:
    """Read every value of block ``layer``, and patch another block's output from ``donor``.

    Nothing in this function depends on the engine, except the settings of a single greedy step.

    Args:
        model: A loaded model, of either engine.
        prompt: The prompt to read values on, and to patch.
        donor: The prompt that the patched residual stream comes from.
        layer: The block whose values are read.
        patched_layer: The block whose output is patched at the last position.
    """
    one_step = (
        {"temperature": 0.0, "max_tokens": 1} if model.engine_adapter.engine == "vllm" else {}
    )
    support = model.support()
    names = [name for name in VALUES if support[name]]

    with torch.no_grad(), model.trace(prompt, **one_step):
        seen = nnsight.save({})
        for name in names:
            seen[name] = getattr(model.host_of(VALUES[name], layer), name)

    with torch.no_grad(), model.trace(donor, **one_step):
        stream = model.layers[patched_layer].layer_output[:, -1].save()

    with torch.no_grad(), model.trace(prompt, **one_step):
        model.layers[patched_layer].layer_output[:, -1] = stream
        patched = model.logits[:, -1].save()

    found = {name: tensor.detach().cpu() for name, tensor in seen.items()}
    found["logits"] = found["logits"][:, -1:]
    return Observed(found, found["logits"][0, -1], patched[0].cpu())


def heatmap(pattern: Tensor, tokens: list[str]) -> list[str]:
    """Return lines of shaded cells, in rich's markup, for an attention pattern.

    Args:
        pattern: ``[query, key]``.
        tokens: The text of each position.
    """
    width = max(len(token) for token in tokens)
    lines = []
    for query, row in enumerate(pattern.float()):
        cells = []
        for weight in row[: query + 1].tolist():
            shade = 30 + round(225 * min(weight, 1.0) ** 0.5)
            cells.append(f"[on rgb(20,{shade // 2},{shade})]{weight:5.2f} [/]")
        lines.append(f"{_escape(tokens[query]):>{width}} {''.join(cells)}")
    heads = "".join(f"{token[:5]:>5} " for token in map(_escape, tokens))
    return [*lines, f"{'':{width}} {heads}"]


def _escape(text: str) -> str:
    return text.replace("[", "(").replace("]", ")")


def _off_first_token(pattern: Tensor) -> Tensor:
    """Return how much each head attends to positions other than itself and the first.

    Args:
        pattern: ``[heads, query, key]``.

    Returns:
        ``[heads]``.
    """
    looks = pattern.float().tril(-1)[:, :, 1:]
    return looks.sum((-2, -1))


@contextmanager
def _stderr_aside() -> Iterator[None]:
    """Keep what this process and its children write to stderr, and show it only on failure.

    It replaces the file descriptor, so that it covers libraries and the engine's processes, for as
    long as they live.
    """
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as kept:
        os.dup2(kept.fileno(), 2)
        try:
            yield
        except BaseException:
            kept.seek(0)
            os.write(shown, kept.read())
            raise
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)


def _hush_progress_bars() -> None:
    from transformers.utils import logging

    logging.disable_progress_bar()
