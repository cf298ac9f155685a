"""The families as vLLM defines them, or as its Transformers backend serves them."""
