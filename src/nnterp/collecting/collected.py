"""Defines the result of `collect`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from nnterp.collecting.selections import Kept, Selection
from nnterp.errors import Unavailable
from nnterp.vocabulary.names import Place


@dataclass(frozen=True)
class Ragged:
    """`Ragged` holds rows of several prompts, one after another, in different numbers per prompt.

    ``ragged[i]`` is the rows of prompt ``i``, ``[positions, ...]``.

    Attributes:
        rows: ``[all positions, ...]``.
        offsets: ``[prompts + 1]``: prompt ``i``'s rows are ``offsets[i]`` up to
            ``offsets[i + 1]``.
    """

    rows: Tensor
    offsets: Tensor

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, prompt: int) -> Tensor:
        """Return the rows of ``prompt``, ``[positions, ...]``, which may count from the end."""
        if not -len(self) <= prompt < len(self):
            raise IndexError(f"there is no prompt {prompt}: {len(self)} were collected")
        prompt %= len(self)
        return self.rows[int(self.offsets[prompt]) : int(self.offsets[prompt + 1])]

    def __iter__(self) -> Iterator[Tensor]:
        return (self[prompt] for prompt in range(len(self)))

    def __repr__(self) -> str:
        return f"Ragged({len(self)} prompts, {tuple(self.rows.shape)} {self.rows.dtype})"


class Collected(Mapping[str, Tensor | Ragged]):
    """Maps names of values, such as ``layers.3.layer_output``, to what was collected of them.

    The rows are in the order of the prompts, and all tensors are on the CPU. Where each prompt
    keeps one row, the value is a tensor, ``[prompts, ...]``; otherwise it is a `Ragged`. A row has
    the value's axes without batch and token: ``[hidden]``, ``[heads, head_dim]``.

    ``torch.save(found, path)`` writes it to a file, and ``torch.load(path)`` reads it back once
    nnterp is imported.
    """

    def __init__(self, values: Mapping[str, Tensor | Ragged]) -> None:
        self._values = dict(values)

    @classmethod
    def of(
        cls,
        wanted: Mapping[Place, Selection],
        results: Mapping[Place, Tensor],
        run: Sequence[int],
    ) -> Collected:
        """Return the collected values of all places in ``wanted``.

        Args:
            wanted: The selection at each place.
            results: The rows kept at each place that a forward reached, ``[rows, ...]``, with
                room for those of every step.
            run: How many of the tokens of each prompt's sequence were run.

        Raises:
            Unavailable: No forward reached one of the places.
        """
        found: dict[str, Tensor | Ragged] = {}
        for place, kept in wanted.items():
            room = kept.counts()
            counts = kept.counts_of(run) if isinstance(kept, Kept) else room
            rows = results.get(place)
            if rows is None:
                if any(counts):
                    raise Unavailable(
                        f"{place}: no forward reached it. On an engine with taps, a value has to "
                        "be among them"
                    )
                rows = torch.empty(0)
            elif counts != room:
                rows = _begun(rows, room, counts)
            found[str(place)] = Ragged(rows, _offsets(counts)) if kept.ragged else rows
        return cls(found)

    def __getitem__(self, name: str) -> Tensor | Ragged:
        if name not in self._values:
            raise KeyError(f"{name!r} was not collected; there are {', '.join(self._values)}")
        return self._values[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def tensors(self) -> dict[str, Tensor]:
        """Return everything as tensors by name, as ``safetensors.torch.save_file`` takes them.

        A `Ragged` becomes two of them: ``layers.3.layer_output.rows`` and
        ``layers.3.layer_output.offsets``.
        """
        flat: dict[str, Tensor] = {}
        for name, value in self.items():
            if isinstance(value, Ragged):
                flat |= {f"{name}.rows": value.rows, f"{name}.offsets": value.offsets}
            else:
                flat[name] = value
        return flat

    def __repr__(self) -> str:
        def shown(value: Tensor | Ragged) -> str:
            if isinstance(value, Ragged):
                return repr(value)
            return f"{tuple(value.shape)} {value.dtype}"

        return "\n".join(f"{name}: {shown(value)}" for name, value in self.items())


def _begun(rows: Tensor, room: Sequence[int], made: Sequence[int]) -> Tensor:
    """Return the first ``made`` rows of each prompt, of the ``room`` for it in ``rows``."""
    parts = [own[:count] for own, count in zip(rows.split(list(room)), made, strict=True)]
    return torch.cat(parts)


def _offsets(counts: Sequence[int]) -> Tensor:
    """Return the running sums of ``counts`` from zero, ``[prompts + 1]``."""
    return torch.tensor([0, *counts]).cumsum(0)


# `torch.load` may construct these classes from a file, beside tensors and Python's own types.
torch.serialization.add_safe_globals([Collected, Ragged])
