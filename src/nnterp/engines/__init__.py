"""Holds the two engines, and what their model classes share."""
