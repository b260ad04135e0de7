"""DeepSeek-V4: attention to a window and to compressed keys, several residual streams, and clamped experts.

One key per position serves all heads, as key and as value. Layers compress the keys of 4 or 128 positions to one entry.
With 4, blocks overlap, and an indexer chooses the entries that a row sees. The first layers choose experts by token.
"""

from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import (
    Attention,
    Cache,
    ClampedSwiglu,
    ComputedWeight,
    HeadRows,
    KeyIndex,
    Ops,
    Rms,
    Rope,
    Tensor,
    Weight,
)
from .experts import mixture
from .hybrid import Experts, Hybrid, HybridFile
from .hyper_connections import Streamed, take_mixes
from .rope import BASE, unscaled
from .tensors import LONGEST_CONTEXT
from .transformer import HEAD_STEP, LARGEST_HEAD

ARCH = "deepseek4"
OVERLAPPING, SPARSE = 4, 128  # positions of a block: with an indexer, and without
MAGNITUDE = 2.0  # of the gates that write to streams
I32 = 26  # the type of tables of experts


@dataclass(frozen=True)
class Compressor:
    """Parameters and caches of compressed keys."""

    values: Weight  # [C · N, D], C = 2 if blocks overlap, else 1
    gates: Weight  # [C · N, D]
    bias: Weight  # [ratio, C · N], of gates, by position in a block
    norm: Rms
    rows: Cache  # values and gates of the last positions
    entries: Cache


@dataclass(frozen=True)
class EntryIndex:
    """Parameters of the indexer that chooses entries."""

    q: Weight  # [H · N, rank]
    weights: Weight  # [H, D], of its heads
    keys: Compressor
    how: KeyIndex


@dataclass(frozen=True)
class CompressedAttention:
    """Parameters and caches of the attention of a layer."""

    norm: Rms
    q_down: Weight  # [rank, D]
    q_norm: Rms
    q: Weight  # [H · N, rank]
    key: Weight  # [N, D]
    key_norm: Rms
    out_down: Weight  # [G, R, H / G · N]
    out: Weight  # [D, G · R]
    cache: Cache
    how: Attention
    rope: Rope
    compressor: Compressor | None
    index: EntryIndex | None
    states = ()

    @property
    def caches(self) -> tuple[Cache, ...]:
        """Its keys, and those of its compressors."""
        return (self.cache, *(cache for p in self.compressors for cache in (p.rows, p.entries)))

    @property
    def compressors(self) -> tuple[Compressor, ...]:
        """That of its keys, and that of its indexer."""
        return tuple(p for p in (self.compressor, self.index.keys if self.index else None) if p)

    def __call__(self, g: Ops[Tensor], x: Tensor, add: Tensor | None, eps: float) -> Tensor:
        """add + W_o turned back(attention(turned(norm(W_q h)), turned(norm(W_k h)))), h = norm(x)"""
        heads = self.how.heads
        matrices = [self.q_down, self.key, *(w for p in self.compressors for w in (p.values, p.gates))]
        matrices += [self.index.weights] if self.index else []
        low, key, *others = g.linears([x] * len(matrices), matrices, norm=self.norm)
        g.write_entries(g.rms_norm(key, self.key_norm.weight, eps), self.cache, self.rope)
        for p in self.compressors:
            g.write_entries(g.concat(others.pop(0), others.pop(0)), p.rows)
            entries = g.compress(p.rows, p.bias, p.entries.stride)
            g.write_entries(g.rms_norm(entries, p.norm.weight, eps), p.entries, self.rope)
        chosen = None
        if self.index is None:
            q = g.linear(low, self.q, norm=self.q_norm)
        else:
            how = self.index.how
            q, index_q = g.linears([low, low], [self.q, self.index.q], norm=self.q_norm)
            index_q = g.turn_heads(index_q, how.heads, self.rope, self.cache)
            chosen = g.choose_keys(index_q, None, others.pop(), self.index.keys.entries, how)
        q = g.turn_heads(g.group_rms_norm(q, None, heads, eps), heads, self.rope, self.cache)
        entries_of = self.compressor.entries if self.compressor else None
        y = g.compressed_attention(q, self.cache, entries_of, self.how, chosen=chosen)
        y = g.turn_heads(y, heads, self.rope, self.cache, back=True)
        return g.linear(g.head_linear(y, self.out_down), self.out, add=add)


