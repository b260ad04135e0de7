"""Attention over pages."""

from dataclasses import dataclass
from typing import ClassVar

from ..graph import Op
from ..values import Quantised, Value
from ..vocabulary import Attention, Cache, LatentAttention, Rms, State, Weight


@dataclass(frozen=True)
class Attend(Op):
    """Every row's look back over the pages of its sequence, which hold its own k and v then, too"""

    qkv: Value  # a stack of the three; q alone where the cache is only read
    cache: Cache
    how: Attention
    y: Value
    cached: bool = False  # whether the rows lie in the cache already
    whole_norms: tuple[Rms, Rms] | None = None  # of q and of k, each over all its heads
    gate: Value | None = None  # that the answer is multiplied by
    quantises: Quantised | None = None  # what it writes beside y
    fuses: ClassVar = {"whole_norms": "norm", "gate": "gate", "quantises": "quantise"}

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return (self.cache,)

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        return () if self.cached else (self.cache,)


@dataclass(frozen=True)
class WriteLatent(Op):
    """Latents of the rows, normed, to their pages, and the last dims of queries, rotated"""

    z: Value
    q_rope: Value
    cache: Cache
    how: LatentAttention
    r: Value  # [T, H · R]
    merges: bool = False  # with the product of heads before it
    fuses: ClassVar = {"merges": "merge"}
    makes: ClassVar = ("r",)

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        return (self.cache,)


@dataclass(frozen=True)
class AttendLatent(Op):
    """Every row's look back over the latents of its sequence, its own among them"""

    q: Value
    r: Value
    cache: Cache
    how: LatentAttention
    y: Value
    leaves_runs: bool = False  # where the context is cut into some; who reads y then joins them

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return (self.cache,)


@dataclass(frozen=True)
class HeadLinear(Op):
    """y[t, h] = W_h x[t, h, :K]"""

    x: Value
    weight: Weight  # [H, M, K]
    y: Value
    joins_runs: bool = False  # that attention over latents has left
    quantises: Quantised | None = None  # what it writes beside y
    fuses: ClassVar = {"joins_runs": "runs", "quantises": "quantise"}
