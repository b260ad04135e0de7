"""State space recurrences in numpy, and the distribution of Mamba-2's over lanes."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gpu.device import Capabilities
from .graph import StepShape
from .target import Target
from .values import Value

Array = npt.NDArray[Any]

LANES_PER_ROW = 4  # maximum per row of a state; at batch 16, 4 with 64 rows is 1 to 4% faster than 8 with 32
MAX_ROWS = 64  # maximum rows per workgroup: its lanes are then the guaranteed max_invocations
BLOCK_FLOATS = 3072  # floats of workgroup memory for a block of tokens: 12 of the guaranteed 16 KiB
MAX_TOKENS = 16  # maximum tokens of a block


@dataclass(frozen=True)
class ChunksOnMatrixUnits:
    """Sizes of Mamba-2 prompts on matrix units: a workgroup has 4 fragments of tokens and 2 of rows of S."""

    heads: int
    size: int  # P
    columns: int  # N
    groups: int
    side: int  # side of a fragment
    lanes: int  # lanes of a subgroup

    @property
    def tokens(self) -> int:
        """Tokens of a chunk."""
        return 4 * self.side

    @property
    def share(self) -> int:
        """Lanes that share a row of B or C."""
        return math.gcd(self.columns // 4, min(16, self.lanes))

    @property
    def workgroup_bytes(self) -> int:
        """Bytes of workgroup memory of the kernel that needs the most."""
        side, tokens, apart = self.side, self.tokens, self.columns + 8
        tiles = 2 * (2 * side * apart + tokens * (4 * side + 8) + 2 * tokens * (2 * side + 8))
        return max(tiles + 32 * side**2 + 12 * tokens + 64, 2 * 5 * side * apart + 64)

    def fits(self, can: Capabilities) -> bool:
        """True if fragments and lanes divide its sizes, and a device has the lanes and the memory."""
        side, lanes = self.side, self.lanes
        whole = not (self.columns % (4 * side) or self.size % (2 * side) or side**2 % (4 * lanes))
        rows = not 5 * side % (4 * lanes // self.share)
        held = 8 * lanes <= can.max_invocations and self.workgroup_bytes <= can.max_workgroup_memory
        return whole and rows and 8 * lanes >= self.tokens and held

    def slots(self, shape: StepShape) -> int:
        """The maximum number of chunks of a step: every sequence may end with a partial one."""
        return shape.rows // self.tokens + shape.max_segments

    def scratch(self, shape: StepShape) -> tuple[Value, Value]:
        """B and C of all chunks as float16; their products, and the powers of two of their rows."""
        count = self.slots(shape) * self.groups
        halves = count * 2 * self.tokens * self.columns * 2
        floats = count * (self.tokens**2 + 2 * self.tokens) * 4
        halved, floated = ((shape.rows, -(-nbytes // (4 * shape.rows))) for nbytes in (halves, floats))
        return Value(halved, size=halves), Value(floated, size=floats)


def softplus(x: Array) -> Array:
    """log(1 + exp(x)); x itself above 20, where float32 has no difference"""
    y: Array = np.where(x > 20, x, np.log1p(np.exp(np.minimum(x, np.float32(20)))))
    return y


def recur_heads(s: Array, x: Array, b: Array, c: Array, dt: Array, a: Array) -> Array:
    """y[t] = S C[t] after S = S exp(dt[t] A) + dt[t] x[t] B[t]ᵀ, by head; S [H, P, N] is changed in place."""
    y = np.empty_like(x)  # [T, H, P]
    decay = np.exp(dt * a)  # [T, H]
    scaled = dt[..., None] * x
    for t in range(len(x)):
        s[:] = s * decay[t, :, None, None] + scaled[t, :, :, None] * b[t, :, None, :]
        y[t] = (s @ c[t, :, :, None])[..., 0]
    return y


def recur_channels(s: Array, x: Array, b: Array, c: Array, dt: Array, a: Array) -> Array:
    """y[t] = S · C[t] after S = S exp(dt[t] A) + dt[t] x[t] B[t], by channel; S [D, N] is changed in place."""
    y = np.empty_like(x)  # [T, D]
    scaled = dt * x
    for t in range(len(x)):
        s[:] = s * np.exp(dt[t, :, None] * a) + scaled[t, :, None] * b[t]
        y[t] = s @ c[t]
    return y


def lanes_and_rows(size: int, columns: int, target: Target) -> tuple[int, int, int]:
    """Lanes per row of a state [size, columns], rows per workgroup, and the unrolling of a lane's columns.

    A workgroup has many rows, as each workgroup recomputes B and C.
    """
    fours = columns // 4
    lanes_per_row = math.gcd(fours, min(LANES_PER_ROW, target.can.subgroup_width))
    return lanes_per_row, math.gcd(size, MAX_ROWS), math.gcd(fours // lanes_per_row, 4)