@dataclass(frozen=True)
class DeepSeek4(Streamed):
    """A model whose first layers choose experts by token."""

    tables: tuple[Weight, ...]  # [V, n] of the first layers: the experts of each token, as floats

    def attend(self, g: Ops[Tensor], i: int, h: Tensor, chosen: Tensor | None) -> tuple[Tensor, Tensor | None]:
        attention = self.blocks[i][0]
        assert isinstance(attention, CompressedAttention), "all layers have this attention"
        return attention(g, h, None, self.eps), chosen

    def feed(self, g: Ops[Tensor], i: int, h: Tensor, ids: Tensor) -> Tensor:
        block = self.blocks[i][1]
        assert isinstance(block, Experts), "all layers have experts"
        known = g.embed(self.tables[i], ids) if i < len(self.tables) else None
        return mixture(g, block.p, h, Rms(block.norm, self.eps), None, known=known)


@dataclass(frozen=True)
class AttentionSizes:
    """The sizes of attention in all layers."""

    width: int  # D
    heads: int  # H
    size: int  # N
    rank: int  # of queries
    groups: int  # G, of heads
    out_rank: int  # R
    window: int
    eps: float
    near: Rope  # of layers without compression
    far: Rope


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    tensors, layers = source.tensors, source.sizes.layers
    sizes, ratios = _read_sizes(source), _read_ratios(source)
    experts = source.read_experts(scores="sqrt_softplus")
    limits, shared = (source.clamps(f"swiglu_clamp_{name}", ClampedSwiglu(0.0)) for name in ("exp", "shexp"))
    tensors.skip(*(f"blk.{i}.exp_probs_b_vl.bias" for i in range(layers)))  # of tokens of images
    blocks = [
        (
            _take_attention(source, sizes, ratios[i], i),
            source.experts(i, experts, shared=True, then=limits[i], shared_then=shared[i]),
        )
        for i in range(layers)
    ]
    hashed = source.integer("hash_layer_count", 0, layers)
    tables = tuple(_take_table(source, experts.used[0], experts.experts, i) for i in range(hashed))
    iterations = source.integer("hyper_connection.sinkhorn_iterations", 1, 1000)
    mixes, last = take_mixes(source, MAGNITUDE, write_eps=False, iterations=iterations)
    return source.model(blocks, kind=DeepSeek4, mixes=mixes, last=last, tables=tables)


def _read_ratios(source: HybridFile) -> list[int]:
    """The positions of a block of compressed keys, by layer; 0 without."""
    ratios = source.by_layer("attention.compress_ratios")
    wrong = [ratio for ratio in ratios if ratio not in (0, OVERLAPPING, SPARSE)]
    if wrong:
        raise UnsupportedModel(
            f"{source.file.path}: blocks of {wrong[0]} compressed keys are not supported; "
            f"known: 0, {OVERLAPPING}, {SPARSE}"
        )
    return ratios


def _read_sizes(source: HybridFile) -> AttentionSizes:
    heads, size = source.heads, source.integer("attention.key_length")
    source.tensors.check_heads(size, HEAD_STEP, LARGEST_HEAD)
    groups = source.integer("attention.output_group_count", 1, heads)
    source.tensors.check_divides(f"{ARCH}.attention.output_group_count", groups, heads)
    rope = source.rope("normal", size)
    base = source.file.float(f"{ARCH}.attention.compress_rope_freq_base", *BASE)
    return AttentionSizes(
        source.sizes.width,
        heads,
        size,
        rank=source.integer("attention.q_lora_rank", 1, 1 << 14),
        groups=groups,
        out_rank=source.integer("attention.output_lora_rank", 1, 1 << 14),
        window=source.integer("attention.sliding_window", 1, LONGEST_CONTEXT),
        eps=source.sizes.eps,
        near=unscaled(rope),
        far=replace(rope, base=base, magnitude=1.0),
    )


