"""Defines the keys under which the client and the worker leave things for each other.

vLLM passes an engine's ``additional_config``, a request's ``extra_args`` and nnsight's saved values
through to the other process as they are; these are the keys used in each.
"""

from __future__ import annotations

from typing import Any

#: In the engine's config: the packed parts that the worker builds its tree from.
TREE_KEY = "nnterp_tree"

#: In the engine's config: the address of the process that saved values are sent to.
ADDRESS_KEY = "nnterp_caller"

#: In the engine's config: what its compiled forward reads and edits.
GRAPH_KEY = "nnterp_in_graph"

#: In a request's ``extra_args``: its block, and the installed edits it names; nnsight's keys.
BLOCK_KEY = "nnsight_mediator"
EDITS_KEY = "nnsight_edits"

#: In a request's ``extra_args``: its run's id, its prompt's index and, unless the workers were told
#: of the run beforehand, the run's pickled plan.
RUN_KEY = "nnterp_run"

#: In an error that stands for no failure: warnings to issue in the caller's process.
WARNINGS_KEY = "nnterp_warnings"

#: Among saved values: the changes to objects around the block. It is no name that a block can bind.
CHANGES_KEY = "nnterp: changed around the block"


def persistent_id(path: str) -> str:
    """Return the persistent id of the worker's envoy at ``path``."""
    return f"Envoy:{path}"


def has_block(params: Any) -> bool:
    """Return whether a request's sampling ``params`` carry a block or name installed edits."""
    extra = getattr(params, "extra_args", None) or {}
    return BLOCK_KEY in extra or EDITS_KEY in extra
