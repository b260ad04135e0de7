"""PLaMo 2: Mamba whose decay, time step and skip are those of heads, and attention in some layers.

What a head has is repeated for each of its channels, so that the recurrence is Mamba's. Norms stand before and after
each branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Cache, HeadRows, Ops, Rms, State, StateSpace, Tensor, Weight
from .dense import take_gates, take_qkv
from .hybrid import (
    Block,
    GatedFeed,
    Hybrid,
    Sizes,
    by_layer,
    head_size,
    read_kv_heads,
    read_sizes,
    take_model,
    take_norm,
)
from .mamba import LARGEST_STATE, STEP
from .rope import read_rope
from .tensors import Tensors
from .transformer import FeedForward, Output, output

ARCH = "plamo2"


@dataclass(frozen=True)
class Inner:
    """The sizes of a mixer."""

    heads: int  # H
    size: int  # P, channels of a head
    state: int  # N
    taps: int  # of the convolution

    @property
    def width(self) -> int:
        """Channels, C."""
        return self.heads * self.size


@dataclass(frozen=True)
class Mixer:
    """add + norm(W_out · (scan(x, W_dt d, B, C) · silu(z))), x = silu(conv(W_x h)), z = W_z h, h = norm(x)

    d, B, C = norm(W_d x), norm(W_B x), norm(W_C x)
    """

    norm: Weight  # [D]
    x: Weight  # [C, D]
    z: Weight  # [C, D]
    conv: Weight  # [C · taps]
    bc: Weight  # [2 N, C]
    bc_norm: Weight  # [1, 2 N]: B's, then C's
    low: Weight  # [rank, C]
    low_norm: Weight  # [rank]
    dt: Weight  # [C, rank], the same rows for all channels of a head
    parameters: StateSpace  # A [C · N], the others [C]
    output: Output
    past: State  # [taps - 1, C]
    ssm: State  # [C, N]
    caches: Sequence[Cache] = ()

    @property
    def states(self) -> Sequence[State]:
        return self.past, self.ssm

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        u, z = g.linears([x, x], [self.x, self.z], norm=Rms(self.norm, eps))
        u = g.conv1d(u, self.conv, self.past, then="silu")
        low, bc = g.linears([u, u], [self.low, self.bc])
        dt = g.linear(low, self.dt, norm=Rms(self.low_norm, eps))
        y = g.selective_scan(u, dt, g.group_rms_norm(bc, self.bc_norm, 2, eps), z, self.parameters, self.ssm)
        return output(g, self.output, y, add)


@dataclass(frozen=True)
class Attends:
    """add + norm(W_o · attention(norm(W_q h), norm(W_k h), W_v h)), h = norm(x); each head has its own norms"""

    norm: Weight  # [D]
    qkv: tuple[Weight, ...]
    q_norm: Weight  # [H · N]
    k_norm: Weight  # [KV · N]
    output: Output
    cache: Cache
    how: Attention
    states = ()

    @property
    def caches(self) -> Sequence[Cache]:
        return (self.cache,)

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor, eps: float) -> Tensor:
        q, k, v = g.linears([x, x, x], self.qkv, norm=Rms(self.norm, eps))
        q = g.group_rms_norm(q, self.q_norm, self.how.heads, eps)
        k = g.group_rms_norm(k, self.k_norm, self.cache.heads, eps)
        return output(g, self.output, g.attention(q, k, v, self.cache, self.how), add)


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile where its tensors and metadata disagree."""
    tensors = Tensors(file)
    sizes, inner = read_sizes(file, ARCH, tensors), _read_inner(file, tensors)
    heads = by_layer(file, f"{ARCH}.attention.head_count", sizes.layers, 0, 1 << 12)
    kv_heads = read_kv_heads(file, sizes, heads, 1 << 12)
    feed = file.int(f"{ARCH}.feed_forward_length", low=1, high=1 << 20)
    size = head_size(file, ARCH, sizes.width, max(1, *heads))
    rope = read_rope(file, ARCH, tensors, "neox", size, sizes.context)

    def mixer(i: int) -> Block:
        if not kv_heads[i]:
            return _take_mixer(tensors, sizes, inner, i)
        return _take_attention(tensors, sizes, i, kv_heads[i], Attention(heads[i], rope, scale=size**-0.5), size)

    return take_model(tensors, sizes, [(mixer(i), _take_feed(tensors, sizes, i, feed)) for i in range(sizes.layers)])


