"""Holds the client's side of the vLLM engine: the model class and its calls into the engine."""
