"""KDA: a gated delta net with a decay for each channel of the key, and separate convolutions of q, k and v."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from ..ops.vocabulary import DeltaRule, Ops, Rms, State, Tensor, Weight
from .dense import take_qkv
from .hybrid import HybridFile

HEAD_STEP, LARGEST_HEAD = 16, 256  # sizes that the kernels support
QKV = "q", "k", "v"


@dataclass(frozen=True)
class KDA:
    """add + W_o · delta_rule(q, k, v, W_beta h, W_f h, W_g h), h = norm(x), q = silu(conv(W_q h)), k and v alike"""

    norm: Weight  # [D]
    qkv: tuple[Weight, ...]  # [H · N, D] each
    convs: tuple[Weight, ...]  # [H · N · taps] each
    pasts: tuple[State, ...]  # [taps - 1, H · N] each
    beta: Weight  # [H, D]
    decay: tuple[Weight, ...]  # [H · N, D], or of low rank: [rank, D] and [H · N, rank]
    gate: tuple[Weight, ...]  # the same, of low rank only if the decay is
    rule: DeltaRule
    output: Weight  # [D, H · N]
    state: State  # [H, N, N]
    caches = ()

    @property
    def states(self) -> Sequence[State]:
        return self.state, *self.pasts

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor | None, eps: float) -> Tensor:
        weights = [*self.qkv, self.decay[0], self.gate[0], self.beta]
        *qkv, decay, gate, beta = g.linears([x] * len(weights), weights, norm=Rms(self.norm, eps))
        mixed = [
            g.conv1d(one, conv, past, then="silu") for one, conv, past in zip(qkv, self.convs, self.pasts, strict=True)
        ]
        if len(self.gate) > 1:
            decay, gate = g.linears([decay, gate], [self.decay[1], self.gate[1]])
        elif len(self.decay) > 1:
            decay = g.linear(decay, self.decay[1])
        y = g.gated_delta_rule(mixed, beta, decay, gate, self.rule, self.state)
        return g.linear(y, self.output, add=add)


def take_kda(source: HybridFile, heads: int, i: int, *, bound: float = 0.0, negated: bool = False) -> KDA:
    """Takes the delta net of a layer; `bound` is the lower bound of its log decays, whose rates may be `negated`."""
    at, tensors, sizes, size = f"blk.{i}", source.tensors, source.sizes, source.integer("kda.head_dim")
    tensors.check_heads(size, HEAD_STEP, LARGEST_HEAD)
    taps, inner, width = source.integer("ssm.conv_kernel", 2, 16), heads * size, sizes.width

    def product(name: str) -> tuple[Weight, ...]:
        if f"{at}.{name}_b.weight" not in tensors:
            whole = f"{at}.{name}.weight"
            return (tensors.take(whole if whole in tensors else f"{at}.{name}_a.weight", inner, width),)
        rank = tensors.dimension(f"{at}.{name}_a.weight", 0)
        return tensors.take(f"{at}.{name}_a.weight", rank, width), tensors.take(f"{at}.{name}_b.weight", inner, rank)

    return KDA(
        norm=source.norm(i),
        qkv=take_qkv(tensors, f"{at}.attn", (inner, inner, inner), width),
        convs=tuple(tensors.take_flat(f"{at}.ssm_conv1d_{name}.weight", inner, taps) for name in QKV),
        pasts=tuple(State(f"{at}.conv_{name}", (taps - 1, inner)) for name in QKV),
        beta=tensors.take(f"{at}.ssm_beta.weight", heads, width),
        decay=product("ssm_f"),
        gate=product("ssm_g"),
        rule=DeltaRule(
            heads,
            grouped=False,
            bias=tensors.take(f"{at}.ssm_dt.bias", inner),
            rate=tensors.compute(f"{at}.rate", (heads,), np.negative, (f"{at}.ssm_a", (heads,)))
            if negated
            else tensors.take(f"{at}.ssm_a", heads),
            norm=tensors.take(f"{at}.ssm_norm.weight", size),
            eps=sizes.eps,
            then="sigmoid",
            bound=bound,
        ),
        output=tensors.take(f"{at}.attn_output.weight", width, inner),
        state=State(f"{at}.delta", (heads, size, size)),
    )
