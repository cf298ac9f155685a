"""The transformers engine: the model class, its batches and invokes, its envoys."""
