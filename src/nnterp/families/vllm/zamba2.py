"""Zamba 2 on vLLM: one tensor between blocks; what is shared is one module."""

from nnsight.intervention.envoy import Envoy

from nnterp.engines.vllm.envoys.attention import RecurrentMixer
from nnterp.engines.vllm.envoys.layer import SingleLayer
from nnterp.engines.vllm.envoys.reused_attention import InBlock, OwnKernel
from nnterp.families import zamba2
from nnterp.sites.base import find_module
from nnterp.sites.primitive import Output

__all__ = ["ENVOYS", "RENAME"]

_SHARED = "shared_transformer.self_attn"

RENAME = {key: alias for key, alias in zamba2.RENAME.items() if alias != "self_attn"}


class Block(SingleLayer):
    """A block whose attention, where it has one, is its own kernel in the shared module."""

    @property
    def self_attn(self) -> Envoy:
        """This block's attention kernel."""
        shared = find_module(self, _SHARED)
        if shared is None:
            raise AttributeError(f"{self.path} has no attention")
        return shared.get(f"dpa_list.{self._module.block_idx}")


FROM_MIXER = InBlock(Output(of="mamba_decoder.mamba"))

ENVOYS = {
    "layers.*": Block,
    "layers.*.linear_attn": RecurrentMixer,
    "dpa_list.*": OwnKernel.placed(attention_output=FROM_MIXER),
}
