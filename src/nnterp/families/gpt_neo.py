"""GPT-Neo: GPT-2 with windows in every other block and scores that are not scaled."""

from nnterp.families import gpt2
from nnterp.families.gptj import ENVOYS

__all__ = ["ENVOYS", "RENAME"]

RENAME = {key: alias for key, alias in gpt2.RENAME.items() if key != "attn"} | {
    "attn.attention": "self_attn",
}
