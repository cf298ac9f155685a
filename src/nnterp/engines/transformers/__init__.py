"""Holds the transformers engine: the model class, its batches and invokes, and its envoys."""
