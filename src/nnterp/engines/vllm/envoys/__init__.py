"""Envoys of vLLM's decoder blocks: the same classes in the client's tree and the worker's."""
