"""Holds the envoys of transformers' decoder blocks: the block, its attention and its MLP."""

from nnterp.engines.transformers.envoys.attention import Attention, RecurrentMixer, SecondMixer
from nnterp.engines.transformers.envoys.layer import Layer
from nnterp.engines.transformers.envoys.mlp import Mlp

__all__ = ["Attention", "Layer", "Mlp", "RecurrentMixer", "SecondMixer"]
