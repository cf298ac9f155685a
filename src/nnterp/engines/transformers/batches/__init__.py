"""The invokes of a trace as one batch, and each invoke's own part of it."""
