"""Quantises float32 rows to blocks of a format. Each run of weights gets the scale with the smallest error.

Blocks have ggml's layout. `weights` states how much an error counts in each column, as in an imatrix.
"""

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, quants

from .formats import Format
from .quantise_codebooks import FORMS, TERNARY, TINY, Bytes, Floats, least, quantise_by_codebook

SEARCH = [
    *np.linspace(0.7, 1.15, 19, dtype=np.float32)
]  # scales to try, relative to the one at which the extreme weights are just in range
IQ4 = np.array([-127, -104, -83, -65, -49, -35, -22, -10, 1, 13, 25, 38, 53, 69, 89, 113], np.float32)
PLAIN = ("F32", "F16", "BF16", "Q8_0", "TQ1_0", "TQ2_0", "MXFP4")  # the largest weight determines the scale


def quantise_rows(fmt: Format, values: Floats, weights: Floats | None = None) -> Bytes:
    """Quantises [rows, width], with weights [width], to [rows, row_bytes]."""
    values = np.ascontiguousarray(values, np.float32)
    if fmt.name in PLAIN:
        raw = quants.quantize(values, GGMLQuantizationType(fmt.type))
        return np.ascontiguousarray(raw).view(np.uint8).reshape(len(values), -1)
    importance = np.ones(values.shape[1], np.float32) if weights is None else np.maximum(weights, TINY)
    importance = np.broadcast_to(importance, values.shape).reshape(-1, fmt.block)
    blocks = WRITERS[fmt.name](values.reshape(-1, fmt.block), np.ascontiguousarray(importance, np.float32))
    return blocks.reshape(len(values), -1)


def affine(x: Floats, w: Floats, top: int) -> tuple[Floats, Floats]:
    """Scales s and offsets m >= 0 of runs [R, n] with the least error of s q - m, for integers q from 0 to `top`."""
    low, high = np.minimum(x.min(1), 0), x.max(1)

    def tries() -> Iterator[tuple[Floats, Floats]]:
        for factor in SEARCH:
            s, m = np.maximum((high - low) / top * factor, TINY), -low
            for _ in range(2):
                q = np.clip(np.rint((x + m[:, None]) / s[:, None]), 0, top)
                s, m = _fitted(x, w, q, s)
            yield (w * (s[:, None] * q - m[:, None] - x) ** 2).sum(1), np.stack([s, m], axis=1)

    both = least(tries())
    return both[:, 0], both[:, 1]


def _fitted(x: Floats, w: Floats, q: Floats, s: Floats) -> tuple[Floats, Floats]:
    """The least squares of s q - m = x, with m no less than 0."""
    n, sq, sqq, sx, sxq = (part.sum(1) for part in (w, w * q, w * q * q, w * x, w * x * q))
    det = n * sqq - sq * sq
    fit_s = np.where(det > 0, (n * sxq - sq * sx) / np.maximum(det, TINY), s)
    fit_m = (fit_s * sq - sx) / n
    bare = fit_m < 0
    fit_s = np.where(bare, sxq / np.maximum(sqq, TINY), fit_s)
    good = fit_s > 0
    return np.where(good, fit_s, s), np.where(good, np.where(bare, 0, fit_m), -np.minimum(x.min(1), 0))


def symmetric(x: Floats, w: Floats, low: int) -> Floats:
    """Scales s of runs [R, n] with the least error of s q, for integers q from `low` to -low - 1. s may be negative."""
    ends = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)[:, 0]

    def nearest(s: Floats) -> Floats:
        return _whole(x, s[:, None], -low - 1, low)

    return _searched(x, w, ends / np.float32(low), nearest)


def _searched(
    x: Floats, w: Floats, start: Floats, nearest: Callable[[Floats], Floats], factors: Sequence[float] = SEARCH
) -> Floats:
    """The best of several scales around `start`. Each is fitted to the levels that are nearest at that scale."""

    def tries() -> Iterator[tuple[Floats, Floats]]:
        for factor in factors:
            q = nearest(start * factor)
            s = (w * x * q).sum(1) / np.maximum((w * q * q).sum(1), TINY)
            yield (w * (s[:, None] * q - x) ** 2).sum(1), s

    return least(tries())


