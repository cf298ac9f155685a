"""Runs prompts with reads and edits as data on transformers, in padded batches.

One block, of nnterp's own, runs beside each batch. Where the forward reaches a value that is asked
for, the block edits its rows in place, and keeps those that are read, of all prompts together.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from nnterp.collecting.batch import InMemory, gather_batch, require_unpadded
from nnterp.collecting.gather import Gather
from nnterp.collecting.request import in_order
from nnterp.collecting.selections import Kept, Span
from nnterp.editing.batch import edit_batch, edit_patterns
from nnterp.editing.stages import by_place
from nnterp.engines.runs import Job, Outcome
from nnterp.engines.transformers.batches.batching import rule, why_alone
from nnterp.sites.base import parameters
from nnterp.vocabulary import values
from nnterp.vocabulary.names import Place

#: The number of tokens, padding included, that a forward is given.
_FORWARD = 4096

#: A generation's settings unless the caller names others: the most probable token, whatever the
#: checkpoint's own settings are.
_GREEDY: Mapping[str, Any] = {
    "do_sample": False,
    "temperature": None,
    "top_p": None,
    "top_k": None,
    "repetition_penalty": None,
}


class BatchRuns:
    """Runs the prompts of one job.

    Args:
        model: A `StandardizedTransformer`.
        job: The job.
    """

    def __init__(self, model: Any, job: Job) -> None:
        self._model = model
        self._job = job
        self._gather = Gather(job.wanted, InMemory())
        self._edits = by_place(job.changes)
        self._tokens: list[list[int]] = [[] for _ in job.ids]
        self._steps = job.max_tokens > 1 or bool(job.settings)
        logits = Place(values.LOGITS, None)
        asked = [_reached(place) for place in (*job.wanted, *self._edits)]
        if job.generates and not self._steps:
            asked.append(logits)
        #: The places at which the block waits, in the order of the forward.
        self._places = in_order(dict.fromkeys(asked), model.num_layers)
        #: The spans of the step, the number of columns of its rows, and whether padding is before
        #: the tokens.
        self._spans: list[Span] = []
        self._width = 0
        self._at_end = False
        #: The columns of the step that logits are computed for, unless they are for all.
        self._with_logits: list[int] = []
        #: How many tokens of each prompt's sequence have been run, with those of the step.
        self._run: dict[int, int] = {}

    def outcome(self) -> Outcome:
        """Run every prompt, and return what came of it."""
        for batch in self._batches():
            if self._steps:
                self._generate(batch)
            else:
                self._forward(batch)
            self._job.advance(len(batch))
        texts = [""] * len(self._tokens)
        if self._job.generates:
            texts = self._model.tokenizer.batch_decode(self._tokens, skip_special_tokens=True)
        return Outcome(self._gather.results(), self._tokens, texts)

    def _batches(self) -> Iterator[list[int]]:
        """Yield the prompts of each batch.

        Prompts of similar length share a batch, so that there is little padding. The longest go
        first, so that the memory that is needed shows at once.
        """
        ids, more = self._job.ids, self._job.max_tokens - 1
        order = sorted(range(len(ids)), key=lambda prompt: -len(ids[prompt]))
        while order:
            width = len(ids[order[0]])
            tokens = width + more
            count = self._job.batch_size or max(1, _FORWARD // width)
            if why_alone(self._model, tokens, self._steps) is not None:
                count = 1
            unpadded = ("RIGHT_PADDED", "GENERATES_UNPADDED")
            if self._steps and any(rule(self._model, name, tokens) for name in unpadded):
                count = min(count, sum(len(ids[prompt]) == width for prompt in order))
            batch, order = order[:count], order[count:]
            yield batch

    def _inputs(self, batch: Sequence[int], at_end: bool) -> dict[str, Tensor]:
        """Return the tokens of ``batch``, padded to one length, and enter their spans."""
        ids = [self._job.ids[prompt] for prompt in batch]
        width = max(map(len, ids))
        tokens = torch.zeros(len(ids), width, dtype=torch.long)
        mask = torch.zeros_like(tokens)
        spans = []
        for row, (prompt, own) in enumerate(zip(batch, ids, strict=True)):
            first = width - len(own) if at_end else 0
            tokens[row, first : first + len(own)] = torch.tensor(own)
            mask[row, first : first + len(own)] = 1
            spans.append(Span(prompt, row * width + first, 0, len(own)))
        self._enter(spans, width, at_end)
        return {"input_ids": tokens, "attention_mask": mask}

    def _enter(self, spans: list[Span], width: int, at_end: bool) -> None:
        """Begin a forward, whose rows of ``width`` columns hold ``spans``."""
        self._spans, self._width, self._at_end = spans, width, at_end
        self._with_logits = sorted({(span.start + span.length - 1) % width for span in spans})
        self._run = {span.prompt: span.first + span.length for span in spans}
        self._gather.enter(spans)

    def _enter_step(self, batch: Sequence[int], step: int, width: int) -> None:
        """Begin a step of a generation, if it is not the prompts' own.

        Args:
            batch: The prompts.
            step: The step.
            width: The number of columns of its rows: the last token's, or where the model keeps no
                cache all there are.
        """
        if not step:
            return
        spans = []
        for row, prompt in enumerate(batch):
            tokens = len(self._job.ids[prompt]) + step
            length = min(width, tokens)
            spans.append(Span(prompt, (row + 1) * width - length, tokens - length, length))
        self._enter(spans, width, self._at_end)

    def _forward(self, batch: Sequence[int]) -> None:
        """Run one forward over ``batch``, with padding on the right, where no token sees it."""
        inputs = self._inputs(batch, at_end=False)
        settings: dict[str, Any] = {"use_cache": False}
        if self._keeps_logits and not self._wants_every_logit():
            settings["logits_to_keep"] = torch.tensor(self._with_logits)
        with torch.no_grad(), self._model.trace(inputs, **settings) as tracer:
            for place in self._places:
                self._serve(place, getattr(self._host(place), place.value.name))
            tracer.stop()

    def _generate(self, batch: Sequence[int]) -> None:
        """Generate from ``batch``, with padding on the left."""
        inputs = self._inputs(batch, at_end=True)
        width = self._width
        settings = {**_GREEDY, **self._job.settings, "max_new_tokens": self._job.max_tokens}
        if self._keeps_logits and self._wants_every_logit():
            settings["logits_to_keep"] = 0
        with torch.no_grad(), self._model.generate(inputs, **settings) as tracer:
            if self._places:
                for step in tracer.iter[:]:
                    self._enter_step(batch, step, self._model.input_ids.shape[1])
                    for place in self._places:
                        self._serve(place, getattr(self._host(place), place.value.name))
            result = tracer.result.save()
        ends = self._ends(settings)
        for row, prompt in enumerate(batch):
            new = result[row, width:].tolist()
            over = next((index + 1 for index, token in enumerate(new) if token in ends), len(new))
            self._tokens[prompt] = new[:over]

    @property
    def _keeps_logits(self) -> bool:
        """Return whether the model can be told which logits to compute."""
        return "logits_to_keep" in parameters(type(self._model._module).forward)

    def _wants_every_logit(self) -> bool:
        """Return whether logits of other tokens than the last of each prompt are asked for."""
        kept = self._job.wanted.get(Place(values.LOGITS, None))
        return kept is not None and not (isinstance(kept, Kept) and kept.is_last)

    def _ends(self, settings: Mapping[str, Any]) -> frozenset[int]:
        """Return the ids of the tokens that end a generation."""
        own = self._model._module.generation_config.eos_token_id
        ends = settings.get("eos_token_id", own)
        return frozenset([ends] if isinstance(ends, int) else ends or ())

    def _own_steps(self) -> list[Span]:
        """Return the step's spans, with each position as in the step that runs it first.

        Without a cache, a step runs all positions over again, with keys that they do not see.
        """
        spans = []
        for span in self._spans:
            prompt = len(self._job.ids[span.prompt])
            if span.first or span.length <= prompt:
                spans.append(span)
                continue
            spans.append(span._replace(length=prompt))
            spans += [
                Span(span.prompt, span.start + position, position, 1)
                for position in range(prompt, span.length)
            ]
        return spans

    def _of_last(self) -> list[Span]:
        """Return the spans of each prompt's last token among the columns that have logits."""
        spans = []
        for row, (prompt, start, first, length) in enumerate(self._spans):
            last = length - 1
            column = self._with_logits.index((start + last) % self._width)
            spans.append(Span(prompt, row * len(self._with_logits) + column, first + last, 1))
        return spans

    def _columns(self, place: Place, pattern: Tensor) -> dict[int, int] | None:
        """Return the column of each prompt's first key in ``pattern``, which is at ``place``.

        It is negative where a window has dropped that column, and None where there are columns of
        other keys as well.
        """
        keys, run = pattern.shape[-1], self._run
        if keys > max(run.values()):
            require_unpadded(place, padded=len(set(run.values())) > 1)
            return None
        return {prompt: keys - own if self._at_end else 0 for prompt, own in run.items()}

    def _host(self, place: Place) -> Any:
        """Return the envoy that serves the value at ``place``."""
        return self._model.host_of(place.value, place.layer or 0)

    def _serve(self, place: Place, tensor: Tensor) -> None:
        """Edit and keep rows of ``tensor``, which is the value at ``place``."""
        spans, width = self._spans, self._width
        if place.value is values.LOGITS and tensor.shape[1] != width:
            spans, width = self._of_last(), tensor.shape[1]
            self._gather.enter(spans, a_row_each=True)
        edits = self._edits.get(place)
        if edits is not None and "key" in place.value.axes:
            edit_patterns(edits, tensor, self._own_steps(), self._columns(place, tensor))
        elif edits is not None:
            edit_batch(edits, place.value, tensor, spans)
        for wanted in self._job.wanted:
            if _reached(wanted) == place:
                gather_batch(self._gather, wanted, tensor)
        if place.value is values.LOGITS and self._job.generates and not self._steps:
            for prompt, row, _, length in spans:
                last = row + length - 1
                logits = tensor[last // width, last % width]
                self._tokens[prompt] = [int(logits.argmax())]


def _reached(place: Place) -> Place:
    """Return where the forward reaches the value at ``place``: probabilities with the logits."""
    return Place(values.LOGITS, None) if place.value is values.NEXT_TOKEN_PROBS else place
