"""Persimmon: a norm on each head's queries and keys, part of a head rotated, squared ReLU."""

from nnterp.families.phi import ENVOYS, RENAME

__all__ = ["ENVOYS", "RENAME"]
