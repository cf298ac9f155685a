"""Command R7B on vLLM: Command R, its windows one token longer than transformers'."""

from .cohere import AFTER_NORM, ENVOYS, RENAME

__all__ = ["AFTER_NORM", "ENVOYS", "RENAME"]
