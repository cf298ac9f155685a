"""The vLLM engine: the model class, its worker, and the envoys of vLLM's blocks."""
