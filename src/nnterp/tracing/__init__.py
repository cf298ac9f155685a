"""How a value is read and edited in a trace, on either engine.

A block of a trace is run by nnsight beside the forward. A `StandardValue` waits for the forward
to reach its site, an `OpenValues` keeps what the block holds there, and an `EngineAdapter` says
how one engine hands tensors over."""
