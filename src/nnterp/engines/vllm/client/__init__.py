"""The client's side of the vLLM engine: the model class, and its end of the engine."""
