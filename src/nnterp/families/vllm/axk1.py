"""A.X K1 on vLLM: the norm at the end of a mixture stands beside it, in the block."""

from dataclasses import dataclass

from nnsight.intervention.envoy import Envoy

from nnterp.engines.vllm.envoys.mlp import Mlp
from nnterp.families.vllm import deepseek_v3
from nnterp.families.vllm.deepseek_v3 import RENAME
from nnterp.sites.base import module_at
from nnterp.sites.primitive import Output

__all__ = ["ENVOYS", "RENAME"]


@dataclass(frozen=True)
class AfterMixture(Output):
    """What leaves the norm after a mixture; after a dense MLP there is none."""

    def location(self, host: Envoy) -> str:
        sparse = module_at(host, "..")._module.is_layer_sparse
        return Output("..post_mlp_layernorm" if sparse else ".").location(host)


ENVOYS = deepseek_v3.ENVOYS | {"layers.*.mlp": Mlp.placed(mlp_output=AfterMixture())}
