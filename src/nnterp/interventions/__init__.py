"""Looks inside models and changes them: the experiments that researchers run, on either engine.

Each is made of reads and edits as data, so all its prompts, blocks and positions share forwards.
"""

from nnterp.interventions.attribution import Attribution, logit_attribution
from nnterp.interventions.attribution_patching import attribution_patching
from nnterp.interventions.lens import Lens, Top, logit_lens
from nnterp.interventions.patching import Sweep, activation_patching
from nnterp.interventions.patchscope import Patchscope, TargetPrompt, patchscope_lens, repeat_prompt
from nnterp.interventions.vectors import (
    Directions,
    PrincipalDirections,
    difference_of_means,
    principal_directions,
)

__all__ = [
    "Attribution",
    "Directions",
    "Lens",
    "Patchscope",
    "PrincipalDirections",
    "Sweep",
    "TargetPrompt",
    "Top",
    "activation_patching",
    "attribution_patching",
    "difference_of_means",
    "logit_attribution",
    "logit_lens",
    "patchscope_lens",
    "principal_directions",
    "repeat_prompt",
]
