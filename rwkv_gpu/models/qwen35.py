"""Qwen3.5, Qwen3.6 and Qwen3-Next: most layers are gated delta nets, every fourth is gated attention.

Positions of text turn a part of each head (neox); the file's sections are for images.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import (
    Activation,
    Attention,
    Cache,
    DeltaRule,
    HeadNorms,
    HeadRows,
    Ops,
    Rms,
    RowRange,
    State,
    Tensor,
    Weight,
)
from .experts import ExpertSizes, read_experts, take_mixture
from .hybrid import (
    Block,
    Experts,
    Hybrid,
    Sizes,
    head_size,
    read_recurrent_layers,
    read_sizes,
    take_feed,
    take_model,
    take_norm,
)
from .rope import read_rope
from .tensors import Tensors

INTERVAL = 4  # every such layer attends where the file does not say otherwise
LARGEST_STATE = 256  # numbers of a head: what the kernels take


@dataclass(frozen=True)
class DeltaNet:
    """add + W_o · delta_rule(silu(conv(W_qkv h)), W_beta h, W_alpha h, W_z h), h = norm(x)"""

    norm: Weight  # [D]
    qkv: Weight  # [2 · KH · N + H · N, D]
    gate: Weight  # [H · N, D]
    rates: tuple[Weight, ...]  # beta and decay, [H, D] each, or both in one, [2 · H, D]
    conv: Weight  # of the channels of qkv, [C · taps]
    rule: DeltaRule
    output: Weight  # [D, H · N]
    past: State  # [taps - 1, C]
    state: State  # [H, N, N]
    caches = ()

    @property
    def states(self) -> Sequence[State]:
        return self.state, self.past

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        weights = [self.qkv, self.gate, *self.rates]
        qkv, gate, *rates = g.linears([x] * len(weights), weights, norm=Rms(self.norm, eps))
        mixed = g.conv1d(qkv, self.conv, self.past, then="silu")
        y = g.gated_delta_rule([mixed], rates[0], rates[-1], gate, self.rule, self.state)
        return g.linear(y, self.output, add=add)


@dataclass(frozen=True)
class GatedAttention:
    """add + W_o · (attention(W_q h, W_k h, W_v h) · sigmoid(W_g h)), h = norm(x)"""

    norm: Weight  # [D]
    q: Weight  # [H · N, D]
    k: Weight  # [KV · N, D]
    v: Weight  # [KV · N, D]
    gate: Weight  # [H · N, D]
    biases: tuple[Weight | None, ...]  # of q, k, v and the gate
    output: Weight  # [D, H · N]
    cache: Cache
    how: Attention
    states = ()

    @property
    def caches(self) -> Sequence[Cache]:
        return (self.cache,)

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        weights = [self.q, self.k, self.v, self.gate]
        then: list[Activation] = ["none", "none", "none", "sigmoid"]
        q, k, v, gate = g.linears([x] * 4, weights, then=then, bias=self.biases, norm=Rms(self.norm, eps))
        return g.linear(g.mul(g.attention(q, k, v, self.cache, self.how), gate), self.output, add=add)


def load(file: GGUFFile, arch: str) -> Hybrid:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    sizes = read_sizes(file, arch, tensors)
    recurrent = read_recurrent_layers(file, tensors, sizes, INTERVAL)
    experts = None
    if file.int(f"{arch}.expert_count", low=0, default=0):
        experts = read_experts(file, arch, sizes.width, normalise=True)
    attend = _attention(file, tensors, sizes)
    mix = [
        take_delta_net(file, tensors, sizes, i) if is_recurrent else _take_attention(tensors, sizes, attend, i)
        for i, is_recurrent in enumerate(recurrent)
    ]
    feeds = [_take_feed(file, tensors, sizes, experts, i) for i in range(sizes.layers)]
    return take_model(tensors, sizes, list(zip(mix, feeds, strict=True)))


def _attention(file: GGUFFile, tensors: Tensors, sizes: Sizes) -> tuple[Attention, int, int]:
    """How every layer attends, its heads of keys, and the size of a head."""
    arch = sizes.arch
    heads = file.int(f"{arch}.attention.head_count", low=1, high=1 << 12)
    kv_heads = file.int(f"{arch}.attention.head_count_kv", low=1, high=heads, default=heads)
    if heads % kv_heads:
        what = f"metadata key '{arch}.attention.head_count_kv'"
        raise tensors.bad(what, str(kv_heads), f"a divisor of the {heads} heads")
    size = head_size(file, arch, sizes.width, heads)
    rope = read_rope(file, arch, tensors, "neox", size, sizes.context)
    return Attention(heads, rope, scale=size**-0.5), kv_heads, size


def _take_attention(tensors: Tensors, sizes: Sizes, attend: tuple[Attention, int, int], i: int) -> GatedAttention:
    """Rows of q and of the gate stand in turns, a head each."""
    how, kv_heads, size = attend
    at, width = f"blk.{i}.attn", sizes.width
    of_q, of_gate = (HeadRows(how.heads, 2 * size, first, size) for first in (0, size))
    rows = 2 * how.heads * size, kv_heads * size, kv_heads * size
    whole, k, v = _take_qkv(tensors, at, rows, width)
    norms = HeadNorms(sizes.eps, tensors.take(f"{at}_q_norm.weight", size), tensors.take(f"{at}_k_norm.weight", size))
    return GatedAttention(
        norm=take_norm(tensors, sizes, i),
        q=tensors.rows_of_heads(f"{at}_q", whole, of_q, width),
        k=k,
        v=v,
        gate=tensors.rows_of_heads(f"{at}_q_gate", whole, of_gate, width),
        biases=_take_biases(tensors, at, rows, of_q, of_gate),
        output=tensors.take(f"{at}_output.weight", width, how.heads * size),
        cache=Cache(f"blk.{i}.kv", kv_heads, size),
        how=replace(how, norms=norms),
    )


def _take_qkv(tensors: Tensors, at: str, rows: Sequence[int], width: int) -> tuple[str | RowRange, Weight, Weight]:
    """What has the rows of q and its gate, and k and v; all may be rows of one matrix."""
    whole, names = f"{at}_qkv.weight", [f"{at}_{name}.weight" for name in "qkv"]
    if whole not in tensors:
        k, v = (tensors.take(name, count, width) for name, count in zip(names[1:], rows[1:], strict=True))
        return names[0], k, v
    q, *others = tensors.split(whole, width, *zip(names, rows, strict=True))
    tensors.keep(*others)
    return q, others[0], others[1]


def _take_biases(
    tensors: Tensors, at: str, rows: Sequence[int], of_q: HeadRows, of_gate: HeadRows
) -> tuple[Weight | None, ...]:
    """Those of q, k, v and the gate that the file has."""
    whole, names = f"{at}_qkv.bias", [f"{at}_{name}.bias" for name in "qkv"]
    q: str | RowRange | None = names[0] if names[0] in tensors else None
    others: list[Weight | None]
    if whole in tensors:
        q, k, v = tensors.split(whole, 0, *zip(names, rows, strict=True))
        tensors.keep(k, v)
        others = [k, v]
    else:
        sizes = zip(names[1:], rows[1:], strict=True)
        others = [tensors.take(name, count) if name in tensors else None for name, count in sizes]
    if q is None:
        return None, *others, None
    parts = ("q.rows", of_q), ("q_gate", of_gate)
    q_bias, gate_bias = (tensors.numbers_of_heads(f"{at}_{name}.bias", q, each) for name, each in parts)
    return q_bias, *others, gate_bias


def _take_feed(file: GGUFFile, tensors: Tensors, sizes: Sizes, experts: ExpertSizes | None, i: int) -> Block:
    """The norm before it has the name of one after attention."""
    norm = f"blk.{i}.post_attention_norm.weight"
    if experts is None:
        inner = file.int(f"{sizes.arch}.feed_forward_length", low=1, high=1 << 20)
        return take_feed(tensors, sizes, i, inner, norm)
    return Experts(tensors.take(norm, sizes.width), take_mixture(tensors, experts, i, shared=True))


def take_delta_net(file: GGUFFile, tensors: Tensors, sizes: Sizes, i: int) -> DeltaNet:
    """The delta net of a layer. Qwen3-Next has both rates in one tensor; in it neighbouring value heads share keys."""
    arch, at, width = sizes.arch, f"blk.{i}", sizes.width
    size = file.int(f"{arch}.ssm.state_size", low=1, high=1 << 12)
    if size % 16 or size > LARGEST_STATE:
        known = f"multiples of 16 up to {LARGEST_STATE}"
        raise UnsupportedModel(f"{file.path}: heads of size {size} are not supported; known: {known}")
    key_heads = file.int(f"{arch}.ssm.group_count", low=1, high=1 << 12)
    heads = file.int(f"{arch}.ssm.time_step_rank", low=key_heads, high=1 << 12)
    if heads % key_heads:
        what = f"metadata key '{arch}.ssm.group_count'"
        raise tensors.bad(what, str(key_heads), f"a divisor of the {heads} value heads")
    file.int(f"{arch}.ssm.inner_size", low=heads * size, high=heads * size)
    taps = file.int(f"{arch}.ssm.conv_kernel", low=2, high=16)
    inner, channels = heads * size, (2 * key_heads + heads) * size
    qkv, gate = _take_projections(tensors, at, (key_heads, heads, size), width)
    in_one = f"{at}.ssm_ba.weight" in tensors
    rates = ("ssm_ba",) if in_one else ("ssm_beta", "ssm_alpha")
    return DeltaNet(
        norm=take_norm(tensors, sizes, i),
        qkv=qkv,
        gate=gate,
        rates=tuple(tensors.take(f"{at}.{name}.weight", heads * (2 if in_one else 1), width) for name in rates),
        conv=tensors.take_flat(f"{at}.ssm_conv1d.weight", channels, taps),
        rule=DeltaRule(
            key_heads,
            grouped=arch == "qwen3next",
            bias=tensors.take(f"{at}.ssm_dt.bias", heads),
            rate=tensors.take(f"{at}.ssm_a", heads),
            norm=tensors.take(f"{at}.ssm_norm.weight", size),
            eps=sizes.eps,
            then="silu",
        ),
        output=tensors.take(f"{at}.ssm_out.weight", width, inner),
        past=State(f"{at}.conv", (taps - 1, channels)),
        state=State(f"{at}.delta", (heads, size, size)),
    )


def _take_projections(tensors: Tensors, at: str, sizes: tuple[int, int, int], width: int) -> tuple[Weight, Weight]:
    """q, k and v, and the gate. Early files of Qwen3-Next have all in one tensor, key head by key head."""
    key_heads, heads, size = sizes
    whole, names = f"{at}.ssm_in.weight", (f"{at}.attn_qkv.weight", f"{at}.attn_gate.weight")
    if whole not in tensors:
        channels = (2 * key_heads + heads) * size
        return tensors.take(names[0], channels, width), tensors.take(names[1], heads * size, width)
    shared = heads // key_heads * size  # rows of values of a key head
    firsts = (0, size), (size, size), (2 * size, shared), (2 * size + shared, shared)
    q, k, v, gate = (HeadRows(key_heads, 2 * (size + shared), first, count) for first, count in firsts)
    return tensors.rows_of_heads(names[0], whole, q, width, k, v), tensors.rows_of_heads(names[1], whole, gate, width)
