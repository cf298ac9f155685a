"""The worker's side of the vLLM engine: blocks run here, beside vLLM's forward.

Nothing here is imported by the client's process, unless the engine runs in it."""
