"""Looks inside models and changes them: the experiments that researchers run, on either engine.

Each is made of reads and edits as data, so all its prompts, blocks and positions share forwards.
"""

from nnterp.interventions.attribution import Attribution, logit_attribution
from nnterp.interventions.lens import Lens, Top, logit_lens
from nnterp.interventions.patching import Sweep, activation_patching
from nnterp.interventions.patchscope import Patchscope, TargetPrompt, patchscope_lens, repeat_prompt

__all__ = [
    "Attribution",
    "Lens",
    "Patchscope",
    "Sweep",
    "TargetPrompt",
    "Top",
    "activation_patching",
    "logit_attribution",
    "logit_lens",
    "patchscope_lens",
    "repeat_prompt",
]
