"""Command R7B on vLLM: Command R, its windows one token longer than transformers'."""

from .cohere import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
