"""Qwen3.8-Flash-Next: Qwen3.5 with several residual streams, a table of n-grams, and attention to chosen blocks.

A branch reads a gated mean of all streams, and adds to each with its own factor. One layer begins with rows of a table,
which the last tokens choose.
"""

from dataclasses import dataclass, replace
from functools import reduce

import numpy as np
import numpy.typing as npt

from rwkv_gpu.errors import UnsupportedModel

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Attention, KeyIndex, NGrams, Ops, State, Tensor, Weight
from .block_index import take_block_index
from .experts import ExpertSizes, take_mixture
from .hybrid import Experts, Hybrid, HybridFile
from .hyper_connections import STREAMS
from .qwen35 import INTERVAL, DeltaNet, GatedAttention, take_delta_net, take_gated_attention
from .tensors import Tensors

ARCH = "qwen4exp"
MAX_GRAM, MAX_TAPS, MAX_ROWS = 8, 32, (1 << 31) - 1
LARGEST_BLOCK = 16  # tap limit of the convolution that averages the keys of a block
LEAST = 1e-6  # lower bound of the magnitude whose root a gate takes


@dataclass(frozen=True)
class Mixer:
    """Parameters that mix residual streams for a branch."""

    norm: Weight  # [S · D], of each stream
    down: Weight  # [R, S · D]
    up: Weight  # [S · D, R]
    inject: Weight | None  # [S, S · D]; None for the last mixer


@dataclass(frozen=True)
class NGramTable:
    """Parameters that add rows of a table to the streams."""

    how: NGrams
    table: Weight  # [rows, N]
    key: Weight  # [S · D, choices · N]
    value: Weight  # [D, choices · N]
    norms: tuple[Weight, Weight, Weight]  # of keys, streams and values, [S · D] each
    sums: Weight  # [S, S · D], 1 / sqrt(D) for the numbers of a stream
    taps: Weight  # [S · D · taps], zeros between those that are used
    past: State  # [taps - 1, S · D]
    before: tuple[State, ...]  # [1, 4] each: the tokens before the next one


@dataclass(frozen=True)
class Qwen4(Hybrid):
    """A model of blocks between residual streams."""

    count: int  # S
    mixers: tuple[tuple[Mixer, Mixer], ...]
    last: Mixer
    table: NGramTable | None
    table_layer: int  # the layer that begins with rows of the table

    def layers(self, g: Ops[Tensor], x: Tensor, ids: Tensor) -> Tensor:
        x = reduce(g.concat, [x] * self.count)  # [T, S · D]
        for i, (layer, mixers) in enumerate(zip(self.blocks, self.mixers, strict=True)):
            with g.layer(i):
                if self.table and i == self.table_layer:
                    x = self._with_rows(g, self.table, x, ids)
                for block, p in zip(layer, mixers, strict=True):
                    assert isinstance(block, DeltaNet | GatedAttention | Experts), "they may add to nothing"
                    mixed, normed = self._mixed(g, p, x)
                    assert p.inject, "only the last mixer has none"
                    share = g.scale(g.linear(normed, p.inject, then="sigmoid"), 2.0)  # [T, S]
                    x = g.add_to_streams(x, block(g, mixed, None, self.eps), share)
        return self._mixed(g, self.last, x)[0]

    def _mixed(self, g: Ops[Tensor], p: Mixer, x: Tensor) -> tuple[Tensor, Tensor]:
        """mean over streams of h · sigmoid(W_up silu(W_down h / S)), and h = norm(x), by stream"""
        h = g.group_rms_norm(x, p.norm, self.count, self.eps)
        gate = g.linear(g.linear(h, p.down, then="silu"), p.up, then="sigmoid")
        return g.mean_parts(g.mul(h, gate), self.count), h

    def _with_rows(self, g: Ops[Tensor], p: NGramTable, x: Tensor, ids: Tensor) -> Tensor:
        """x + v + silu(conv(norm(v))), v = W_value e · sigmoid(signed_root(norm(W_key e) · norm(x) / sqrt(D)))

        e are the rows of the table. The scalar product, the norms and the gate are those of each stream.
        """
        numbers = [g.token_numbers(ids)]
        for state in p.before:
            numbers.append(g.shift(numbers[-1], state))
        e = g.embed(p.table, g.ngram_rows(reduce(g.concat, numbers), p.how))
        key, value = g.linears([e, e], [p.key, p.value])
        key, query = (
            g.group_rms_norm(y, norm, self.count, self.eps) for y, norm in zip((key, x), p.norms[:2], strict=True)
        )
        gate = g.activate(g.signed_root(g.linear(g.mul(key, query), p.sums), LEAST), "sigmoid")  # [T, S]
        v = g.scale_rows(reduce(g.concat, [value] * self.count), gate)
        h = g.group_rms_norm(v, p.norms[2], self.count, self.eps)
        return g.add(x, g.add(v, g.conv1d(h, p.taps, p.past, then="silu")))

    @property
    def states(self) -> list[State]:
        """The recurrent states of a sequence, and what the table needs of earlier rows."""
        return [*super().states, *((self.table.past, *self.table.before) if self.table else ())]


