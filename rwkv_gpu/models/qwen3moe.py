"""Qwen3-MoE: as Qwen3, but each feed-forward is a mixture of experts: a router chooses a few of them for each row."""

from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Ops, Rms, Tensor, Weight
from .dense import DenseFile, Form
from .experts import Mixture, mixture, read_experts, take_mixture
from .transformer import OnTrunk

ARCH = "qwen3moe"


@dataclass(frozen=True)
class Qwen3MoE(OnTrunk):
    """A model: a trunk with a mixture of experts in each layer."""

    mixtures: tuple[tuple[Weight, Mixture], ...]  # each behind a norm [D]

    def feed(self, g: Ops[Tensor], i: int, x: Tensor) -> Tensor:
        norm, experts = self.mixtures[i]
        return mixture(g, experts, x, Rms(norm, self.trunk.hyper.eps), add=x)


def load(file: GGUFFile) -> Qwen3MoE:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    source = DenseFile(file, ARCH)
    hyper, tensors = source.hyper, source.tensors
    trunk = source.trunk(Form(pairing="neox", head_norms="each"))
    sizes = read_experts(file, ARCH, hyper.width, normalise=True)
    mixtures = tuple(
        (tensors.take(f"blk.{i}.ffn_norm.weight", hyper.width), take_mixture(tensors, sizes, i))
        for i in range(hyper.layers)
    )
    tensors.refuse_the_rest()
    return Qwen3MoE(trunk, tuple(tensors.taken), mixtures)
