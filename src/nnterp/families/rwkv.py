"""RWKV: token shifts and a decaying sum in place of attention, a gated MLP with shifts of its own.

The stream begins at the norm in the first block, and is halved between blocks every
``rescale_every`` of them, the weights after being smaller by as much.
"""

from nnterp.engines.transformers.envoys import Layer, Mlp, RecurrentMixer
from nnterp.sites.choice import Either, has
from nnterp.sites.primitive import Argument, Output

RENAME = {
    "rwkv.embeddings": "embed_tokens",
    "rwkv.blocks": "layers",
    "rwkv.ln_out": "norm",
    "head": "lm_head",
    "attention": "linear_attn",
    "feed_forward": "mlp",
}

ENTERING = Either(has("pre_ln"), Output(of="pre_ln"), Argument("hidden"))

ENVOYS = {
    "layers.*": Layer.placed(layer_input=ENTERING),
    "layers.*.linear_attn": RecurrentMixer,
    "layers.*.mlp": Mlp,
}

RIGHT_PADDED = "RWKV takes padding before a token into its state"
GENERATES_ALONE = "RWKV's later steps take the rows of a batch for tokens of each row"
NO_CACHE = "RWKV writes its state in place, which a backward pass does not go through"
