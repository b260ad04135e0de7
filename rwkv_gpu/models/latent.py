"""Multi-head latent attention (MLA): all heads attend to one latent per position, and to one rotated key.

The matrices that expand a latent to keys and values are applied to queries and results instead. So the keys and
values of heads are never computed: score = (W_k,h c) · q = c · (W_kᵀ,h q).
"""

from dataclasses import dataclass

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import (
    Activation,
    Cache,
    HeadRows,
    KeyIndex,
    LatentAttention,
    LayerNorm,
    Ops,
    Rms,
    Rope,
    RowRange,
    Temperature,
    Tensor,
    Weight,
)
from .tensors import Tensors

INDEX_EPS = 1e-6  # eps of the norm of an indexer's keys
NONE: Activation = "none"
SIGMOID: Activation = "sigmoid"
STEP = 8  # kernels need multiples of this: dims of latents, and dims that rotate


@dataclass(frozen=True)
class LatentSizes:
    """The sizes of one latent attention."""

    width: int  # D
    heads: int  # H
    latent: int  # C
    nope: int  # dims of a query head that do not rotate; they come first
    rotary: int  # R
    value: int  # V, of a head's answer
    q_rank: int  # rank of the queries; 0 if they are one product
    eps: float
    gated: bool = False  # True if each head, or each of its numbers, has a gate
    key_norm: bool = False  # True if the part of a key that rotates is normed
    window: int = 0  # positions that a row sees; 0 is all
    sinks: bool = False  # True if each head has a sink


@dataclass(frozen=True)
class LatentScores:
    """Parameters of the attention scores."""

    rope: Rope | None  # None if positions do not rotate
    scale: float
    temperature: Temperature | None = None


@dataclass(frozen=True)
class IndexSizes:
    """The sizes of an indexer, which chooses the keys that a row sees."""

    size: int  # N, the size of a head and of its keys
    how: KeyIndex
    eps: float = INDEX_EPS
    pooled: bool = False  # True if the key of a block is a weighted mean


@dataclass(frozen=True)
class KeyPool:
    """Parameters and cache of the weights with which the keys of a block form their mean."""

    gates: Weight  # [N, D]
    bias: Weight  # [B, N], by position in a block
    rows: Cache  # keys and gates of the last positions


@dataclass(frozen=True)
class Indexer:
    """Parameters and caches of an indexer."""

    q: Weight  # [H · N, rank], reads the queries of low rank
    k: Weight  # [N, D]
    k_norm: LayerNorm
    weights: Weight  # [H, D], of its heads
    cache: Cache
    how: KeyIndex
    pool: KeyPool | None = None

    @property
    def caches(self) -> tuple[Cache, ...]:
        """Keys, and those that become a mean."""
        return (self.cache, self.pool.rows) if self.pool else (self.cache,)


@dataclass(frozen=True)
class NormedKey:
    """Parameters of the part of a key that rotates."""

    down: Weight  # [R, D]
    norm: Rms


@dataclass(frozen=True)
class LatentSelfAttention:
    """Parameters and cache of one latent attention."""

    norm: Rms
    q_down: Weight | None  # [rank, D], if queries are of low rank
    q_norm: Rms | None
    q: Weight  # [H · (nope + R), rank or D]
    kv_down: Weight  # [C + R, D]; [C, D] if keys are normed
    key: NormedKey | None  # the last R rows, if keys are normed
    k_up: Weight  # [H, C, nope], transposed
    v_up: Weight  # [H, V, C]
    output: Weight  # [D, H · V]
    cache: Cache
    how: LatentAttention
    scale: float  # multiplies its output
    gate: Weight | None = None  # [H, D], or [H · V, D]
    index: Indexer | None = None

    @property
    def caches(self) -> tuple[Cache, ...]:
        """Latents, and the keys of an indexer."""
        return (self.cache, *self.index.caches) if self.index else (self.cache,)


def latent_self_attention(g: Ops[Tensor], p: LatentSelfAttention, x: Tensor, add: Tensor | None) -> Tensor:
    """Like `chosen_self_attention`, without the chosen positions"""
    return chosen_self_attention(g, p, x, add)[0]


