"""Float32 weights to blocks of IQ1: eight neighbours by the nearest entry of a codebook of -1, 0 and 1, moved by 1/8.

A run has a scale d · (2 k + 1), k of 3 bits, and all of it, or each eight in it, are moved up or down. Each scale is
searched for among several, each fitted to the entries that it makes the nearest. So is the step of scales of a block.
"""

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from .quantise_codebooks import AT_ONCE, TINY, Bytes, Codes, Entries, Floats, entries

SEARCH = [*np.linspace(0.8, 1.8, 6, dtype=np.float32)]  # scales to try, by the root of the mean square
STEPS = [
    *np.linspace(0.85, 1.05, 3, dtype=np.float32)
]  # of the step of scales, by the one that just reaches the largest
DELTA = np.float32(0.125)
LARGEST = 7  # of k


@dataclass(frozen=True)
class Form:
    """What differs between the formats."""

    run: int  # weights that share a scale
    moved: int  # those that are moved together


FORMS = {"IQ1_S": Form(32, 32), "IQ1_M": Form(16, 8)}


@dataclass(frozen=True)
class Chosen:
    """Entries for eights of runs [N, runs, eights, 8] at a scale."""

    codes: Codes  # [N, runs, eights]
    down: npt.NDArray[np.bool_]  # [N, runs, eights], whether they are moved down
    levels: Floats  # what they mean, without a scale


def quantise_ternary(name: str, x: Floats, w: Floats) -> Bytes:
    """Blocks [N, 256] with the weight of each error to blocks of a format."""
    parts = [_blocks(name, x[at : at + AT_ONCE], w[at : at + AT_ONCE]) for at in range(0, len(x), AT_ONCE)]
    return np.concatenate(parts)


def _blocks(name: str, x: Floats, w: Floats) -> Bytes:
    form, book, count = FORMS[name], entries("IQ1_S"), len(x)
    shape = count, 256 // form.run, form.run // 8, 8
    x, w = x.reshape(shape), w.reshape(shape)
    scales = _scales(book, form, x, w)
    largest = scales.max(1, keepdims=True)
    best, kept = np.full(count, np.inf, np.float32), None
    for factor in STEPS:
        step = np.maximum(largest / (2 * LARGEST + 1) * factor, TINY)
        k = np.clip(np.rint((scales / step - 1) / 2), 0, LARGEST)
        chosen = _nearest(book, form, x, w, (2 * k + 1) * step)
        levels = (2 * k + 1).astype(np.float32)[:, :, None, None] * chosen.levels
        d = np.maximum((w * x * levels).sum((1, 2, 3)) / np.maximum((w * levels**2).sum((1, 2, 3)), TINY), 0)
        half = np.where(largest[:, 0] > 0, np.minimum(d, 65504), 0).astype(np.float16)
        error = (w * (half.astype(np.float32)[:, None, None, None] * levels - x) ** 2).sum((1, 2, 3))
        found = _packed(name, half, chosen.codes.reshape(count, 32), chosen.down, k.astype(np.uint16))
        kept = found if kept is None else np.where((error < best)[:, None], found, kept)
        best = np.minimum(best, error)
    assert kept is not None
    return kept


def _nearest(book: Entries, form: Form, x: Floats, w: Floats, scales: Floats) -> Chosen:
    """The entries that err least at these scales [N, runs], and which way they are moved."""
    by = np.maximum(scales, TINY)[:, :, None, None]
    ways = []
    for move in (DELTA, -DELTA):
        codes = book.nearest(np.asarray(x / by - move, np.float32), w)
        levels = book.sizes[codes] + move
        errors = (w * (by * levels - x) ** 2).sum(3)
        if form.moved > 8:
            errors = np.broadcast_to(errors.sum(2, keepdims=True), errors.shape)
        ways.append((errors, codes, levels))
    (up, up_codes, up_levels), (low, low_codes, low_levels) = ways
    down = low < up
    return Chosen(np.where(down, low_codes, up_codes), down, np.where(down[..., None], low_levels, up_levels))


def _scales(book: Entries, form: Form, x: Floats, w: Floats) -> Floats:
    """The best scale of each run found, [N, runs]"""
    start = np.sqrt((w * x * x).sum((2, 3)) / np.maximum(w.sum((2, 3)), TINY))
    best_s, best = np.zeros_like(start), np.full(start.shape, np.inf, np.float32)
    for factor in SEARCH:
        levels = _nearest(book, form, x, w, start * factor).levels
        fitted = np.maximum((w * x * levels).sum((2, 3)) / np.maximum((w * levels**2).sum((2, 3)), TINY), 0)
        error = (w * (fitted[:, :, None, None] * levels - x) ** 2).sum((2, 3))
        better = error < best
        best_s, best = np.where(better, fitted, best_s), np.where(better, error, best)
    return np.asarray(best_s, np.float32)


def _packed(
    name: str, d: npt.NDArray[np.float16], codes: Codes, down: npt.NDArray[np.bool_], k: npt.NDArray[np.uint16]
) -> Bytes:
    """As ggml lays them out: codes [N, 32], which way [N, runs, eights], scales [N, runs]"""
    low, high = (codes & 255).astype(np.uint8), (codes >> 8).astype(np.uint16)
    threes = 3 * np.arange(4, dtype=np.uint16)
    if name == "IQ1_S":
        words = np.bitwise_or.reduce(high.reshape(-1, 8, 4) << threes, axis=2)
        parts: list[npt.NDArray[Any]] = [d[:, None], low, words | k << 12 | down[:, :, 0].astype(np.uint16) << 15]
    else:
        nibbles = (high | down.reshape(-1, 32).astype(np.uint16) << 3).astype(np.uint8)
        scales = np.bitwise_or.reduce(k.reshape(-1, 4, 4) << threes, axis=2)
        bits = d.view(np.uint16)[:, None] >> np.arange(0, 16, 4, dtype=np.uint16) & 15
        parts = [low, nibbles[:, 0::2] | nibbles[:, 1::2] << 4, scales | bits << 12]
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in parts], axis=1)
