"""Envoys of transformers' decoder blocks: the block, its attention and its MLP."""

from .attention import Attention, RecurrentMixer, SecondMixer
from .layer import Layer
from .mlp import Mlp

__all__ = ["Attention", "Layer", "Mlp", "RecurrentMixer", "SecondMixer"]
