"""Reads a checkpoint's config, before anything is loaded."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from nnterp.errors import CheckpointNotFound

#: The load arguments that `read_config` passes on to transformers; all others are about weights.
_CONFIG_ARGUMENTS = ("revision", "trust_remote_code", "token", "cache_dir")


def read_config(repo_id: str | os.PathLike[str], arguments: Mapping[str, Any]) -> Any:
    """Return the config of the checkpoint at ``repo_id``.

    Args:
        repo_id: A checkpoint's folder or a hub id.
        arguments: The arguments of the load. If they hold a ``config``, that is returned.

    Raises:
        CheckpointNotFound: There is nothing readable at ``repo_id``.
    """
    from transformers import CONFIG_MAPPING, AutoConfig, PretrainedConfig

    if arguments.get("config") is not None:
        return arguments["config"]
    repo_id = os.fspath(repo_id)
    folder = Path(repo_id)
    looks_local = repo_id.startswith(("/", ".", "~")) or repo_id.count("/") > 1
    if (looks_local or folder.is_dir()) and not (folder / "config.json").is_file():
        found = "no config.json in" if folder.is_dir() else "no folder"
        raise CheckpointNotFound(
            f"there is {found} {repo_id!r} on this machine; pass the folder of a checkpoint, one "
            "that holds a config.json, or a hub id"
        )
    passed_on = {k: arguments[k] for k in _CONFIG_ARGUMENTS if arguments.get(k) is not None}
    try:
        values, _ = PretrainedConfig.get_config_dict(repo_id, **passed_on)
    except OSError as error:
        raise CheckpointNotFound(
            f"{repo_id!r} is neither a folder on this machine that holds a config.json nor a hub "
            f"id that could be read: {str(error).splitlines()[0]}"
        ) from error
    if values.get("model_type") in CONFIG_MAPPING or "auto_map" in values:
        return AutoConfig.from_pretrained(repo_id, **passed_on)
    # transformers has no config class for it; the family, if there is one, needs none.
    return PretrainedConfig.from_dict({"model_type": "", **values})
