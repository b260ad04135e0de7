"""The second halves of LoRAs that a time mix of few rows computes itself: which, and where its kernel finds them."""

import itertools
from collections.abc import Mapping
from dataclasses import dataclass

from ..gpu.plan import Slice
from ..gpu.shader import Constant
from ..gpu.weights import Shard, Weights
from .linear import Asked, HeldProducts
from .values import Operand, Value, Vectors
from .vocabulary import NUMBER, NUMBERS, Weight

FOURS = {"F32": 1, "F16": 2, "BF16": 2}  # of weights in 16 bytes, in the formats that the kernel reads
CHANNELS = 4  # w, a, gate and v_gate
LOADS = 24 * 512  # of 16 bytes by a workgroup at once: more do not stay in registers


@dataclass(frozen=True)
class Late:
    """Products that were held back, by what a channel needs: w, a, gate, v_gate."""

    held: HeldProducts
    asked: tuple[Asked | None, ...]
    shards: tuple[Shard | None, ...]
    fours: int

    @classmethod
    def of(cls, held: HeldProducts, values: tuple[Value | None, ...], weights: Weights) -> "Late | None":
        """Where one kernel can compute all these values, and nobody asked for more."""
        found = dict(zip(held.ys, held.asked, strict=True))
        given = [value for value in values if value is not None]
        if set(given) != found.keys() or len(given) != len(found):
            return None
        asked = tuple(found[value] if value is not None else None for value in values)
        stored = [weights[one.weight.name] for one in asked if one]
        if stored[0].format.name not in FOURS or any(one and one.weight.shape[1] % 4 for one in asked):
            return None
        shards = tuple(weights[one.weight.name].shards[0] if one else None for one in asked)
        return cls(held, asked, shards, FOURS[stored[0].format.name])

    @property
    def ranks(self) -> tuple[int, ...]:
        """Of each matrix, 0 where there is none."""
        return tuple(one.weight.shape[1] if one else 0 for one in self.asked)

    @property
    def pieces(self) -> tuple[int, ...]:
        """Pieces of 16 bytes in a row of each, which is stored in runs of 32 weights."""
        return tuple(-(-rank // 32) * 8 // self.fours for rank in self.ranks)

    def turns(self, lanes_per_row: int) -> int:
        """How often lanes that share rows load 16 bytes, for all matrices."""
        return sum(-(-pieces // lanes_per_row) for pieces in self.pieces)

    def constants(self, lanes_per_row: int) -> dict[str, Constant]:
        """What the kernel is specialised by."""
        start = self._bound.offset
        first = itertools.accumulate((-(-pieces // lanes_per_row) for pieces in self.pieces[:-1]), initial=0)
        where = (s.moved((s.slice.offset - start) // 16).planes[0] if s else 0 for s in self.shards)
        own: dict[str, Constant] = {
            "TURNS": self.turns(lanes_per_row), "FIRST": tuple(first),
            "RANKS": self.ranks, "PIECES": self.pieces, "WHERE": tuple(where),
            "LOWS": tuple(one.x.offset // 16 if one else 0 for one in self.asked),
            "THEN": tuple(NUMBER[one.then] if one else 0 for one in self.asked),
        }  # fmt: skip
        return own | NUMBERS

    @property
    def parts(self) -> tuple[str, ...]:
        """What the kernel links."""
        shard = next(shard for shard in self.shards if shard)
        four = {1: "rwkv/decode/f32_weights", 2: "rwkv/decode/f16_weights"}[self.fours]
        return (*shard.parts, "rwkv/decode/lora_gates", four, "lib/activation")

    def operands(self, vectors: Weight, width: int) -> Mapping[str, Operand]:
        """What it binds; behind the other vectors stand the biases, zeros where there is none."""
        biases = tuple(one.bias.name if one and one.bias else None for one in self.asked)
        return {
            "lora_inputs": self.held.asked[0].x.root,
            "w": self._bound,
            "vectors": Vectors((vectors.name, *biases), (5 * width, *[width] * CHANNELS)),
        }

    @property
    def nbytes(self) -> int:
        """Of the matrices."""
        return sum(shard.slice.nbytes for shard in self.shards if shard)

    @property
    def _bound(self) -> Slice:
        """What holds all matrices."""
        slices = [shard.slice for shard in self.shards if shard]
        start = min(one.offset for one in slices)
        return Slice(slices[0].buffer, start, max(one.offset + one.nbytes for one in slices) - start)
