"""DeepSeek-V4: streams mixed at each half, one tensor for keys and values, and summaries.

In most blocks a query sees, beside the latest tokens, entries that each stand for several
earlier ones. ``attention_output`` and ``mlp_output`` are what is added to each stream, in
shares; a head's output is served before its rotated features are turned back.
"""

from nnterp.engines.transformers.envoys import Attention, Mlp
from nnterp.engines.transformers.envoys.multi_stream import MultiStreamLayer
from nnterp.engines.transformers.envoys.sinks import scores_below
from nnterp.families.llama import RENAME
from nnterp.vocabulary import values

__all__ = ["ENVOYS", "RENAME", "RIGHT_PADDED"]


class SummarizingAttention(Attention):
    """An attention whose keys are followed by entries that stand for several tokens each."""

    attention_scores = Attention.attention_scores.at(scores_below("combined_logits_max"))

    def unavailable(self, name: str) -> str | None:
        own = (values.ATTENTION_KEYS.name, values.ATTENTION_VALUES.name)
        if name in own and self._module.compressor is not None:
            return "tokens' own entries are not told apart from those that sum up several"
        return super().unavailable(name)


ENVOYS = {
    "layers.*": MultiStreamLayer,
    "layers.*.self_attn": SummarizingAttention,
    "layers.*.mlp": Mlp,
}

RIGHT_PADDED = "DeepSeek-V4 sums tokens up by their place in the row, padding among them"
