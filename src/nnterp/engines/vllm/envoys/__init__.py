"""Defines the envoys of vLLM's decoder blocks, the same in the client's tree and the worker's."""
