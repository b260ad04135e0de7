"""Additions of RWKV-7a and 7b: DeepEmbed (tables by token) and DEA (a small attention next to each time mix)."""

from dataclasses import dataclass

from ..ops.vocabulary import Attention, Cache, LayerNorm, Ops, StackedVectors, State, Tensor, Weight
from .tensors import Tensors

HEAD_STEP, LARGEST_HEAD = 8, 768  # limits of the only head of DEA, whose values have the model's width
CAP, SCALE = 64.0, 1 / 16  # limit and scale of scores: 64 · tanh(q · k / 1024)


@dataclass(frozen=True)
class DeepEmbed:
    """A matrix of R x R numbers for each token, which scales the inner numbers of a channel mix."""

    table: Weight  # [V, R · R]
    down: Weight  # [R, D]
    up: Weight  # [inner, R]
    bias: Weight  # [inner]


@dataclass(frozen=True)
class Shifted:
    """Parameters that mix queries, keys or values with those of the previous token, and norm them."""

    mix: StackedVectors  # [1, S]
    norm: LayerNorm
    shift: State  # [1, S]


@dataclass(frozen=True)
class ByToken:
    """Parameters of keys or values: the residual stream, projected through R numbers and scaled by a row per token."""

    down: Weight  # [R, D]
    up: Weight  # [S, R]
    table: Weight  # [V, S]
    shifted: Shifted


@dataclass(frozen=True)
class DeepAttention:
    """DEA: attention of one head without positions."""

    query: Weight  # [S, D]
    shifted: Shifted
    key: ByToken
    value: ByToken
    cache: Cache

    @property
    def states(self) -> list[State]:
        """The last query, key and value of a sequence, before they are mixed."""
        return [one.shift for one in (self.shifted, self.key.shifted, self.value.shifted)]


def deepened(g: Ops[Tensor], p: DeepEmbed, k: Tensor, x: Tensor, ids: Tensor) -> Tensor:
    """k · (U (A x · S) + b), where S [R, R] is the matrix of the token"""
    low = g.row_matrix(g.linear(x, p.down), g.embed(p.table, ids))
    return g.mul(k, g.linear(low, p.up, bias=p.bias))


def deep_attention(g: Ops[Tensor], p: DeepAttention, x: Tensor, ids: Tensor) -> Tensor:
    """sum_j softmax_j(64 · tanh(q · k_j / 1024)) v_j; q, k and v are mixed with the previous token and normed"""
    k = g.mul(g.linear(g.linear(x, p.key.down), p.key.up), g.embed(p.key.table, ids))
    v = g.mul(g.linear(g.linear(x, p.value.down), p.value.up, then="tanh"), g.embed(p.value.table, ids))
    q, k, v = (
        _shifted(g, how, y) for how, y in ((p.shifted, g.linear(x, p.query)), (p.key.shifted, k), (p.value.shifted, v))
    )
    size = p.cache.size  # keys are padded to the size of values
    q, k = (g.resize_heads(y, 1, size) if y.shape[1] < size else y for y in (q, k))
    return g.attention(q, k, v, p.cache, Attention(heads=1, rope=None, scale=SCALE, softcap=CAP))


def _shifted(g: Ops[Tensor], p: Shifted, x: Tensor) -> Tensor:
    """norm(lerp(x, previous, mu))"""
    [mixed] = g.lerp(x, g.shift(x, p.shift), p.mix)
    return g.layer_norm(mixed, p.norm.weight, p.norm.bias, p.norm.eps)


def find_deep_embed(tensors: Tensors, i: int, vocabulary: int, width: int, inner: int) -> DeepEmbed | None:
    """The parameters of a DeepEmbed, if the file has them."""
    at = f"blk.{i}.channel_mix_s"
    if f"{at}_emb.weight" not in tensors:
        return None
    rank = tensors.dimension(f"{at}1.weight", 0)
    return DeepEmbed(
        tensors.take(f"{at}_emb.weight", vocabulary, rank * rank),
        tensors.take(f"{at}1.weight", rank, width),
        tensors.take(f"{at}2.weight", inner, rank),
        tensors.take(f"{at}0.weight", inner),
    )


def find_deep_attention(tensors: Tensors, i: int, vocabulary: int, width: int, eps: float) -> DeepAttention | None:
    """The parameters of a DEA, if the file has them."""
    at = f"blk.{i}.dea"
    if f"{at}_q.weight" not in tensors:
        return None
    tensors.check_heads(width, HEAD_STEP, LARGEST_HEAD)
    size = tensors.dimension(f"{at}_q.weight", 0)
    if size > width:
        raise tensors.bad(f"tensor '{at}_q.weight'", f"{size} rows", f"at most {width}")

    def shifted(letter: str, size: int) -> Shifted:
        weight, bias = (tensors.take(f"{at}_{letter}_norm.{end}", size) for end in ("weight", "bias"))
        mix = tensors.join(f"{at}_lerp_{letter}", size, f"{at}_lerp_{letter}.weight")
        return Shifted(mix, LayerNorm(weight, bias, eps), State(f"{at}_shift_{letter}", (1, size)))

    def by_token(letter: str, size: int) -> ByToken:
        rank = tensors.dimension(f"{at}_{letter}1.weight", 0)
        return ByToken(
            tensors.take(f"{at}_{letter}1.weight", rank, width),
            tensors.take(f"{at}_{letter}2.weight", size, rank),
            tensors.take(f"{at}_{letter}_emb.weight", vocabulary, size),
            shifted(letter, size),
        )

    query = tensors.take(f"{at}_q.weight", size, width)
    return DeepAttention(query, shifted("q", size), by_token("k", size), by_token("v", width), Cache(at, 1, width))
