"""Zamba 2 on vLLM: one tensor between blocks; what is shared is one module."""

from nnsight.intervention.envoy import Envoy

from ...sites import Output, found
from ...vllm.attention import RecurrentMixer
from ...vllm.layer import SingleLayer
from ...vllm.shared_attention import InBlock, OwnKernel
from .. import zamba2

__all__ = ["ENVOYS", "RENAME"]

_SHARED = "shared_transformer.self_attn"

RENAME = {key: alias for key, alias in zamba2.RENAME.items() if alias != "self_attn"}


class Block(SingleLayer):
    """A block whose attention, where it has one, is its own kernel in the shared module."""

    @property
    def self_attn(self) -> Envoy:
        """This block's attention kernel."""
        shared = found(self, _SHARED)
        if shared is None:
            raise AttributeError(f"{self.path} has no attention")
        return shared.get(f"dpa_list.{self._module.block_idx}")


FROM_MIXER = InBlock(Output(of="mamba_decoder.mamba"))

ENVOYS = {
    "layers.*": Block,
    "layers.*.linear_attn": RecurrentMixer,
    "dpa_list.*": OwnKernel.placed(attention_output=FROM_MIXER),
}