def _whole(x: Floats, by: Floats, top: int, low: int = 0) -> Floats:
    by = np.broadcast_to(by, x.shape)
    return np.clip(np.rint(np.divide(x, by, out=np.zeros_like(x), where=by != 0)), low, top)


def _half(x: Floats) -> npt.NDArray[np.float16]:
    return np.clip(x, -65504, 65504).astype(np.float16)


def _joined(*parts: npt.NDArray[Any]) -> Bytes:
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=1)


def _nibbles(q: Bytes) -> Bytes:
    """Packs [blocks, 32] to [blocks, 16]: the first half in the low nibbles, the second in the high ones."""
    return np.asarray((q[:, :16] & 15) | (q[:, 16:] & 15) << 4, np.uint8)


def _fifth(q: Bytes) -> Bytes:
    return np.packbits(q >> 4, axis=1, bitorder="little")


def _four_or_five_0(x: Floats, w: Floats, bits: int) -> Bytes:
    """Q4_0, Q5_0: w = d · (q - middle)."""
    middle = 1 << (bits - 1)
    d = _half(symmetric(x, w, -middle)[:, None])
    q = (_whole(x, d.astype(np.float32), middle - 1, -middle) + middle).astype(np.uint8)
    return _joined(d, *([_fifth(q)] if bits == 5 else []), _nibbles(q))


def _four_or_five_1(x: Floats, w: Floats, bits: int) -> Bytes:
    """Q4_1, Q5_1: w = d · q + m. The offset may have either sign, so the run is shifted until its least weight is 0."""
    least = x.min(1, keepdims=True)
    s, m = affine(x - least, w, (1 << bits) - 1)
    d, offset = _half(s[:, None]), _half(least - m[:, None])
    q = _whole(x - offset.astype(np.float32), d.astype(np.float32), (1 << bits) - 1).astype(np.uint8)
    return _joined(d, offset, *([_fifth(q)] if bits == 5 else []), _nibbles(q))


def _affine_k(x: Floats, w: Floats, run: int, top: int, most: int) -> tuple[Any, ...]:
    """Quantises blocks of 256 in runs; scales and offsets are integer multiples of two float16 numbers, d and dmin.

    Returns d, dmin, scales, offsets and levels.
    """
    count = len(x)
    s, m = (part.reshape(count, -1) for part in affine(x.reshape(-1, run), w.reshape(-1, run), top))
    d, least = (_half(part.max(1, keepdims=True) / most) for part in (s, m))
    scales = _whole(s, d.astype(np.float32), most)
    offsets = _whole(m, least.astype(np.float32), most)
    step = (d.astype(np.float32) * scales)[:, :, None]
    shifted = x.reshape(count, -1, run) + (least.astype(np.float32) * offsets)[:, :, None]
    return d, least, scales.astype(np.uint8), offsets.astype(np.uint8), _whole(shifted, step, top).astype(np.uint8)


def _pairs(q: Bytes) -> Bytes:
    """Packs [blocks, 256] of 2 bits to [blocks, 64]: each 32 bytes hold four groups of 32, one per bit position."""
    shifts = (2 * np.arange(4, dtype=np.uint8))[:, None]
    return np.asarray(np.bitwise_or.reduce(q.reshape(-1, 2, 4, 32) << shifts, axis=2), np.uint8).reshape(-1, 64)


def _two_k(x: Floats, w: Floats) -> Bytes:
    """Q2_K: 16 runs of 16, scales and offsets of 4 bits."""
    d, least, scales, offsets, q = _affine_k(x, w, 16, 3, 15)
    return _joined(scales | offsets << 4, _pairs(q.reshape(-1, 256)), d, least)


def _four_or_five_k(x: Floats, w: Floats, bits: int) -> Bytes:
    """Q4_K and Q5_K: 8 runs of 32, w = d · scale · q - least · offset."""
    d, least, scales, offsets, q = _affine_k(x, w, 32, (1 << bits) - 1, 63)
    nibbles = ((q[:, 0::2] & 15) | ((q[:, 1::2] & 15) << 4)).reshape(-1, 128)
    high = np.bitwise_or.reduce((q >> 4) << np.arange(8, dtype=np.uint8)[:, None], axis=1)  # [count, 32]
    return _joined(d, least, _six_bits(scales, offsets), *([high] if bits == 5 else []), nibbles)


