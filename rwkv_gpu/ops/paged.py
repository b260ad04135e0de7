"""Attention over a whole sequence and rotary positions in numpy: the reference for the paged kernels."""

from typing import Any

import numpy as np
import numpy.typing as npt

from .vocabulary import PAGE, Attention, LateTemperature, Pairing, Rope, Temperature, Weight

Array = npt.NDArray[Any]
MAX_DISTANCE = 128  # positions between query and key from which all biases of relative positions are the same


def rotate(x: Array, rope: Rope, positions: Array, factors: Array | None) -> Array:
    """Rotates heads [T, H, N] to their positions. Angles are float64, as float32 is inexact at large positions."""
    angles = positions[:, None].astype(np.float64) * np.array(rope.frequencies())
    if factors is not None:
        angles = angles / factors
    cos, sin = ((f(angles) * rope.magnitude).astype(np.float32)[:, None] for f in (np.cos, np.sin))  # [T, 1, dims / 2]
    return turn_pairs(x, cos, sin, rope.pairing)


def turn_pairs(x: Array, cos: Array, sin: Array, pairing: Pairing) -> Array:
    """Rotates the pairs of heads [T, H, N]; cos and sin are [T, 1, R / 2]."""
    half = cos.shape[-1]
    pairs = (slice(0, 2 * half, 2), slice(1, 2 * half, 2))
    first, second = pairs if pairing == "normal" else (slice(0, half), slice(half, 2 * half))
    y: Array = x.astype(np.float32)
    y[..., first] = x[..., first] * cos - x[..., second] * sin
    y[..., second] = x[..., first] * sin + x[..., second] * cos
    return y


def factors_of(rope: Rope, context: int) -> Weight | None:
    """The divisors of the frequencies for a model opened with `context` positions."""
    return rope.long_factors if rope.long_factors and context > rope.short else rope.factors


def warmth(temperature: Temperature | LateTemperature, positions: Array) -> Array:
    """The factor that scales the queries at some positions, by the model's temperature."""
    if isinstance(temperature, LateTemperature):
        scales: Array = np.log(np.maximum(positions, temperature.start)) / np.log(temperature.start)
    else:
        times = (positions + temperature.shift) // temperature.period
        scales = 1 + temperature.scale * np.log(1.0 + times)
    return scales.astype(np.float32)


def largest_power(heads: int) -> int:
    """The largest power of 2 that is at most `n`."""
    return 1 << (heads.bit_length() - 1)


def slopes(alibi: float, heads: int) -> Array:
    """The ALiBi slope of each head, which is the penalty per position of distance.

    The first P heads, where P is the largest power of 2, have powers of 2^(-alibi / P); the slopes of the others lie
    between those.
    """
    power, head = largest_power(heads), np.arange(heads)
    return (2.0 ** (-alibi / power * np.where(head < power, head + 1, head - power + 0.5))).astype(np.float32)


def relative_biases(table: Array, heads: int, *, causal: bool = False) -> npt.NDArray[np.float32]:
    """Returns the biases of keys at all distances up to MAX_DISTANCE on both sides: [H, 2 · MAX_DISTANCE + 1].

    `table` has one bias for each bucket and head. A bucket stands for one distance or a range of distances. The first
    half of the buckets stand for one distance each. The others stand for ranges, which grow with the logarithm of the
    distance up to MAX_DISTANCE. Unless attention is causal, keys after the query have as many buckets of their own.
    """
    rows = table.reshape(-1, heads).astype(np.float32)
    side, relative = len(rows) // (1 if causal else 2), np.arange(-MAX_DISTANCE, MAX_DISTANCE + 1)
    exact, distances = side // 2, np.abs(relative)
    growth = np.log(np.maximum(distances, 1) / exact) / np.log(MAX_DISTANCE / exact)
    shared = exact + np.floor(growth * (side - exact) + 1e-6).astype(np.int64)  # float64 may miss a whole number
    buckets = np.where(distances < exact, distances, np.minimum(shared, side - 1))
    if not causal:
        buckets += side * (relative > 0)
    return np.ascontiguousarray(rows[buckets].T)


def attend(
    q: Array,
    keys: Array,
    values: Array,
    how: Attention | None,
    sinks: Array | None = None,
    bounds: Array | None = None,
    biases: Array | None = None,
) -> Array:
    """Attention of the last n positions of a sequence: q [n, H, N], keys [L, KV, N], values [L, KV, V]: [n, H, V]

    `bounds` is the input that `how.limits` names, and `biases` what `relative_biases` returns.
    """
    count, heads, size = q.shape
    kv, past = keys.shape[1], len(keys)
    grouped = q.reshape(count, kv, heads // kv, size).transpose(1, 2, 0, 3)  # [KV, H / KV, n, N]
    scores = grouped @ keys.transpose(1, 2, 0)[:, None]  # [KV, H / KV, n, L]
    here = np.arange(past - count, past)[:, None]
    if how and how.ahead:
        seen = (np.arange(past) > here - (how.window or past)) & (
            np.arange(past) < (past if bounds is None else bounds)
        )
    elif bounds is not None:
        seen = (np.arange(past) >= bounds[:, :1]) & (np.arange(past) < bounds[:, 1:])
    elif how is None or how.causal:
        seen = np.arange(past) <= here
        if how and how.window:
            seen &= np.arange(past) > here - how.window
    else:
        seen = np.abs(np.arange(past) - here) <= (how.window // 2 or past)
    if how and how.after_first:
        seen &= np.arange(past) >= np.minimum(here, 1)
    if how and how.chunk:
        seen &= np.arange(past) >= here // how.chunk * how.chunk
    if how and how.softcap:
        scores = np.float32(how.softcap) * np.tanh(scores / np.float32(how.softcap))
    if how and how.alibi:
        distances = np.abs(here - np.arange(past)).astype(np.float32)
        scores = scores - slopes(how.alibi, heads).reshape(kv, -1)[:, :, None, None] * distances
    if biases is not None:
        relative = np.clip(np.arange(past) - here, -MAX_DISTANCE, MAX_DISTANCE) + MAX_DISTANCE
        scores = scores + biases[:, relative].reshape(kv, -1, count, past)
    scores = np.where(seen, scores, np.float32(-np.inf))
    top = scores.max(axis=-1, keepdims=True)
    p = np.exp(scores - top)
    total = p.sum(axis=-1, keepdims=True)
    if sinks is not None:
        with np.errstate(over="ignore"):
            total = total + np.exp(sinks.reshape(kv, -1)[:, :, None, None] - top)
    y: Array = (p / total) @ values.transpose(1, 0, 2)[:, None]
    return y.transpose(2, 0, 1, 3).reshape(count, heads, values.shape[-1])


def rope_table(rope: Rope, pages: int, factors: Array | None) -> npt.NDArray[np.float32]:
    """(cos, sin) of each pair at the first PAGE positions, then of each page's first: [PAGE + pages, dims / 2, 2]

    The rotation of a position is the product of its two rows. It is exact at large positions, unlike a GPU's sine.
    """
    positions = np.concatenate([np.arange(PAGE), np.arange(pages) * PAGE])
    angles = positions[:, None] * np.array(rope.frequencies())
    if factors is not None:
        angles = angles / factors
    table = np.stack([np.cos(angles), np.sin(angles)], axis=-1)
    table[:PAGE] *= rope.magnitude
    return table.astype(np.float32)