def _take_attention(source: HybridFile, s: AttentionSizes, ratio: int, i: int) -> CompressedAttention:
    """Takes the attention of layer i."""
    at, tensors = f"blk.{i}.attn", source.tensors
    rows, width = HeadRows(s.groups, s.out_rank, 0, s.out_rank), s.heads // s.groups * s.size
    sinks = tensors.take(f"{at}_sinks.weight", s.heads)
    return CompressedAttention(
        norm=Rms(tensors.take(f"{at}_norm.weight", s.width), s.eps),
        q_down=tensors.take(f"{at}_q_a.weight", s.rank, s.width),
        q_norm=Rms(tensors.take(f"{at}_q_a_norm.weight", s.rank), s.eps),
        q=tensors.take(f"{at}_q_b.weight", s.heads * s.size, s.rank),
        key=tensors.take(f"{at}_kv.weight", s.size, s.width),
        key_norm=Rms(tensors.take(f"{at}_kv_a_norm.weight", s.size), s.eps),
        out_down=tensors.slice_heads(f"{at}_output_a.groups", f"{at}_output_a.weight", rows, width),
        out=tensors.take(f"{at}_output_b.weight", s.width, s.groups * s.out_rank),
        cache=Cache(f"blk.{i}.kv", 1, s.size, s.size, s.window),
        how=Attention(s.heads, None, s.size**-0.5, s.window, sinks=sinks),
        rope=s.far if ratio else s.near,
        compressor=_take_compressor(source, f"{at}_compressor", s.size, ratio) if ratio else None,
        index=_take_index(source, s, i) if ratio == OVERLAPPING else None,
    )


def _take_compressor(source: HybridFile, at: str, size: int, ratio: int) -> Compressor:
    """Takes the compressor of keys of `size` numbers."""
    blocks, tensors, width = 2 if ratio == OVERLAPPING else 1, source.tensors, source.sizes.width
    whole = 2 * blocks * size
    return Compressor(
        values=tensors.take(f"{at}_kv.weight", blocks * size, width),
        gates=tensors.take(f"{at}_gate.weight", blocks * size, width),
        bias=tensors.take_flat(f"{at}_ape.weight", ratio, blocks * size),
        norm=Rms(tensors.take(f"{at}_norm.weight", size), source.sizes.eps),
        rows=Cache(f"{at}_rows", 1, whole, whole, blocks * ratio),
        entries=Cache(f"{at}_entries", 1, size, size, stride=ratio),
    )


def _take_index(source: HybridFile, s: AttentionSizes, i: int) -> EntryIndex:
    """Takes the indexer of layer i."""
    at, tensors = f"blk.{i}.indexer", source.tensors
    heads, size = (
        source.integer("attention.indexer.head_count", 1, 1 << 10),
        source.integer("attention.indexer.key_length", 1, 512),
    )
    if size % HEAD_STEP or size < s.far.dims:
        expected = f"a multiple of {HEAD_STEP} from {s.far.dims} to 512"
        raise tensors.bad(f"metadata key '{ARCH}.attention.indexer.key_length'", str(size), expected)
    count = source.integer("attention.indexer.top_k", 1, 1 << 16)
    return EntryIndex(
        q=tensors.take(f"{at}.attn_q_b.weight", heads * size, s.rank),
        weights=tensors.take(f"{at}.proj.weight", heads, s.width),
        keys=_take_compressor(source, f"{at}_compressor", size, OVERLAPPING),
        how=KeyIndex(heads, None, min(count, -(-source.sizes.context // OVERLAPPING))),
    )


def _take_table(source: HybridFile, used: int, experts: int, i: int) -> Weight:
    """The experts of each token in layer i, as floats, padded to whole vec4s."""
    name, file, count = f"blk.{i}.ffn_gate_tid2eid.weight", source.file, source.sizes.vocabulary
    info = file.tensors.get(name)
    if info is None or tuple(info.shape) != (count, used) or info.type != I32:
        found = "no such tensor" if info is None else f"type {info.type} of the shape {list(info.shape)}"
        raise source.tensors.bad(f"tensor '{name}'", found, f"I32 of the shape {[count, used]}")

    def make() -> npt.NDArray[np.float32]:
        numbers = np.frombuffer(file.read(info), "<i4").reshape(count, used)
        if numbers.min() < 0 or numbers.max() >= experts:
            wrong = str(numbers[(numbers < 0) | (numbers >= experts)][0])
            raise source.tensors.bad(f"tensor '{name}'", wrong, f"experts from 0 to {experts - 1}")
        return np.pad(numbers, ((0, 0), (0, -used % 4))).astype(np.float32)

    table = ComputedWeight(f"blk.{i}.experts_of_tokens", (count, used + -used % 4), (), make)
    source.tensors.skip(name)
    source.tensors.keep(table)
    return table
