"""State space recurrences in numpy, by sequence, and how Mamba-2's is spread over lanes."""

import math
from typing import Any

import numpy as np
import numpy.typing as npt

from .target import Target

Array = npt.NDArray[Any]

LANES_PER_ROW = 8  # of a state, at most: eight lanes read 128 bytes side by side
MOST_ROWS = 32  # of a workgroup, which then has as many lanes as any device can run
BLOCK_FLOATS = 3072  # of workgroup memory, for a block of tokens: 12 of the 16 KiB that any device has
MOST_TOKENS = 16  # of a block


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


def spread(size: int, columns: int, target: Target) -> tuple[int, int, int]:
    """Lanes for a row of a state [size, columns], rows of a workgroup, and how far the columns of a lane are unrolled.

    Few rows in a workgroup give many workgroups, and a state is what decode reads most.
    """
    fours = columns // 4
    lanes_per_row = math.gcd(fours, min(LANES_PER_ROW, target.can.subgroup_width))
    return lanes_per_row, math.gcd(size, MOST_ROWS), math.gcd(fours // lanes_per_row, 4)