def load(file: GGUFFile) -> Hybrid:
    """The model that a file describes; raises BadFile if its tensors and metadata disagree."""
    source = HybridFile(file)
    layers, experts = range(source.sizes.layers), source.read_experts(normalise=True)
    count = source.integer("hyper_connection.count", *STREAMS)
    recurrent, ratios = source.recurrent_layers(INTERVAL), source.by_layer("attention.compress_ratios", LARGEST_BLOCK)
    table, at = _take_table(source, count)
    blocks = [(_take_first(source, ratios[i], i, recurrent[i]), _take_experts(source, experts, i)) for i in layers]
    mixers = [
        (_take_mixer(source, f"blk.{i}.hc_attn", count), _take_mixer(source, f"blk.{i}.hc_ffn", count)) for i in layers
    ]
    last = _take_mixer(source, "output_hc", count, last=True)
    return source.model(
        blocks,
        last_norm=None,
        kind=Qwen4,
        count=count,
        mixers=tuple(mixers),
        last=last,
        table=table,
        table_layer=at,
    )


def _take_first(source: HybridFile, ratio: int, i: int, recurrent: bool) -> DeltaNet | GatedAttention:
    """Takes the first block of layer i: a delta net, or attention to blocks of `ratio` positions; 0: to all."""
    if recurrent:
        return take_delta_net(source, i, normed=False, then="sigmoid")
    sizes, heads = source.sizes, source.heads
    size, kv_heads = source.head_size(heads), source.only_kv_heads(heads)
    source.tensors.check_divides(f"{source.arch}.attention.head_count_kv", kv_heads, heads)
    rope = source.rope("neox", size)
    attention = take_gated_attention(source, Attention(heads, rope, scale=size**-0.5), kv_heads, size, i, normed=False)
    if not ratio:
        source.tensors.skip(*(f"blk.{i}.indexer.{name}.weight" for name in ("q_proj", "k_proj", "q_norm", "k_norm")))
        return attention
    most = -(-sizes.context // ratio)
    budget = min(most, -(-source.integer("attention.indexer.top_k", 1, 1 << 20) // ratio))
    how = KeyIndex(source.integer("attention.indexer.head_count"), rope, budget, block=ratio)
    key = source.integer("attention.indexer.key_length")
    index = take_block_index(source.tensors, i, how, key, sizes.width, sizes.eps, pooled=ratio > 1)
    return replace(attention, index=index)


def _take_experts(source: HybridFile, experts: ExpertSizes, i: int) -> Experts:
    return Experts(None, take_mixture(source.tensors, experts, i, shared=True))


def _take_mixer(source: HybridFile, at: str, count: int, *, last: bool = False) -> Mixer:
    """Takes a mixer. Its hidden numbers, and its weights of a branch, are divided by the number of streams."""
    tensors, width = source.tensors, count * source.sizes.width
    rank = source.integer("hyper_connection.low_rank", 1, 1 << 14)
    down = tensors.take(f"{at}_down.weight", rank, width)
    inject = None if last else tensors.take(f"{at}_inject.weight", count, width)
    return Mixer(
        _take_gains(tensors, f"{at}_norm.weight", count, source.sizes.width),
        replace(down, scale=1 / count),
        tensors.take(f"{at}_up.weight", width, rank),
        replace(inject, scale=1 / count) if inject else None,
    )


def _take_gains(tensors: Tensors, name: str, count: int, width: int) -> Weight:
    """The norm of each stream, which a file has as a vector or as one row for each."""
    if name in tensors and tensors.dimensions(name) == 2:
        return tensors.take_flat(name, count, width)
    return tensors.take(name, count * width)


def _take_table(source: HybridFile, count: int) -> tuple[NGramTable | None, int]:
    """Takes the table of n-grams, and the layer that reads it; none if the file has no such layer."""
    file, tensors, arch, width = source.file, source.tensors, source.arch, source.sizes.width
    if f"{arch}.ple.layers" not in file.metadata:
        return None, -1
    layers = [int(i) for i in file.ints(f"{arch}.ple.layers")]
    if not layers:
        return None, -1
    if len(layers) != 1 or not 0 <= layers[0] < source.sizes.layers:
        raise UnsupportedModel(f"{file.path}: n-grams in layers {layers} are not supported; one layer may have them")
    size, name = source.integer("embedding_length_per_layer_input", 1, 1 << 16), "per_layer_token_embd.weight"
    how = _read_ngrams(source, tensors.dimension(name, 0))
    inner, at, every = how.rows * size, f"blk.{layers[0]}", count * width
    taps, apart = source.integer("ple.conv_kernel", 1, MAX_TAPS), how.size
    whole = (taps - 1) * apart + 1
    norms = [_take_gains(tensors, f"{at}.ple_norm_{which}.weight", count, width) for which in ("key", "query", "conv")]
    table = NGramTable(
        how,
        tensors.take(name, tensors.dimension(name, 0), size),
        key=tensors.take(f"{at}.ple_key.weight", every, inner),
        value=tensors.take(f"{at}.ple_value.weight", width, inner),
        norms=(norms[0], norms[1], norms[2]),
        sums=tensors.compute(
            f"{at}.ple_sums", (count, every), lambda _: _sums(count, width), (f"{at}.ple_value.weight", (width, inner))
        ),
        taps=tensors.compute(
            f"{at}.ple_taps", (every * whole,), lambda x: _spread(x, apart), (f"{at}.ple_conv1d.weight", (every, taps))
        ),
        past=State(f"{at}.ple_past", (whole - 1, every)),
        before=tuple(State(f"{at}.ple_token_{back}", (1, 4)) for back in range(1, how.size)),
    )
    return table, layers[0]


def _read_ngrams(source: HybridFile, rows: int) -> NGrams:
    """How tokens choose rows of the table, which has this many; refuses a choice outside of it."""
    at = f"{source.arch}.ple"
    size, each = source.integer("ple.ngram_size", 2, MAX_GRAM), source.integer("ple.heads_per_ngram", 1, 64)
    choices = (size - 1) * each
    multipliers, counts, offsets = (
        _numbers(source, f"{at}.{key}", length)
        for key, length in (("layer_multipliers", size), ("head_vocab_sizes", choices), ("head_offsets", choices))
    )
    for count, first in zip(counts, offsets, strict=True):
        if not (0 < count <= MAX_ROWS and first + count <= min(rows, MAX_ROWS)):
            what = f"metadata key '{at}.head_offsets'"
            raise source.tensors.bad(what, f"rows {first} to {first + count}", f"some of the {rows} rows of the table")
    end = source.integer("ple.eos_token_id", 0, source.sizes.vocabulary - 1)
    return NGrams(size, each, multipliers, counts, offsets, end)


def _numbers(source: HybridFile, key: str, length: int) -> tuple[int, ...]:
    """The first `length` numbers of a list, none of which is negative."""
    numbers = [int(number) for number in source.file.ints(key)]
    if len(numbers) < length or min(numbers) < 0:
        raise source.tensors.bad(f"metadata key '{key}'", str(numbers)[:60], f"{length} numbers from 0 on")
    return tuple(numbers[:length])


def _sums(count: int, width: int) -> npt.NDArray[np.float32]:
    """A matrix that adds the numbers of each stream, divided by the root of their number."""
    return np.repeat(np.eye(count, dtype=np.float32), width, axis=1) / np.float32(np.sqrt(width))


def _spread(taps: npt.NDArray[np.float32], apart: int) -> npt.NDArray[np.float32]:
    """The taps of each channel [C, K] as one vector, with zeros between them."""
    channels, count = taps.shape
    spread = np.zeros((channels, (count - 1) * apart + 1), np.float32)
    spread[:, ::apart] = taps
    return spread.reshape(-1)
