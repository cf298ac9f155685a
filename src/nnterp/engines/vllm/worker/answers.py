"""Builds what a request sends back to the client: saved values, changes and an error."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from nnsight.intervention.errors import capture_exception

from nnterp.engines.vllm.transport.changes import Change
from nnterp.engines.vllm.transport.keys import CHANGES_KEY
from nnterp.engines.vllm.transport.packing import rehearse
from nnterp.engines.vllm.transport.references import as_written
from nnterp.engines.vllm.worker.blocks import RequestBlock
from nnterp.tracing.saves import holds_saved

_PLAIN = (torch.Tensor, str, bytes, int, float, complex, bool, type(None), torch.Size)


def _entry() -> dict[str, Any]:
    """Return what a request sends back, with nothing in it yet."""
    return {"saves": {}, "error": None, "registered": {}, "sequences": {}}


def without_saves(entry: Mapping[str, Any], error: Exception) -> dict[str, Any]:
    """Return what a request sends back whose saved values cannot be sent, because of ``error``.

    Args:
        entry: What it would have sent back. The error in it, if any, takes precedence.
        error: The reason.
    """
    refusal = capture_exception(error)
    # The traceback is left out, because nothing that the user wrote raised it.
    refusal["traceback"] = ""
    return _entry() | {"error": entry["error"] or refusal}


def _saves(request: Any) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return what a request's block saved and changed, and the error for what cannot be sent."""
    block, saves = request.mediator, request.saves()
    if not isinstance(block, RequestBlock):
        return _able_to_travel(saves)
    around, saved = block.state.captured, block.state.saved.ids()
    try:
        saves |= {
            name: value
            for name, value in block.lcls.items()
            if name not in saves and holds_saved(value, saved)
        }
        saves = {name: around.referring(value) for name, value in saves.items()}
        changes = around.changes()
    except Exception as error:  # of the caller's own objects, which are compared and looked into
        return {}, capture_exception(error)
    able, refusal = _able_to_travel(saves)
    if changes:
        kept, refused = _able_to_travel({as_written(path): change for path, change in changes})
        able[CHANGES_KEY] = [own for own in changes if as_written(own[0]) in kept]
        refusal = refusal or refused
    return able, refusal


def _able_to_travel(values: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any] | None]:
    """Return those of ``values`` that can be sent to the caller, and the error for the rest."""
    refusal = None
    able = {}
    for name, value in values.items():
        try:
            if not _surely_travels(value):
                rehearse(value)
            able[name] = value
        except Exception as error:
            refusal = refusal or capture_exception(
                TypeError(
                    f"what was put into {name} cannot be sent back ({error}); put in tensors, "
                    "numbers, text, or lists and dicts of them"
                    if isinstance(value, Change)
                    else f"{name}, a {type(value).__name__}, was saved but cannot be sent back "
                    f"({error}); save tensors, numbers, text, or lists and dicts of them"
                )
            )
    return able, refusal


def _surely_travels(value: Any, levels: int = 4) -> bool:
    """Return whether ``value`` can certainly be sent, judged by types a few levels deep."""
    if isinstance(value, _PLAIN):
        return True
    if type(value) not in (list, tuple, dict) or not levels:
        return False
    parts = [*value, *value.values()] if isinstance(value, dict) else value
    return all(_surely_travels(part, levels - 1) for part in parts)
