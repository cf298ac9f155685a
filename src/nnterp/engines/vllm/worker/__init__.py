"""Runs blocks on the worker's side of the vLLM engine, beside vLLM's forward.

The client's process imports nothing from here, unless the engine runs in it.
"""