def chosen_self_attention(
    g: Ops[Tensor], p: LatentSelfAttention, x: Tensor, add: Tensor | None, chosen: Tensor | None = None
) -> tuple[Tensor, Tensor | None]:
    """add + scale · W_o · (W_v,h sum_j softmax_j(W_kᵀ,h q_h · c_j + rope(q_h) · rope(p_j)) c_j)

    h = norm(x), [c | p] = W_kv h; p may be normed. If there is a gate, the result of a head is multiplied by its
    sigmoid(W_g h). The positions j of a row are those that an indexer chooses, those `chosen` before, those in its
    window, or all. Also returns the chosen positions.
    """
    weights, then = [p.q_down or p.q, p.kv_down], [NONE, NONE]
    if p.index:
        weights, then = [*weights, p.index.k, p.index.weights], [*then, NONE, NONE]
        if p.index.pool:
            weights, then = [*weights, p.index.pool.gates], [*then, NONE]
    if p.gate:
        weights, then = [*weights, p.gate], [*then, SIGMOID]
    if p.key:
        weights, then = [*weights, p.key.down], [*then, NONE]
    q, z, *others = g.linears([x] * len(weights), weights, then=then, norm=p.norm)
    if p.key:
        z, others = _with_key(g, p.key, z, others.pop()), others
    gate = others.pop() if p.gate else None
    if p.index:
        low, (k, by_head, *gates) = q, others
        q, index_q = g.linears([low, low], [p.q, p.index.q], norm=p.q_norm)
        k = g.layer_norm(k, p.index.k_norm.weight, p.index.k_norm.bias, p.index.k_norm.eps)
        if p.index.pool:
            g.write_entries(g.concat(k, *gates), p.index.pool.rows)
            k = g.compress(p.index.pool.rows, p.index.pool.bias, p.index.how.block)
        chosen = g.choose_keys(index_q, k, by_head, p.index.cache, p.index.how)
    elif p.q_down:
        q = g.linear(q, p.q, norm=p.q_norm)  # [T, H · (nope + R)]
    absorbed = g.head_linear(q, p.k_up)  # [T, H · C]
    seen = None if p.cache.window else chosen
    y = g.latent_attention(absorbed, q, z, p.cache, p.how, chosen=seen)  # [T, H · C]
    y = g.head_linear(y, p.v_up)
    if gate is not None:
        y = g.mul(y, gate) if gate.shape == y.shape else g.scale_rows(y, gate)
    return g.linear(y, p.output, add=add, scale=p.scale), chosen


def write_latents(g: Ops[Tensor], p: LatentSelfAttention, x: Tensor) -> None:
    """Writes the latents of norm(x), for later rows."""
    z = g.linear(x, p.kv_down, norm=p.norm)
    if p.key:
        z = _with_key(g, p.key, z, g.linear(x, p.key.down, norm=p.norm))
    g.write_latents(z, p.cache, p.how)


def _with_key(g: Ops[Tensor], p: NormedKey, latent: Tensor, key: Tensor) -> Tensor:
    """[c | norm(p)]"""
    return g.concat(latent, g.rms_norm(key, p.norm.weight, p.norm.eps))


def take_latent_attention(
    file: GGUFFile,
    tensors: Tensors,
    sizes: LatentSizes,
    scores: LatentScores,
    i: int,
    *,
    scale: float = 1.0,
    index: IndexSizes | None = None,
) -> LatentSelfAttention:
    """Takes the latent attention of block i; `scale` multiplies its result. `index`: it has an indexer."""
    at, s = f"blk.{i}.attn", sizes
    if s.latent % STEP or s.rotary % STEP:
        raise UnsupportedModel(
            f"{file.path}: latents of {s.latent} + {s.rotary} dims are not supported; known: multiples of {STEP}"
        )
    k_up, v_up = _take_up(tensors, sizes, i)
    return LatentSelfAttention(
        norm=Rms(tensors.take(f"{at}_norm.weight", s.width), s.eps),
        q_down=tensors.take(f"{at}_q_a.weight", s.q_rank, s.width) if s.q_rank else None,
        q_norm=Rms(tensors.take(f"{at}_q_a_norm.weight", s.q_rank), s.eps) if s.q_rank else None,
        q=tensors.take(
            f"{at}_q_b.weight" if s.q_rank else f"{at}_q.weight", s.heads * (s.nope + s.rotary), s.q_rank or s.width
        ),
        kv_down=_take_down(tensors, s, i),
        key=_take_key(tensors, s, i),
        k_up=k_up,
        v_up=v_up,
        output=tensors.take(f"{at}_output.weight", s.width, s.heads * s.value),
        cache=Cache(f"blk.{i}.kv", 1, s.latent + s.rotary, s.latent, s.window),
        how=LatentAttention(
            s.heads,
            scores.rope,
            scores.scale,
            tensors.take(f"{at}_kv_a_norm.weight", s.latent),
            s.eps,
            scores.temperature,
            tensors.take(f"{at}_sinks.weight", s.heads) if s.sinks else None,
            index.how.block if index else 1,
        ),
        gate=_take_gate(tensors, f"{at}_gate.weight", s) if s.gated else None,
        scale=scale,
        index=_take_indexer(tensors, index, sizes, i) if index else None,
    )