def _six_bits(scales: Bytes, offsets: Bytes) -> Bytes:
    """Eight scales and eight offsets of 6 bits in 12 bytes."""
    first = scales[:, :4] | (scales[:, 4:] >> 4 << 6)
    second = offsets[:, :4] | (offsets[:, 4:] >> 4 << 6)
    return np.concatenate([first, second, (scales[:, 4:] & 15) | (offsets[:, 4:] & 15) << 4], axis=1)


def _symmetric_k(x: Floats, w: Floats, low: int, most: int) -> tuple[Any, Any, Any]:
    """Quantises 16 runs of 16, whose scales are integer multiples of a float16 d. Returns d, scales and levels."""
    count = len(x)
    s = symmetric(x.reshape(-1, 16), w.reshape(-1, 16), low).reshape(count, 16)
    d = _half(np.abs(s).max(1, keepdims=True) / (most - 1))
    scales = _whole(s, d.astype(np.float32), most - 1, -most)
    step = (d.astype(np.float32) * scales)[:, :, None]
    q = _whole(x.reshape(count, 16, 16), step, -low - 1, low) - low
    return d, scales.astype(np.int8), q.astype(np.uint8).reshape(count, 256)


def _three_k(x: Floats, w: Floats) -> Bytes:
    """Q3_K: w = d · (scale - 32) · (q - 4)."""
    d, scales, q = _symmetric_k(x, w, -4, 32)
    high = np.bitwise_or.reduce((q.reshape(-1, 8, 32) >> 2) << np.arange(8, dtype=np.uint8)[:, None], axis=1)
    six = (scales + 32).astype(np.uint8)
    low4 = (six[:, :8] & 15) | (six[:, 8:] & 15) << 4
    top2 = np.bitwise_or.reduce((six.reshape(-1, 4, 4) >> 4) << (2 * np.arange(4, dtype=np.uint8))[:, None], axis=1)
    return _joined(high, _pairs(q & 3), low4, top2, d)


def _six_k(x: Floats, w: Floats) -> Bytes:
    """Q6_K: w = d · scale · (q - 32)."""
    d, scales, q = _symmetric_k(x, w, -32, 128)
    parts = q.reshape(-1, 2, 4, 32)
    low = (parts[:, :, :2] & 15) | (parts[:, :, 2:] & 15) << 4
    high = np.bitwise_or.reduce(parts >> 4 << (2 * np.arange(4, dtype=np.uint8))[:, None], axis=2)
    return _joined(low.reshape(-1, 128), high.reshape(-1, 64), scales, d)


def _levels(x: Floats, s: Floats) -> npt.NDArray[np.intp]:
    """The nearest of the sixteen values of IQ4 for each weight, by scales [R]."""
    by = np.where(s == 0, 1, s)[:, None]
    return np.searchsorted((IQ4[1:] + IQ4[:-1]) / 2, x / by)


def _iq4_scales(x: Floats, w: Floats) -> Floats:
    ends = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)[:, 0]
    return _searched(x, w, ends / IQ4[0], lambda s: IQ4[_levels(x, s)])


def _iq4_nl(x: Floats, w: Floats) -> Bytes:
    """IQ4_NL: w = d · value."""
    d = _half(_iq4_scales(x, w)[:, None])
    return _joined(d, _nibbles(_levels(x, d[:, 0].astype(np.float32)).astype(np.uint8)))


def _iq4_xs(x: Floats, w: Floats) -> Bytes:
    """IQ4_XS: 8 runs of 32, w = d · (scale - 32) · value."""
    count = len(x)
    runs = x.reshape(-1, 32)
    s = _iq4_scales(runs, w.reshape(-1, 32)).reshape(count, 8)
    d = _half(np.abs(s).max(1, keepdims=True) / 31)
    scales = _whole(s, d.astype(np.float32), 31, -32)
    levels = _levels(runs, (d.astype(np.float32) * scales).reshape(-1)).astype(np.uint8)
    six = (scales + 32).astype(np.uint8)
    high = ((six >> 4).astype(np.uint16) << (2 * np.arange(8, dtype=np.uint16))).sum(1, dtype=np.uint16)[:, None]
    return _joined(d, high, six[:, 0::2] & 15 | (six[:, 1::2] & 15) << 4, _nibbles(levels).reshape(count, 128))


