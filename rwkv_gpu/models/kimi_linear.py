"""Kimi Linear: three layers of KDA, a delta net with a decay for each channel, for each of latent attention.

Nothing rotates. Experts follow after some leading dense layers.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Cache, DeltaRule, Ops, Rms, State, Tensor, Weight
from .experts import read_experts, take_mixture
from .hybrid import Block, Experts, Hybrid, Sizes, by_layer, read_sizes, take_feed, take_model, take_norm
from .latent import LatentScores, LatentSelfAttention, LatentSizes, latent_self_attention, take_latent_attention
from .tensors import Tensors

ARCH = "kimi-linear"
HEAD_STEP, LARGEST_HEAD = 16, 256  # of KDA: what the kernels take
QKV = "q", "k", "v"


@dataclass(frozen=True)
class KDA:
    """add + W_o · delta_rule(silu(conv(W_q h)), the same of k and v, W_beta h, W_f h, W_g h), h = norm(x)"""

    norm: Weight  # [D]
    qkv: tuple[Weight, ...]  # [H · N, D] each
    convs: tuple[Weight, ...]  # [H · N · taps] each
    pasts: tuple[State, ...]  # [taps - 1, H · N] each
    beta: Weight  # [H, D]
    decay: tuple[Weight, Weight]  # [rank, D] and [H · N, rank]
    gate: tuple[Weight, Weight]  # the same
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
        decay, gate = g.linears([decay, gate], [self.decay[1], self.gate[1]])
        y = g.gated_delta_rule(mixed, beta, decay, gate, self.rule, self.state)
        return g.linear(y, self.output, add=add)


@dataclass(frozen=True)
class Latent:
    """x + latent attention of norm(x)"""

    p: LatentSelfAttention
    states = ()

    @property
    def caches(self) -> Sequence[Cache]:
        return (self.p.cache,)

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:  # noqa: ARG002 - its norm knows
        assert add is x, "it adds to what it looks at"
        return latent_self_attention(g, self.p, x)


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    sizes = read_sizes(file, ARCH, tensors)
    heads = file.int(f"{ARCH}.attention.head_count", low=1, high=1 << 12)
    kv_heads = by_layer(file, f"{ARCH}.attention.head_count_kv", sizes.layers, 0, heads)
    latent = _latent_sizes(file, tensors, sizes, heads)
    scale = (latent.nope + latent.rotary) ** -0.5
    inner = file.int(f"{ARCH}.feed_forward_length", low=1, high=1 << 20)
    dense = file.int(f"{ARCH}.leading_dense_block_count", low=0, high=sizes.layers, default=0)
    experts = read_experts(file, ARCH, sizes.width, scores="sigmoid", normalise=True)
    shared = file.int(f"{ARCH}.expert_shared_count", low=0, high=64, default=0) > 0

    def second(i: int) -> Block:
        norm = f"blk.{i}.ffn_norm.weight"
        if i < dense:
            return take_feed(tensors, sizes, i, inner, norm)
        return Experts(tensors.take(norm, sizes.width), take_mixture(tensors, experts, i, shared=shared))

    layers = []
    for i, attends in enumerate(kv_heads):
        first: Block
        if attends:
            first = Latent(take_latent_attention(file, tensors, latent, LatentScores(None, scale), i))
        else:
            first = _take_kda(file, tensors, sizes, heads, i)
        layers.append((first, second(i)))
    return take_model(tensors, sizes, layers)


def _latent_sizes(file: GGUFFile, tensors: Tensors, sizes: Sizes, heads: int) -> LatentSizes:
    at = f"{ARCH}.attention"
    rotary = file.int(f"{ARCH}.rope.dimension_count", low=2, high=1 << 12)
    key = file.int(f"{at}.key_length_mla", low=1, high=1 << 12)
    if key <= rotary:
        raise tensors.bad(f"metadata key '{at}.key_length_mla'", str(key), f"more than the {rotary} dims of the key")
    return LatentSizes(
        width=sizes.width,
        heads=heads,
        latent=file.int(f"{at}.kv_lora_rank", low=1, high=1 << 14),
        nope=key - rotary,
        rotary=rotary,
        value=file.int(f"{at}.value_length_mla", low=1, high=1 << 12),
        q_rank=0,
        eps=sizes.eps,
    )


def _take_kda(file: GGUFFile, tensors: Tensors, sizes: Sizes, heads: int, i: int) -> KDA:
    at, width = f"blk.{i}", sizes.width
    size = file.int(f"{ARCH}.kda.head_dim", low=1, high=1 << 12)
    if size % HEAD_STEP or size > LARGEST_HEAD:
        known = f"multiples of {HEAD_STEP} up to {LARGEST_HEAD}"
        raise UnsupportedModel(f"{file.path}: heads of size {size} are not supported; known: {known}")
    taps = file.int(f"{ARCH}.ssm.conv_kernel", low=2, high=16)
    inner = heads * size

    def low_rank(name: str) -> tuple[Weight, Weight]:
        rank = tensors.dimension(f"{at}.{name}_a.weight", 0)
        return tensors.take(f"{at}.{name}_a.weight", rank, width), tensors.take(f"{at}.{name}_b.weight", inner, rank)

    return KDA(
        norm=take_norm(tensors, sizes, i),
        qkv=tuple(tensors.take(f"{at}.attn_{name}.weight", inner, width) for name in QKV),
        convs=tuple(tensors.take_flat(f"{at}.ssm_conv1d_{name}.weight", inner, taps) for name in QKV),
        pasts=tuple(State(f"{at}.conv_{name}", (taps - 1, inner)) for name in QKV),
        beta=tensors.take(f"{at}.ssm_beta.weight", heads, width),
        decay=low_rank("ssm_f"),
        gate=low_rank("ssm_g"),
        rule=DeltaRule(
            heads,
            grouped=False,
            bias=tensors.take(f"{at}.ssm_dt.bias", inner),
            rate=tensors.take(f"{at}.ssm_a", heads),
            norm=tensors.take(f"{at}.ssm_norm.weight", size),
            eps=sizes.eps,
            then="sigmoid",
        ),
        output=tensors.take(f"{at}.attn_output.weight", width, inner),
        state=State(f"{at}.delta", (heads, size, size)),
    )
