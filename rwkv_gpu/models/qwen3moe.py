"""Qwen3-MoE: as Qwen3, but each feed-forward is a mixture of experts: a router chooses a few of them for each row."""

from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Gating, Ops, Rms, Tensor, Weight
from .tensors import Tensors
from .transformer import OnTrunk, read_hyper, take_trunk

ARCH, MOST_USED = "qwen3moe", 64  # of the experts, as a kernel keeps their logits in registers


@dataclass(frozen=True)
class Mixture:
    """Parameters of the experts of one layer."""

    norm: Weight  # [D]
    router: Weight  # [E, D]
    gate: Weight  # [E, inner, D]
    up: Weight  # [E, inner, D]
    down: Weight  # [E, D, inner]
    used: int  # experts that a row takes


def mixture(g: Ops[Tensor], p: Mixture, x: Tensor, eps: float) -> Tensor:
    """x + sum of share_e · W_down,e · (silu(W_gate,e h) · W_up,e h) over the experts e that h = norm(x) is sent to"""
    norm = Rms(p.norm, eps)
    routing = g.route(x, p.router, Gating(p.used, normalise=True), norm=norm)
    inner = g.expert_glu(x, p.gate, p.up, routing, "silu", norm=norm)  # [T, used, inner]
    return g.expert_sum(inner, p.down, routing, add=x)


@dataclass(frozen=True)
class Qwen3MoE(OnTrunk):
    """A model: a trunk with a mixture of experts in each layer."""

    mixtures: tuple[Mixture, ...]

    def feed(self, g: Ops[Tensor], i: int, x: Tensor) -> Tensor:
        return mixture(g, self.mixtures[i], x, self.trunk.hyper.eps)


def load(file: GGUFFile) -> Qwen3MoE:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    hyper = read_hyper(file, ARCH, tensors)
    trunk = take_trunk(file, ARCH, tensors, hyper, "neox", biases=False, norms=True)
    experts = file.int(f"{ARCH}.expert_count", low=1, high=1 << 12)
    used = file.int(f"{ARCH}.expert_used_count", low=1, high=min(experts, MOST_USED))
    inner = file.int(f"{ARCH}.expert_feed_forward_length", low=1, high=1 << 20)
    mixtures = tuple(
        Mixture(
            norm=tensors.take(f"blk.{i}.ffn_norm.weight", hyper.width),
            router=tensors.take(f"blk.{i}.ffn_gate_inp.weight", experts, hyper.width),
            gate=tensors.take(f"blk.{i}.ffn_gate_exps.weight", experts, inner, hyper.width),
            up=tensors.take(f"blk.{i}.ffn_up_exps.weight", experts, inner, hyper.width),
            down=tensors.take(f"blk.{i}.ffn_down_exps.weight", experts, hyper.width, inner),
            used=used,
        )
        for i in range(hyper.layers)
    )
    tensors.refuse_the_rest()
    return Qwen3MoE(trunk, tuple(tensors.taken), mixtures)
