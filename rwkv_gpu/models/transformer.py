"""The layers of transformers: attention and a feed-forward.

A family declares its differences in a `Form` (`dense.py`): norms, RoPE, attention windows, activation, scales and
caps.
"""

from abc import abstractmethod
from dataclasses import dataclass

from ..ops.vocabulary import (
    Activation,
    Alternating,
    AnyNorm,
    Attention,
    Cache,
    ClampedSwiglu,
    Glu,
    LayerNorm,
    Ops,
    Rms,
    Situ,
    Tensor,
    Weight,
    Xielu,
)
from .block_index import BlockIndex, chosen_blocks
from .layered import Layered, normed

HEAD_STEP, SMALLEST_HEAD, LARGEST_HEAD = 8, 4, 512  # the sizes of heads in caches are multiples


@dataclass(frozen=True)
class Hyper:
    """The sizes of a model, with one entry per layer for those that may differ between layers."""

    layers: int
    width: int  # D
    inner: tuple[int, ...]  # inner width of the feed-forward
    heads: tuple[int, ...]  # H
    kv_heads: tuple[int, ...]  # KV
    head_size: int  # N, of q and k
    value_size: int  # size of v
    vocabulary: int  # V
    eps: float
    context: int  # positions it was trained on
    window: int  # positions that a query of a window layer attends to; 0 is all


@dataclass(frozen=True)
class Output:
    """Parameters for adding the result of a branch to the residual stream."""

    weight: Weight  # [D, K]
    bias: Weight | None = None  # [D]
    norm: Rms | None = None  # after the matrix
    scale: float = 1.0
    before: Rms | None = None  # norm of the matrix's input
    total: AnyNorm | None = None  # norm of the returned sum
    again: AnyNorm | None = None  # norm of the residual stream plus the normed sum


@dataclass(frozen=True)
class SelfAttention:
    """Parameters and cache of one attention."""

    norm: AnyNorm | None  # before the matrices
    q: Weight  # [H · N, D]
    k: Weight  # [KV · N, D]
    v: Weight  # [KV · V, D]
    biases: tuple[Weight | None, ...]  # biases of q, k, v
    whole_norms: tuple[AnyNorm, AnyNorm] | None  # norms of q and k, over all their heads
    gate: Weight | None  # [H · V, D], or one row for each head [H, D]
    output: Output
    cache: Cache
    how: Attention
    value: int  # V, numbers of a value
    head_norms: tuple[AnyNorm, AnyNorm] | None = None  # own weights for each head of q [H · N] and of k [KV · N]
    gate_then: Activation = "sigmoid"
    clamp: float = 0.0  # limit of q, k and v; 0 is none
    index: BlockIndex | None = None  # chooses the positions that a row sees

    @property
    def caches(self) -> list[Cache]:
        """Keys and values, and the keys of an indexer."""
        return [self.cache, self.index.cache] if self.index else [self.cache]


@dataclass(frozen=True)
class FeedForward:
    """Parameters of one feed-forward."""

    norm: AnyNorm | None  # before the matrices
    # Gate and up: alternating rows [2 · inner, D]; two weights if their formats differ; or up alone, [inner, D].
    gates: Alternating | tuple[Weight, Weight] | Weight
    then: Glu | Xielu  # one of both needs separate gate and up, xIELU only up
    output: Output
    biases: tuple[Weight | None, ...] = ()  # [inner], biases of separate gate and up, or of up alone


def self_attention(g: Ops[Tensor], p: SelfAttention, x: Tensor, add: Tensor | None = None) -> Tensor:
    """add + output(attention(W_q h, W_k h, W_v h) · then(W_gate h)), h = norm(x); `add` is x by default

    An indexer, which also reads h, chooses the positions that a row sees.
    """
    matrices, then = [p.q, p.k, p.v], list[Activation](["none"] * 3)
    if p.gate:
        matrices, then = [*matrices, p.gate], [*then, p.gate_then]
    if p.index:
        matrices, then = [*matrices, p.index.q, p.index.k], [*then, "none", "none"]
    biases = (*p.biases, *[None] * (len(matrices) - 3))
    q, k, v, *others = g.linears([x] * len(matrices), matrices, then=then, bias=biases, norm=p.norm)
    if p.clamp:
        q, k, v = (g.clamp(y, p.clamp) for y in (q, k, v))
    if p.whole_norms is not None:
        q, k = (normed(g, y, norm) for y, norm in zip((q, k), p.whole_norms, strict=True))
    if p.head_norms is not None:
        of_q, of_k = p.head_norms
        q, k = normed_by_head(g, q, of_q, p.how.heads), normed_by_head(g, k, of_k, p.cache.heads)
    chosen = chosen_blocks(g, p.index, *others[-2:]) if p.index else None
    y = attend(g, q, k, v, p.cache, p.how, p.value, chosen)
    if p.gate is not None:
        y = g.mul(y, others[0]) if others[0].shape == y.shape else g.scale_rows(y, others[0])
    return output(g, p.output, y, x if add is None else add)


def write_keys(g: Ops[Tensor], p: SelfAttention, x: Tensor) -> None:
    """Writes the keys and values of norm(x), for later rows."""
    k, v = g.linears([x, x], [p.k, p.v], bias=p.biases[1:], norm=p.norm)
    if p.how.head:
        k = g.resize_heads(k, p.cache.heads, p.cache.size)
    if p.value != p.cache.size:
        v = g.resize_heads(v, p.cache.heads, p.cache.size)
    g.write_keys(k, v, p.cache, p.how)


