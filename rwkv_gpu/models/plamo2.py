"""PLaMo 2: Mamba with decay, time step and skip per head instead of per channel, and attention in some layers.

The values of a head are repeated for each of its channels, so that the recurrence is that of Mamba. Norms precede and
follow each branch.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, Cache, HeadRows, Ops, Rms, State, StateSpace, Tensor, Weight
from .dense import take_gates, take_qkv
from .hybrid import Block, GatedFeed, Hybrid, HybridFile
from .mamba import check_state
from .tensors import Tensors
from .transformer import FeedForward, Output, output


@dataclass(frozen=True)
class Inner:
    """The sizes of a mixer."""

    heads: int  # H
    size: int  # P, channels of a head
    state: int  # N
    taps: int  # taps of the convolution

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
    dt: Weight  # [C, rank], all channels of a head have the same row
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
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    inner, heads = _read_inner(source), source.by_layer("attention.head_count")
    kv_heads, size = source.kv_heads(heads, 1 << 12), source.head_size(max(1, *heads))
    rope = source.rope("neox", size)

    def mixer(i: int) -> Block:
        if not kv_heads[i]:
            return _take_mixer(source, inner, i)
        return _take_attention(source, i, kv_heads[i], Attention(heads[i], rope, scale=size**-0.5), size)

    return source.model([(mixer(i), _take_feed(source, i)) for i in range(source.sizes.layers)])


def _read_inner(source: HybridFile) -> Inner:
    width, heads = source.integer("ssm.inner_size", 1, 1 << 20), source.integer("ssm.time_step_rank", 1, 1 << 16)
    state = source.integer("ssm.state_size", 1, 1 << 16)
    source.integer("ssm.group_count", 0, 0, default=0)
    if width % heads:
        what = f"metadata key '{source.arch}.ssm.inner_size'"
        raise source.tensors.bad(what, str(width), f"a multiple of the {heads} heads")
    check_state(source, state)
    return Inner(heads, width // heads, state, source.integer("ssm.conv_kernel", 2, 16))


def _take_mixer(source: HybridFile, inner: Inner, i: int) -> Mixer:
    at, width, heads, size, state = f"blk.{i}.ssm", inner.width, inner.heads, inner.size, inner.state
    tensors, sizes = source.tensors, source.sizes
    of_head = HeadRows(heads, 2 * size, 0, size)  # z first, then x
    bc, low = tensors.split(
        f"{at}_x.weight",
        width,
        (f"{at}_x.bc.weight", 2 * state),
        (f"{at}_x.dt.weight", rank := tensors.dimension(f"{at}_dt.weight", 1)),
    )
    tensors.keep(bc, low)
    channels = HeadRows(heads, 1, 0, 1, repeats=size)
    return Mixer(
        norm=source.norm(i),
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
        output=_take_output(source, i, f"{at}_out", width, "post_attention_norm"),
        past=State(f"blk.{i}.conv", (inner.taps - 1, width)),
        ssm=State(f"blk.{i}.ssm", (width, state)),
    )


def _take_attention(source: HybridFile, i: int, kv_heads: int, how: Attention, size: int) -> Attends:
    at, tensors = f"blk.{i}.attn", source.tensors
    tensors.check_divides(f"{source.arch}.attention.head_count_kv", kv_heads, how.heads)
    rows = how.heads * size, kv_heads * size, kv_heads * size
    return Attends(
        norm=source.norm(i),
        qkv=take_qkv(tensors, at, rows, source.sizes.width),
        q_norm=tensors.take_flat(f"{at}_q_norm.weight", how.heads, size),
        k_norm=tensors.take_flat(f"{at}_k_norm.weight", kv_heads, size),
        output=_take_output(source, i, f"{at}_output", rows[0], "post_attention_norm"),
        cache=Cache(f"blk.{i}.kv", kv_heads, size),
        how=how,
    )


def _take_feed(source: HybridFile, i: int) -> GatedFeed:
    at, tensors, sizes, inner = f"blk.{i}.ffn", source.tensors, source.sizes, source.inner
    return GatedFeed(
        FeedForward(
            Rms(tensors.take(f"{at}_norm.weight", sizes.width), sizes.eps),
            take_gates(tensors, at, inner, sizes.width),
            "silu",
            _take_output(source, i, f"{at}_down", inner, "post_ffw_norm"),
        )
    )


def _take_output(source: HybridFile, i: int, name: str, inner: int, norm: str) -> Output:
    tensors, sizes = source.tensors, source.sizes
    weight = tensors.take(_named(tensors, f"blk.{i}.{norm}"), sizes.width)
    return Output(tensors.take(f"{name}.weight", sizes.width, inner), norm=Rms(weight, sizes.eps))


def _named(tensors: Tensors, name: str) -> str:
    """The name of a norm, which most files write without the suffix."""
    return name if name in tensors else f"{name}.weight"
