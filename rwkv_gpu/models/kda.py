"""KDA: a gated delta net with a decay for each channel of the key, and separate convolutions of q, k and v."""

from collections.abc import Sequence
from dataclasses import dataclass

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
    gate: tuple[Weight, ...]  # the same
    rule: DeltaRule
    output: Weight  # [D, H · N]
    state: State  # [H, N, N]
    caches = ()

    @property
    def states(self) -> Sequence[State]:
        return self.state, *self.pasts

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        weights = [*self.qkv, self.decay[0], self.gate[0], self.beta]
        *qkv, decay, gate, beta = g.linears([x] * len(weights), weights, norm=Rms(self.norm, eps))
        mixed = [
            g.conv1d(one, conv, past, then="silu") for one, conv, past in zip(qkv, self.convs, self.pasts, strict=True)
        ]
        if len(self.decay) > 1:
            decay, gate = g.linears([decay, gate], [self.decay[1], self.gate[1]])
        y = g.gated_delta_rule(mixed, beta, decay, gate, self.rule, self.state)
        return g.linear(y, self.output, add=add)


def take_kda(source: HybridFile, heads: int, i: int, *, bound: float = 0.0) -> KDA:
    """Takes the delta net of a layer; `bound` is the lower bound of its log decays."""
    at, tensors, sizes, size = f"blk.{i}", source.tensors, source.sizes, source.integer("kda.head_dim")
    tensors.check_heads(size, HEAD_STEP, LARGEST_HEAD)
    taps, inner, width = source.integer("ssm.conv_kernel", 2, 16), heads * size, sizes.width
    low = f"{at}.ssm_f_b.weight" in tensors

    def product(name: str) -> tuple[Weight, ...]:
        if not low:
            return (tensors.take(f"{at}.{name}_a.weight", inner, width),)
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
            rate=tensors.take(f"{at}.ssm_a", heads),
            norm=tensors.take(f"{at}.ssm_norm.weight", size),
            eps=sizes.eps,
            then="sigmoid",
            bound=bound,
        ),
        output=tensors.take(f"{at}.attn_output.weight", width, inner),
        state=State(f"{at}.delta", (heads, size, size)),
    )
