"""The MLP of a vLLM block."""

from __future__ import annotations

from .. import values
from ..eproperty import StandardValue
from ..sites import Output
from .layer import Rows


class Mlp(Rows):
    """An MLP whose output is what it adds to the residual stream."""

    mlp_output = StandardValue(values.MLP_OUTPUT, Output())
