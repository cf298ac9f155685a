"""Serves the standard vocabulary on vLLM: the model class, its worker and their envoys."""
