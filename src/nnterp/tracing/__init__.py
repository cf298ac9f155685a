"""Reads and edits values in a trace, on either engine.

nnsight runs a trace's block in a greenlet beside the forward. A `StandardValue` waits for the
forward to reach its site, an `OpenValues` keeps what the block holds there, and an
`EngineAdapter` says how one engine hands tensors over.
"""