def normed_by_head(g: Ops[Tensor], x: Tensor, norm: AnyNorm, heads: int) -> Tensor:
    """Norms each head of x, with separate weights"""
    if isinstance(norm, LayerNorm):
        return g.group_layer_norm(x, norm.weight, norm.bias, heads, norm.eps)
    return g.group_rms_norm(x, norm.weight, heads, norm.eps)


def attend(
    g: Ops[Tensor],
    q: Tensor,
    k: Tensor | None,
    v: Tensor | None,
    cache: Cache,
    how: Attention,
    value: int,
    chosen: Tensor | None = None,
) -> Tensor:
    """attention(q, k, v); heads are padded if those of the cache are larger. `value` is the size of a value"""
    if how.head:
        q = g.resize_heads(q, how.heads, cache.size)
        k = None if k is None else g.resize_heads(k, cache.heads, cache.size)
    if value == cache.size:
        return g.attention(q, k, v, cache, how, chosen=chosen)
    v = None if v is None else g.resize_heads(v, cache.heads, cache.size)
    return g.resize_heads(g.attention(q, k, v, cache, how, chosen=chosen), how.heads, value)


def stored_size(size: int) -> int:
    """The size of a head in a cache."""
    return -(-size // HEAD_STEP) * HEAD_STEP


def feed_forward(g: Ops[Tensor], p: FeedForward, x: Tensor, add: Tensor | None = None) -> Tensor:
    """add + output(inner(x)); `add` is x by default"""
    return output(g, p.output, inner(g, p, x), x if add is None else add)


def inner(g: Ops[Tensor], p: FeedForward, x: Tensor) -> Tensor:
    """then(W_gate h + bias) · (W_up h + bias), or then(W_up h + bias), h = norm(x)"""
    return gates(g, x, p.gates, p.then, p.norm, p.biases)


def gates(
    g: Ops[Tensor],
    x: Tensor,
    matrices: Alternating | tuple[Weight, Weight] | Weight,
    then: Glu | Xielu,
    norm: AnyNorm | None,
    biases: tuple[Weight | None, ...] = (),
) -> Tensor:
    """The feed-forward up to its last matrix, as in `inner`, from these matrices."""
    if isinstance(then, ClampedSwiglu | Situ):
        assert isinstance(matrices, tuple), "gate and up are separate"
        gate, up = g.linears([x, x], matrices, bias=biases or (None, None), norm=norm)
        return g.gated(gate, up, then)
    if isinstance(then, Xielu):
        assert not isinstance(matrices, Alternating | tuple), "it has no gate"
        return g.xielu(g.linear(x, matrices, bias=(*biases, None)[0], norm=norm), then)
    if isinstance(matrices, Alternating):
        return g.glu(x, matrices, then, norm=norm)
    if isinstance(matrices, Weight):
        return g.linear(x, matrices, then=then, bias=(*biases, None)[0], norm=norm)
    return g.mul(*g.linears([x, x], matrices, then=[then, "none"], bias=biases or (None, None), norm=norm))


def output(g: Ops[Tensor], p: Output, y: Tensor, x: Tensor | None) -> Tensor:
    """z = total(x + scale · norm(W before(y) + bias)), then again(x + z) if both exist"""
    if p.norm is None:
        y = g.linear(y, p.weight, bias=p.bias, add=x, norm=p.before, scale=p.scale)
    else:
        y = g.linear(y, p.weight, bias=p.bias, norm=p.before)
        y = g.rms_norm(y, p.norm.weight, p.norm.eps, add=x, scale=p.scale)
    y = normed(g, y, p.total)
    return y if p.again is None or x is None else normed(g, g.add(y, x), p.again)


@dataclass(frozen=True)
class AttentionModel(Layered):
    """A model with attention in every layer; subclasses define the feed-forward."""

    attentions: tuple[SelfAttention, ...]
    parallel: bool  # whether a feed-forward reads the input of its layer's attention instead of the output

    @abstractmethod
    def feed(self, g: Ops[Tensor], i: int, x: Tensor, y: Tensor) -> Tensor:
        """y + the feed-forward of layer i, given the layer's input x and the stream y after its attention"""

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        return self.streams(g, x, ids)[-1]

    def streams(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> list[Tensor]:  # noqa: ARG002 - layers see x alone
        """The residual stream before each layer, and after the last"""
        streams = [x]
        for i in range(len(self.attentions)):
            streams.append(g.add_step_input(self.layer(g, i, streams[-1]), f"deepstack.{i}"))
        return streams

    def layer(self, g: Ops[Tensor], i: int, x: Tensor) -> Tensor:
        """The residual stream after layer i"""
        with g.layer(i):
            y = self_attention(g, self.attentions[i], x)
            return self.feed(g, i, x, y)

    @property
    def caches(self) -> list[Cache]:
        return [cache for p in self.attentions for cache in p.caches]


@dataclass(frozen=True)
class Transformer(AttentionModel):
    """A dense model, with a feed-forward in each layer."""

    feeds: tuple[FeedForward, ...]

    def feed(self, g: Ops[Tensor], i: int, x: Tensor, y: Tensor) -> Tensor:
        return feed_forward(g, self.feeds[i], x if self.parallel else y, y)
