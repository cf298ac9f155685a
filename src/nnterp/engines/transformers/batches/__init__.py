"""Runs the invokes of a trace as one batch, and serves each invoke its own part of it."""