def _signs(x: Floats, w: Floats) -> Bytes:
    """Q1_0: d where a bit is set, else -d."""
    d = _half((w * np.abs(x)).sum(1, keepdims=True) / w.sum(1, keepdims=True))
    return _joined(d, np.packbits(x >= 0, axis=1, bitorder="little"))


def _two_0(x: Floats, w: Floats) -> Bytes:
    """Q2_0: w = d · (n - 1). Tries scales at which the largest weight is 2 d, and, for models with three levels, d."""
    largest = np.take_along_axis(x, np.abs(x).argmax(1)[:, None], 1)[:, 0]
    ternary = [2 * factor for factor in SEARCH]
    s = _searched(x, w, largest / np.float32(2), lambda s: _whole(x, s[:, None], 2, -1), [*SEARCH, *ternary])
    d = _half(s[:, None])
    n = _whole(x, d.astype(np.float32), 2, -1).astype(np.int8) + 1
    shifts = np.arange(0, 8, 2, dtype=np.uint8)
    return _joined(d, np.bitwise_or.reduce(n.astype(np.uint8).reshape(len(x), -1, 4) << shifts, axis=2))


E2M1 = np.array([0, 1, 2, 3, 4, 6, 8, 12], np.float32)  # magnitudes of 4-bit floats, doubled; without the sign bit
LARGEST_SCALE = 126  # largest scale byte that is a number
SCALES_AROUND = range(-6, 7)  # bytes to try, relative to the one at which the largest weight is just in range


def _nvfp4(x: Floats, w: Floats) -> Bytes:
    """NVFP4: 4 runs of 16. The scale of each is a float of 8 bits, 3 of them mantissa."""
    known = quants.NVFP4.ue4m3_to_fp32(np.arange(LARGEST_SCALE + 1)).astype(np.float32)
    x, w = x.reshape(-1, 16), w.reshape(-1, 16)
    start = np.searchsorted(known, np.abs(x).max(1) / E2M1[-1])

    def tries() -> Iterator[tuple[Floats, Bytes]]:
        for more in SCALES_AROUND:
            scale = np.clip(start + more, 0, LARGEST_SCALE)
            by = known[scale][:, None]
            yield (w * (by * E2M1[_sizes(x, by)] - np.abs(x)) ** 2).sum(1), scale.astype(np.uint8)

    best_scale = least(tries())
    codes = _sizes(x, known[best_scale][:, None]).astype(np.uint8)
    codes |= np.where((x < 0) & (codes > 0), 8, 0).astype(np.uint8)
    return _joined(best_scale.reshape(-1, 4), (codes[:, :8] | codes[:, 8:] << 4).reshape(-1, 32))


def _sizes(x: Floats, by: Floats) -> npt.NDArray[np.intp]:
    """The nearest magnitude of a 4-bit float for each weight."""
    return np.searchsorted((E2M1[1:] + E2M1[:-1]) / 2, np.abs(x) / np.where(by == 0, 1, by))


WRITERS: dict[str, Callable[[Floats, Floats], Bytes]] = {
    "Q4_0": lambda x, w: _four_or_five_0(x, w, 4),
    "Q5_0": lambda x, w: _four_or_five_0(x, w, 5),
    "Q4_1": lambda x, w: _four_or_five_1(x, w, 4),
    "Q5_1": lambda x, w: _four_or_five_1(x, w, 5),
    "Q2_K": _two_k,
    "Q3_K": _three_k,
    "Q4_K": lambda x, w: _four_or_five_k(x, w, 4),
    "Q5_K": lambda x, w: _four_or_five_k(x, w, 5),
    "Q6_K": _six_k,
    "IQ4_NL": _iq4_nl,
    "IQ4_XS": _iq4_xs,
    "Q1_0": _signs,
    "Q2_0": _two_0,
    "NVFP4": _nvfp4,
    **{name: partial(quantise_by_codebook, name) for name in (*FORMS, *TERNARY)},
}