def _take_gate(tensors: Tensors, name: str, s: LatentSizes) -> Weight:
    """The matrix of gates, with a row for each head, or for each of its numbers."""
    by_head = name in tensors and tensors.dimension(name, 0) == s.heads
    return tensors.take(name, s.heads if by_head else s.heads * s.value, s.width)


def _take_indexer(tensors: Tensors, sizes: IndexSizes, latent: LatentSizes, i: int) -> Indexer:
    at, size, heads = f"blk.{i}.indexer", sizes.size, sizes.how.heads
    norm = f"{at}.k_norm"
    return Indexer(
        q=tensors.take(f"{at}.attn_q_b.weight", heads * size, latent.q_rank),
        k=tensors.take(f"{at}.attn_k.weight", size, latent.width),
        k_norm=LayerNorm(tensors.take(f"{norm}.weight", size), tensors.take(f"{norm}.bias", size), sizes.eps),
        weights=tensors.take(f"{at}.proj.weight", heads, latent.width),
        cache=Cache(f"blk.{i}.index", 1, size, size),
        how=sizes.how,
        pool=_take_pool(tensors, sizes, latent.width, i) if sizes.pooled else None,
    )


def _take_pool(tensors: Tensors, sizes: IndexSizes, width: int, i: int) -> KeyPool:
    at, size, block = f"blk.{i}.indexer_compressor", sizes.size, sizes.how.block
    return KeyPool(
        gates=tensors.take(f"{at}_gate.weight", size, width),
        bias=tensors.take_flat(f"{at}_ape.weight", block, size),
        rows=Cache(f"{at}_rows", 1, 2 * size, 2 * size, block),
    )


def _take_down(tensors: Tensors, s: LatentSizes, i: int) -> Weight:
    """Takes the matrix to latents and keys, or only to latents if keys are normed."""
    whole = f"blk.{i}.attn_kv_a_mqa.weight"
    if not s.key_norm:
        return tensors.take(whole, s.latent + s.rotary, s.width)
    latent, key = tensors.split(whole, s.width, (f"{whole}.latent", s.latent), (f"{whole}.key", s.rotary))
    tensors.keep(latent, key)
    return latent


def _take_key(tensors: Tensors, s: LatentSizes, i: int) -> NormedKey | None:
    """Takes what norms the part of a key that rotates; its matrix is a part of that to latents and keys."""
    if not s.key_norm:
        return None
    whole = f"blk.{i}.attn_kv_a_mqa.weight"
    down = RowRange(f"{whole}.key", (s.rotary, s.width), whole, s.latent)
    return NormedKey(down, Rms(tensors.take(f"blk.{i}.attn_k_norm.weight", s.rotary), s.eps))


def _take_up(tensors: Tensors, s: LatentSizes, i: int) -> tuple[Weight, Weight]:
    """Takes the matrices from latents to keys and values.

    Older files have both matrices in one tensor, grouped by head.
    """
    at = f"blk.{i}.attn"
    if f"{at}_kv_b.weight" not in tensors:
        k_up = tensors.take(f"{at}_k_b.weight", s.heads, s.latent, s.nope)
        return k_up, tensors.take(f"{at}_v_b.weight", s.heads, s.value, s.latent)
    whole = f"{at}_kv_b.weight"
    each, width = s.nope + s.value, s.latent
    return (
        tensors.slice_heads(f"{at}_k_b.weight", whole, HeadRows(s.heads, each, 0, s.nope, transposed=True), width),
        tensors.slice_heads(f"{at}_v_b.weight", whole, HeadRows(s.heads, each, s.nope, s.value), width),
    )
