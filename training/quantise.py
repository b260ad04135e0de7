"""K-quants: float32 rows to the blocks of Q4_K, Q5_K and Q6_K, each run of weights by the scale that errs least.

The blocks are laid out as ggml has it: 256 weights, whose runs have scales of 6 or 8 bits by one scale in float16.
"""

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type

Array = np.ndarray
SEARCH = np.linspace(0.7, 1.15, 19, dtype=np.float32)  # scales to try, by the one that just reaches the ends


def quantise(values: Array, kind: str) -> Array:
    """Rows in a format, as bytes; what gguf can write itself it writes."""
    if kind in ("F32", "F16"):
        return values.astype(np.float32 if kind == "F32" else np.float16)
    if kind not in KINDS:
        return gguf.quants.quantize(values, Type[kind])
    blocks = KINDS[kind](np.ascontiguousarray(values, np.float32).reshape(-1, 256))
    return blocks.reshape(*values.shape[:-1], -1)


def ranges(x: Array, top: int) -> tuple[Array, Array]:
    """Scales s and offsets m >= 0 of runs [R, n] such that s q - m errs least for some whole q from 0 to `top`."""
    low, high = np.minimum(x.min(1), 0), x.max(1)
    best_s, best_m = np.zeros_like(low), -low
    best = np.full(len(x), np.inf, np.float32)
    for factor in SEARCH:
        s, m = np.maximum((high - low) / top * factor, 1e-12), -low
        for _ in range(2):
            q = np.clip(np.rint((x + m[:, None]) / s[:, None]), 0, top)
            s, m = _fitted(x, q, s)
        error = ((s[:, None] * q - m[:, None] - x) ** 2).sum(1)
        better = error < best
        best, best_s, best_m = (np.where(better, new, old) for new, old in ((error, best), (s, best_s), (m, best_m)))
    return best_s, best_m


def _fitted(x: Array, q: Array, s: Array) -> tuple[Array, Array]:
    """The least squares of s q - m = x, with m no less than 0."""
    n, sq, sqq, sx, sxq = x.shape[1], q.sum(1), (q * q).sum(1), x.sum(1), (x * q).sum(1)
    det = n * sqq - sq * sq
    fit_s = np.where(det > 0, (n * sxq - sq * sx) / np.maximum(det, 1e-12), s)
    fit_m = (fit_s * sq - sx) / n
    bare = fit_m < 0
    fit_s = np.where(bare, sxq / np.maximum(sqq, 1e-12), fit_s)
    good = fit_s > 0
    return np.where(good, fit_s, s), np.where(good, np.where(bare, 0, fit_m), -np.minimum(x.min(1), 0))


def _whole(x: Array, by: Array, top: int, low: int = 0) -> Array:
    return np.clip(np.rint(np.divide(x, by, out=np.zeros_like(x), where=by != 0)), low, top)


def _four_or_five(x: Array, bits: int) -> Array:
    """Q4_K and Q5_K: 8 runs of 32, w = d · scale · q - least · offset."""
    count, top = len(x), 2**bits - 1
    s, m = (part.reshape(count, 8) for part in ranges(x.reshape(-1, 32), top))
    d, least = ((part.max(1, keepdims=True) / 63).astype(np.float16) for part in (s, m))
    scales = _whole(s, d.astype(np.float32), 63).astype(np.uint8)
    offsets = _whole(m, least.astype(np.float32), 63).astype(np.uint8)
    step = (d.astype(np.float32) * scales)[:, :, None]
    shifted = x.reshape(count, 8, 32) + (least.astype(np.float32) * offsets)[:, :, None]
    q = _whole(shifted, np.broadcast_to(step, shifted.shape), top).astype(np.uint8)
    nibbles = (q[:, 0::2] & 15) | ((q[:, 1::2] & 15) << 4)  # [count, 4, 32]
    high = np.bitwise_or.reduce((q >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=1)  # [count, 32]
    parts = [d.view(np.uint8), least.view(np.uint8), _six_bits(scales, offsets)]
    parts += ([high] if bits == 5 else []) + [nibbles.reshape(count, 128)]
    return np.concatenate(parts, axis=1)


def _six_bits(scales: Array, offsets: Array) -> Array:
    """Eight scales and eight offsets of 6 bits in 12 bytes."""
    first = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    second = offsets[:, :4] | (offsets[:, 4:] >> 4 << 6)
    return np.concatenate([first, second, (scales[:, 4:] & 15) | (offsets[:, 4:] & 15) << 4], axis=1)


def _six(x: Array) -> Array:
    """Q6_K: 16 runs of 16, w = d · scale · (q - 32)."""
    count = len(x)
    runs = x.reshape(-1, 16)
    best_s, best = np.zeros(len(runs), np.float32), np.full(len(runs), np.inf, np.float32)
    ends = np.take_along_axis(runs, np.abs(runs).argmax(1)[:, None], 1)[:, 0]
    for factor in SEARCH:
        s = -ends / 32 * factor
        q = _whole(runs, np.broadcast_to(s[:, None], runs.shape), 31, -32)
        s = (runs * q).sum(1) / np.maximum((q * q).sum(1), 1e-12)
        error = ((s[:, None] * q - runs) ** 2).sum(1)
        better = error < best
        best_s, best = np.where(better, s, best_s), np.where(better, error, best)
    s = best_s.reshape(count, 16)
    d = (np.abs(s).max(1, keepdims=True) / 127).astype(np.float16)
    scales = _whole(s, d.astype(np.float32), 127, -128).astype(np.int8)
    step = (d.astype(np.float32) * scales)[:, :, None]
    rows = x.reshape(count, 16, 16)
    q = (_whole(rows, np.broadcast_to(step, rows.shape), 31, -32) + 32).astype(np.uint8).reshape(count, 2, 4, 32)
    low = (q[:, :, :2] & 15) | (q[:, :, 2:] & 15) << 4
    high = np.bitwise_or.reduce(q >> 4 << (2 * np.arange(4, dtype=np.uint8))[:, None], axis=2)
    parts = [low.reshape(count, 128), high.reshape(count, 64), scales.view(np.uint8), d.view(np.uint8)]
    return np.concatenate(parts, axis=1)


KINDS = {"Q4_K": lambda x: _four_or_five(x, 4), "Q5_K": lambda x: _four_or_five(x, 5), "Q6_K": _six}