def _read_inner(file: GGUFFile, tensors: Tensors) -> Inner:
    width = file.int(f"{ARCH}.ssm.inner_size", low=1, high=1 << 20)
    heads = file.int(f"{ARCH}.ssm.time_step_rank", low=1, high=1 << 16)
    state = file.int(f"{ARCH}.ssm.state_size", low=1, high=1 << 16)
    file.int(f"{ARCH}.ssm.group_count", low=0, high=0, default=0)
    if width % heads:
        raise tensors.bad(f"metadata key '{ARCH}.ssm.inner_size'", str(width), f"a multiple of the {heads} heads")
    if state % STEP or state > LARGEST_STATE:
        known = f"multiples of {STEP} up to {LARGEST_STATE}"
        raise UnsupportedModel(f"{file.path}: states of {state} are not supported; known: {known}")
    return Inner(heads, width // heads, state, file.int(f"{ARCH}.ssm.conv_kernel", low=2, high=16))


def _take_mixer(tensors: Tensors, sizes: Sizes, inner: Inner, i: int) -> Mixer:
    at, width, heads, size, state = f"blk.{i}.ssm", inner.width, inner.heads, inner.size, inner.state
    of_head = HeadRows(heads, 2 * size, 0, size)  # z, and then x
    bc, low = tensors.split(
        f"{at}_x.weight",
        width,
        (f"{at}_x.bc.weight", 2 * state),
        (f"{at}_x.dt.weight", rank := tensors.dimension(f"{at}_dt.weight", 1)),
    )
    tensors.keep(bc, low)
    channels = HeadRows(heads, 1, 0, 1, repeats=size)
    return Mixer(
        norm=take_norm(tensors, sizes, i),
        x=tensors.rows_of_heads(
            f"{at}_in.x.weight", f"{at}_in.weight", HeadRows(heads, 2 * size, size, size), sizes.width
        ),
        z=tensors.rows_of_heads(f"{at}_in.z.weight", f"{at}_in.weight", of_head, sizes.width),
        conv=tensors.take_flat(f"{at}_conv1d.weight", width, inner.taps),
        bc=bc,
        bc_norm=tensors.join(
            f"{at}_bc_norm", 2 * state, *((_named(tensors, f"{at}_{name}_norm"), (state,)) for name in ("b", "c"))
        ),
        low=low,
        low_norm=tensors.take(_named(tensors, f"{at}_dt_norm"), rank),
        dt=tensors.rows_of_heads(f"{at}_dt.channels.weight", f"{at}_dt.weight", channels, rank),
        parameters=StateSpace(
            dt_bias=tensors.numbers_of_heads(f"{at}_dt.channels.bias", f"{at}_dt.bias", channels),
            a=tensors.numbers_of_heads(f"{at}_a.channels", f"{at}_a", HeadRows(heads, 1, 0, 1, repeats=size * state)),
            d=tensors.numbers_of_heads(f"{at}_d.channels", f"{at}_d", channels),
        ),
        output=_take_output(tensors, sizes, i, f"{at}_out", width, "post_attention_norm"),
        past=State(f"blk.{i}.conv", (inner.taps - 1, width)),
        ssm=State(f"blk.{i}.ssm", (width, state)),
    )


def _take_attention(tensors: Tensors, sizes: Sizes, i: int, kv_heads: int, how: Attention, size: int) -> Attends:
    at = f"blk.{i}.attn"
    if how.heads % kv_heads:
        what = f"metadata key '{ARCH}.attention.head_count_kv'"
        raise tensors.bad(what, str(kv_heads), f"a divisor of the {how.heads} heads")
    rows = how.heads * size, kv_heads * size, kv_heads * size
    return Attends(
        norm=take_norm(tensors, sizes, i),
        qkv=take_qkv(tensors, at, rows, sizes.width),
        q_norm=tensors.take_flat(f"{at}_q_norm.weight", how.heads, size),
        k_norm=tensors.take_flat(f"{at}_k_norm.weight", kv_heads, size),
        output=_take_output(tensors, sizes, i, f"{at}_output", rows[0], "post_attention_norm"),
        cache=Cache(f"blk.{i}.kv", kv_heads, size),
        how=how,
    )


def _take_feed(tensors: Tensors, sizes: Sizes, i: int, inner: int) -> GatedFeed:
    at = f"blk.{i}.ffn"
    return GatedFeed(
        FeedForward(
            Rms(tensors.take(f"{at}_norm.weight", sizes.width), sizes.eps),
            take_gates(tensors, at, inner, sizes.width),
            "silu",
            _take_output(tensors, sizes, i, f"{at}_down", inner, "post_ffw_norm"),
        )
    )


def _take_output(tensors: Tensors, sizes: Sizes, i: int, name: str, inner: int, norm: str) -> Output:
    weight = tensors.take(_named(tensors, f"blk.{i}.{norm}"), sizes.width)
    return Output(tensors.take(f"{name}.weight", sizes.width, inner), norm=Rms(weight, sizes.eps))


def _named(tensors: Tensors, name: str) -> str:
    """The name of a norm, which most files write without the suffix."""
    return name if name in tensors else f"{name}.weight"
