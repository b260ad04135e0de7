"""The distribution of the RWKV-7 recurrence over lanes, and the choice of its kernel."""

import itertools
from dataclasses import dataclass

from ..gpu.plan import Slice
from ..gpu.weights import Shard
from .graph import StepShape
from .nodes import Gemm, Product, TimeMix
from .target import Target
from .values import Value

TILES = 4  # vec4s that a lane holds of each of its rows of the state, if subgroups can sum over lanes
LANES = 256  # lanes of a workgroup that any device can run
FLOATS_IN_16_BYTES = {"F32": 1, "F16": 2, "BF16": 2}  # vec4s of weights in 16 bytes, by format that the time mix reads


def takes_one_row(op: TimeMix, shape: StepShape, target: Target) -> bool:
    """True if the kernel for one row per sequence computes a time mix; that kernel includes the norm."""
    return shape.row_each and target.tuning.recurrence.state_lanes_per_row > 0 and op.normed


def prompt_lanes(head_size: int, target: Target) -> tuple[int, int]:
    """Lanes per row of the state, and rows per lane, for steps with many rows per sequence."""
    if target.tuning.lanes.reduce == "workgroup":
        return 1, 1
    most = head_size // (4 * TILES)
    split = min(most & -most, target.can.subgroup_width)  # a power of two
    # On software devices loads are the main cost, and the rows of a lane share them.
    many = target.tuning.lanes.reduce == "one_subgroup" or head_size * split > LANES
    return split, 4 if many else 1


def decode_lanes(head_size: int, target: Target) -> tuple[int, int]:
    """Lanes and rows for decoding; the lanes of a row of the state also compute its channel."""
    fours = head_size // 4  # divided equally among lanes
    lanes_per_row = min(target.tuning.recurrence.state_lanes_per_row, target.can.subgroup_width, fours & -fours)
    rows = target.tuning.recurrence.state_rows_per_lane
    while head_size // rows * lanes_per_row > target.can.max_invocations:
        rows *= 2
    return lanes_per_row, rows


@dataclass(frozen=True)
class FusedLora:
    """The second halves of LoRAs fused into a time mix: for w, a, the gate and the gate of v, if present."""

    products: tuple[Product | None, ...]
    shards: tuple[Shard | None, ...]
    fours: int  # vec4s of weights in 16 bytes

    @classmethod
    def of(cls, op: TimeMix, lora: Gemm, target: Target) -> "FusedLora":
        """Describes the product that computes inputs of a time mix."""
        made: dict[Value | None, Product] = {one.y: one for one in lora.products}
        products = tuple(made.get(gate) for gate in op.gates)
        shards = tuple(target.weights[one.weight.name].shards[0] if one else None for one in products)
        stored = target.weights[lora.products[0].weight.name]
        return cls(products, shards, FLOATS_IN_16_BYTES[stored.format.name])

    @property
    def ranks(self) -> tuple[int, ...]:
        """The number of columns of each matrix; 0 if it is absent."""
        return tuple(one.weight.shape[1] if one else 0 for one in self.products)

    @property
    def pieces(self) -> tuple[int, ...]:
        """The number of 16-byte pieces in a row of each matrix, which is stored in runs of 32 weights."""
        return tuple(-(-rank // 32) * 8 // self.fours for rank in self.ranks)

    def loads(self, lanes_per_row: int) -> int:
        """The number of 16-byte loads per lane over all matrices, given the lanes per row."""
        return sum(-(-pieces // lanes_per_row) for pieces in self.pieces)

    def first_loads(self, lanes_per_row: int) -> tuple[int, ...]:
        """The index of the first load for each matrix."""
        return tuple(itertools.accumulate((-(-pieces // lanes_per_row) for pieces in self.pieces[:-1]), initial=0))

    @property
    def slice(self) -> Slice:
        """The binding that holds all matrices."""
        slices = [shard.slice for shard in self.shards if shard]
        start = min(one.offset for one in slices)
        return Slice(slices[0].buffer, start, max(one.offset + one.nbytes for one in slices) - start)

    @property
    def nbytes(self) -> int:
        """Bytes of the matrices."""
        return sum(shard.slice.nbytes for shard in self.shards if shard)
