"""Estimates what every patch of a sweep would do from one backward pass: attribution patching.

A patch changes a value by the difference between two runs. To first order the metric follows by
that difference times its gradient, and one backward pass has the gradients of all values. So the
whole sweep costs as much as three forwards. It is exact where the metric is linear in the value,
and misleads where it is not, as behind a softmax that a patch would turn around: check what stands
out with `activation_patching`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import nnsight
import torch
from torch import Tensor

from nnterp.collecting.request import in_order, require_served
from nnterp.engines.prompts import token_ids
from nnterp.engines.standardized import Standardized
from nnterp.errors import Unavailable
from nnterp.interventions.patching import Sweep
from nnterp.interventions.swept import (
    Metric,
    measured_by,
    metric_of,
    require_apart,
    swept_columns,
    swept_places,
)
from nnterp.vocabulary.names import Place


def attribution_patching(
    model: Standardized,
    clean: Any,
    corrupted: Any,
    values: str | Sequence[str] = "layers.*.layer_output",
    positions: Any = "all",
    *,
    tokens: Sequence[int | str] | None = None,
    metric: Metric | None = None,
    heads: bool = False,
    layers: int | Iterable[int] | None = None,
    into: Literal["corrupted", "clean"] = "corrupted",
) -> Sweep:
    """Estimate what `activation_patching` would measure, by the gradient of the metric.

    One prompt gives its values in a forward, the other its values and gradients in a forward and a
    backward pass, however many cells there are::

        sweep = attribution_patching(
            model, "The Eiffel Tower is in", "The Colosseum is in", tokens=[" Paris", " Rome"]
        )
        sweep.effects  # [layers, positions]

    Args:
        model: A model on transformers.
        clean: The prompt with the answer that is looked for: a text, token ids or a chat.
        corrupted: The prompt without it.
        values: The value to patch, a writable one of the blocks, ``*`` standing for every block;
            or several of them.
        positions: The columns of the sweep, as `activation_patching` takes them.
        tokens: What is measured of the last position: the logit of the first less that of the
            second, or the logit of one; as ids or as texts of one token each.
        metric: In its place, a function of the logits of the last position, ``[runs, vocab]``, that
            returns ``[runs]``, and that autograd can go through.
        heads: Whether to patch one head at a time, at all of ``positions`` together.
        layers: The blocks to patch, of those that ``values`` name.
        into: The run that is patched, whose gradients are taken.

    Returns:
        The sweep, whose ``measured`` and ``effects`` are estimates: the patched run's metric and,
        for each cell, the gradient times the difference that the patch would make.

    Raises:
        Unavailable: The model is on vLLM, a value is not served here, or the metric is not computed
            from it.
        ValueError: A value is not a block's or cannot be written, positions do not match, or the
            metric is the same on both runs.
        IndexError: A block, a position or a token does not exist.
        TypeError: There is neither a metric nor tokens, or both, or a metric returns no number for
            each run or one without a gradient.
    """
    if model.engine_adapter.engine != "transformers":
        raise Unavailable(
            "attribution patching takes gradients, and vLLM computes none; load the checkpoint "
            "with StandardizedTransformer, or patch each place with activation_patching"
        )
    if into not in ("corrupted", "clean"):
        raise ValueError(f"into is 'corrupted' or 'clean', the run that is patched, not {into!r}")
    measure = metric_of(model, tokens, metric)
    names = [values] if isinstance(values, str) else list(values)
    swept = swept_places(model, names, layers, heads)
    at = [place for row in swept for place in row]
    for place in at:
        host = require_served(model, place)
        getattr(type(host), place.value.name).require_writable(host)
    ids = token_ids(model.tokenizer, [clean, corrupted])
    donor, patched = ids if into == "corrupted" else ids[::-1]
    taken, put = swept_columns(positions, len(donor), len(patched))

    reads: dict[str, Any] = {str(place): "all" for place in at}
    found = model.collect([donor], {**reads, "logits": "last"})
    given = measured_by(measure, found["logits"]).item()
    own, rows, gradients = _with_gradients(model, patched, at, measure)
    require_apart(given, own)
    changes = []
    for place in at:
        source = found[str(place)][0]
        # What each position's patch, one number or one for each head, does to the metric.
        columns = [
            ((source[one] - rows[place][other]) * gradients[place][other]).sum(0)
            for one, other in zip(taken, put, strict=True)
        ]
        whole = torch.stack(columns)
        changes.append(whole.sum(0).sum(-1) if heads else whole.flatten(1).sum(1))
    if len({len(change) for change in changes}) > 1:
        raise ValueError("these values have different numbers of heads; sweep them one by one")
    shape = [len(swept), len(swept[0]), len(changes[0])]
    estimated = own + torch.stack(changes)
    measured = estimated.view(shape if not isinstance(values, str) else shape[1:])
    on_clean, on_corrupted = (given, own) if into == "corrupted" else (own, given)
    effects = (measured - on_corrupted) / (on_clean - on_corrupted)
    indices = [place.layer for place in swept[0] if place.layer is not None]
    decode = model.tokenizer.decode
    if heads:
        each: list[Any] = list(range(shape[-1]))
        labels = [str(head) for head in each]
    else:
        each = put
        labels = ["".join(decode([patched[at]]) for at in column) for column in put]
    return Sweep(effects, measured, on_clean, on_corrupted, names, indices, each, labels, into)


def _with_gradients(
    model: Standardized, prompt: list[int], at: Sequence[Place], measure: Metric
) -> tuple[float, dict[Place, Tensor], dict[Place, Tensor]]:
    """Return the metric of a prompt, its rows at each place, and the metric's gradients there.

    Rows are ``[tokens, *row]``, in float32 on the CPU.
    """
    ordered = in_order(at, model.num_layers)
    with torch.enable_grad(), model.trace([prompt]):
        # Where the weights are frozen, nothing else begins a graph.
        model.token_embeddings.requires_grad_()
        held = [
            getattr(model.host_of(place.value, place.layer or 0), place.value.name)
            for place in ordered
        ]
        measured = measured_by(measure, model.logits[:, -1])
        if not measured.requires_grad:
            raise TypeError("this metric has no gradient: compute it of the logits with torch")
        found = torch.autograd.grad(measured.sum(), held, allow_unused=True)
        number = nnsight.save(measured.item())
        values = nnsight.save([value.detach() for value in held])
        gradients = nnsight.save(list(found))
    rows, slopes = {}, {}
    for place, value, gradient in zip(ordered, values, gradients, strict=True):
        if gradient is None:
            raise Unavailable(f"{place}: the metric is not computed from it, so it has no gradient")
        rows[place], slopes[place] = _by_token(place, value), _by_token(place, gradient)
    return number, rows, slopes


def _by_token(place: Place, value: Tensor) -> Tensor:
    """Return the rows of one prompt's value, ``[tokens, *row]``, in float32 on the CPU."""
    axis = place.value.token_axis
    assert axis is not None
    return value[0].movedim(axis - 1, 0).float().cpu()
