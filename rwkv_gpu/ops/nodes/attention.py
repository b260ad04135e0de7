"""Ops of attention over the pages of a KV cache."""

from dataclasses import dataclass
from typing import ClassVar

from ..graph import Op
from ..values import Quantised, Value
from ..vocabulary import Attention, Cache, KeyIndex, LatentAttention, Rms, Rope, State, Weight


@dataclass(frozen=True)
class Attend(Op):
    """Attention of every row over the pages of its sequence, after its own k and v are written to them"""

    qkv: Value  # a stack of q, k and v; q alone if the cache is only read
    cache: Cache
    how: Attention
    y: Value
    cached: bool = False  # whether k and v of the rows are in the cache already
    bounds: Value | None = None  # the input named by `how.limits`
    chosen: Value | None = None  # positions that each row, or each KV head of a row, attends to, [T, lists, W]
    whole_norms: tuple[Rms, Rms] | None = None  # norms of q and k, each over all heads together
    gate: Value | None = None  # factor of the result
    quantises: Quantised | None = None  # y as integers or float16, written in addition
    fuses: ClassVar = {"whole_norms": "norm", "gate": "gate", "quantises": "quantise"}
    state_inputs = ("cache",)

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        return () if self.cached else (self.cache,)


@dataclass(frozen=True)
class WriteKeys(Op):
    """The write of keys and values to their pages, without attention"""

    kv: Value  # a stack of k and v
    cache: Cache
    how: Attention
    state_outputs = ("cache",)


@dataclass(frozen=True)
class WriteLatent(Op):
    """Writes normed latents to their pages, and the rotated last dims of the queries to r"""

    z: Value
    q_rope: Value
    cache: Cache
    how: LatentAttention
    r: Value  # [T, H · R]
    merges: bool = False  # whether it shares the dispatch of the per-head product before it
    fuses: ClassVar = {"merges": "merge"}
    makes: ClassVar = ("r",)
    state_outputs = ("cache",)


@dataclass(frozen=True)
class AttendLatent(Op):
    """Attention of every row over the latents of its sequence, including its own, or over those chosen for it"""

    q: Value
    r: Value
    cache: Cache
    how: LatentAttention
    y: Value
    chosen: Value | None = None  # positions, [T, 1, W]
    leaves_runs: bool = False  # whether the reader of y reduces the runs of the context
    state_inputs = ("cache",)


@dataclass(frozen=True)
class WriteIndex(Op):
    """Writes the rotated keys of an indexer to their pages, and its rotated queries to r"""

    k: Value
    q: Value
    cache: Cache
    how: KeyIndex
    r: Value  # [T, H · N]
    makes: ClassVar = ("r",)
    state_outputs = ("cache",)


@dataclass(frozen=True)
class ChooseKeys(Op):
    """The positions with the largest scores for each row, or for each head of a row, ascending"""

    r: Value
    weights: Value | None  # [T, H]
    cache: Cache
    how: KeyIndex
    y: Value  # [T, lists, W]
    state_inputs = ("cache",)


@dataclass(frozen=True)
class TurnHeads(Op):
    """x, the last dims of each head rotated by the row's position, or back by it"""

    x: Value
    heads: int
    rope: Rope
    cache: Cache  # whose pages define the position of each row
    y: Value
    back: bool = False


@dataclass(frozen=True)
class WriteEntries(Op):
    """Writes the rows that complete an entry to their pages, their last dims rotated by the entry's first position"""

    x: Value
    cache: Cache
    rope: Rope | None
    state_outputs = ("cache",)


@dataclass(frozen=True)
class Compress(Op):
    """The weighted mean of the rows of a block, and of the block before, for rows that complete one"""

    cache: Cache
    bias: Weight
    ratio: int
    y: Value
    state_inputs = ("cache",)
    named_by = "bias"


@dataclass(frozen=True)
class AttendEntries(Op):
    """Attention of every row over a window, and over complete entries, or those chosen for it"""

    q: Value
    cache: Cache
    entries: Cache | None
    how: Attention
    y: Value
    chosen: Value | None = None  # numbers of entries, [T, count]

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return (self.cache, self.entries) if self.entries else (self.cache,)


@dataclass(frozen=True)
class HeadLinear(Op):
    """y[t, h] = W_h x[t, h, :K]"""

    x: Value
    weight: Weight  # [H, M, K]
    y: Value
    reduces_runs: bool = False  # whether it reduces the runs of latent attention
    quantises: Quantised | None = None  # y as integers or float16, written in addition
    fuses: ClassVar = {"reduces_runs": "runs", "quantises": "quantise"}
