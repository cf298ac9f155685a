"""Command with experts on vLLM: Command R7B, its windows one token longer as well."""

from .cohere2 import AFTER_NORM, ENVOYS, RENAME

__all__ = ["AFTER_NORM", "ENVOYS", "RENAME"]
