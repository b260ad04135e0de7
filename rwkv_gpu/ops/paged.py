"""Attention over a whole sequence, and how its positions turn, in numpy: the meaning of the paged kernels."""

from typing import Any

import numpy as np
import numpy.typing as npt

from .vocabulary import PAGE, Rope

Array = npt.NDArray[Any]


def rotate(x: Array, rope: Rope, positions: Array, factors: Array | None) -> Array:
    """Heads [T, H, N] turned to their positions; angles are float64, as float32 loses them far out."""
    half = rope.dims // 2
    angles = positions[:, None].astype(np.float64) * np.array(rope.frequencies())
    if factors is not None:
        angles = angles / factors
    cos, sin = ((f(angles) * rope.magnitude).astype(np.float32)[:, None] for f in (np.cos, np.sin))  # [T, 1, dims / 2]
    pairs = (slice(0, rope.dims, 2), slice(1, rope.dims, 2))
    first, second = pairs if rope.pairing == "normal" else (slice(0, half), slice(half, rope.dims))
    y: Array = x.astype(np.float32)
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y


def attend(q: Array, keys: Array, values: Array, window: int) -> Array:
    """The last n positions of a sequence over all of it: q [n, H, N], keys [L, KV, N], values [L, KV, V]: [n, H, V]"""
    count, heads, size = q.shape
    kv, past = keys.shape[1], len(keys)
    grouped = q.reshape(count, kv, heads // kv, size).transpose(1, 2, 0, 3)  # [KV, H / KV, n, N]
    scores = grouped @ keys.transpose(1, 2, 0)[:, None]  # [KV, H / KV, n, L]
    here = np.arange(past - count, past)[:, None]
    seen = np.arange(past) <= here
    if window:
        seen &= np.arange(past) > here - window
    scores = np.where(seen, scores, np.float32(-np.inf))
    p = np.exp(scores - scores.max(axis=-1, keepdims=True))
    y: Array = (p / p.sum(axis=-1, keepdims=True)) @ values.transpose(1, 0, 2)[:, None]
    return y.transpose(2, 0, 1, 3).reshape(count, heads, values.shape[-1])


def rope_table(rope: Rope, pages: int, factors: Array | None) -> npt.NDArray[np.float32]:
    """(cos, sin) of each pair at the first PAGE positions, then of each page's first: [PAGE + pages, dims / 2, 2]

    The turn of a position is the product of its two rows, exact far out, where a GPU's own sine is not.
    """
    positions = np.concatenate([np.arange(PAGE), np.arange(pages) * PAGE])
    angles = positions[:, None] * np.array(rope.frequencies())
    if factors is not None:
        angles = angles / factors
    table = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    table[:PAGE] *= rope.magnitude
    return table.astype(np.float32)
