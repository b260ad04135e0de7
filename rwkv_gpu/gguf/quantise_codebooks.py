"""Float32 weights to blocks of IQ2 and IQ3: sizes of 4 or 8 neighbours by the nearest entry of a codebook, and signs.

A run has a scale d · (k + 1/2) · factor, k of 4 bits. Each scale is searched for among several, each fitted to the
entries that it makes the nearest. Where signs have 7 bits for 8 weights, an even number of them is negative: if that is
wrong, the sign of the weight is turned that costs least.
"""

from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import quants

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.intp]

SEARCH = [*np.linspace(0.6, 1.2, 9, dtype=np.float32)]  # scales to try, by the one that just reaches the largest weight
NEAR = 16  # entries that are compared
AT_ONCE = 1024  # blocks
TINY = np.float32(1e-12)


@dataclass(frozen=True)
class Form:
    """What differs between the formats."""

    run: int  # weights that share a scale
    factor: float
    even: bool  # whether 7 bits hold the signs of 8 weights


FORMS = {
    "IQ3_XXS": Form(32, 0.5, True),
    "IQ3_S": Form(32, 2.0, False),
    "IQ2_XXS": Form(32, 0.25, True),
    "IQ2_XS": Form(16, 0.25, True),
    "IQ2_S": Form(16, 0.25, False),
}


@dataclass(frozen=True)
class Entries:
    """A codebook, and which of its entries lie near."""

    sizes: Floats  # [E, n]
    borders: Floats  # between the sizes that a weight can have
    places: npt.NDArray[np.intp]  # [n], what the number of a weight's size counts
    near: npt.NDArray[np.int16]  # [sizes to the power n, NEAR]: the nearest entries to any n sizes

    def nearest(self, x: Floats, w: Floats) -> Codes:
        """The entries that err least for x, by weights w [..., n]"""
        near = self.near[np.searchsorted(self.borders, x) @ self.places]
        errors = np.zeros(near.shape, np.float32)
        for place in range(x.shape[-1]):
            errors += w[..., place, None] * (self.sizes[:, place][near] - x[..., place, None]) ** 2
        return np.take_along_axis(near, errors.argmin(-1)[..., None], -1)[..., 0].astype(np.intp)


@cache
def entries(name: str) -> Entries:
    """Those of a format."""
    kind: Any = getattr(quants, name)
    kind.init_grid()
    count, n = kind.grid_shape
    sizes = kind.grid.reshape(count, n).astype(np.float32)
    known = np.array(kind.grid_map, np.float32)
    places = len(known) ** np.arange(n)
    points = known[np.arange(len(known) ** n)[:, None] // places % len(known)]
    distances = (sizes**2).sum(1) - 2 * points @ sizes.T
    near = np.argsort(distances, axis=1, kind="stable")[:, :NEAR].astype(np.int16)
    return Entries(sizes, np.asarray((known[1:] + known[:-1]) / 2, np.float32), places, near)


def quantise_by_codebook(name: str, x: Floats, w: Floats) -> Bytes:
    """Blocks [N, 256] with the weight of each error to blocks of a format."""
    parts = [_blocks(name, x[at : at + AT_ONCE], w[at : at + AT_ONCE]) for at in range(0, len(x), AT_ONCE)]
    return np.concatenate(parts)


def _blocks(name: str, x: Floats, w: Floats) -> Bytes:
    form, book, count = FORMS[name], entries(name), len(x)
    negative, sizes = _signs(x, w, even=form.even)
    n = book.sizes.shape[1]
    shape = count, 256 // form.run, form.run // n, n
    sizes, w = sizes.reshape(shape), w.reshape(shape)
    scales = _scales(book, sizes, w)
    largest = scales.max(1, keepdims=True)
    step = np.maximum(largest / 15.5, TINY)
    k = np.clip(np.rint(scales / step - 0.5), 0, 15)
    by = ((k + 0.5) * step)[:, :, None, None]
    codes = book.nearest(sizes / by, w)
    levels = (k + 0.5).astype(np.float32)[:, :, None, None] * form.factor * book.sizes[codes]
    d = (w * sizes * levels).sum((1, 2, 3)) / np.maximum((w * levels**2).sum((1, 2, 3)), TINY)
    half = np.where(largest[:, 0] > 0, np.clip(d, 0, 65504), 0).astype(np.float16)[:, None]
    return _packed(name, half, codes.reshape(count, -1), negative, k.astype(np.uint8))


def _signs(x: Floats, w: Floats, *, even: bool) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Which weights are negative, and their sizes; the size of one whose sign is turned is below 0. [N, 256] both"""
    negative, sizes = x < 0, np.abs(x)
    if even:
        cost = (w * sizes * sizes).reshape(-1, 8)
        odd = np.flatnonzero(negative.reshape(-1, 8).sum(1) % 2)
        turned = odd, cost[odd].argmin(1)
        negative.reshape(-1, 8)[turned] ^= True
        sizes.reshape(-1, 8)[turned] *= -1
    return negative, sizes


def _scales(book: Entries, sizes: Floats, w: Floats) -> Floats:
    """The best scale of each run found, [N, runs]"""
    start = np.maximum(sizes.max((2, 3)), 0) / book.sizes.max()
    best_s, best = np.zeros_like(start), np.full(start.shape, np.inf, np.float32)
    for factor in SEARCH:
        s = np.maximum(start * factor, TINY)
        levels = book.sizes[book.nearest(sizes / s[:, :, None, None], w)]
        fitted = (w * sizes * levels).sum((2, 3)) / np.maximum((w * levels**2).sum((2, 3)), TINY)
        fitted = np.maximum(fitted, 0)
        error = (w * (fitted[:, :, None, None] * levels - sizes) ** 2).sum((2, 3))
        better = error < best
        best_s, best = np.where(better, fitted, best_s), np.where(better, error, best)
    return np.asarray(best_s, np.float32)


def _packed(name: str, d: npt.NDArray[np.float16], codes: Codes, negative: npt.NDArray[np.bool_], k: Bytes) -> Bytes:
    """As ggml lays them out: codes [N, 256 / n], signs [N, 256], scales [N, runs]"""
    signs = np.packbits(negative, axis=1, bitorder="little")  # [N, 32], a byte for 8 weights
    low, scales = (codes & 255).astype(np.uint8), k[:, 0::2] | k[:, 1::2] << 4
    seven = (signs & 127).astype(np.uint32)
    # The signs of 32 weights and their scale in one word.
    words = np.bitwise_or.reduce(seven.reshape(-1, 8, 4) << np.arange(0, 28, 7, dtype=np.uint32), axis=2)
    if name == "IQ3_XXS":
        parts: list[npt.NDArray[Any]] = [low, words | k.astype(np.uint32) << 28]
    elif name == "IQ3_S":
        parts = [low, np.packbits((codes >> 8).astype(np.uint8), axis=1, bitorder="little"), signs, scales]
    elif name == "IQ2_XXS":
        pair = np.ascontiguousarray(low).view(np.uint32)
        parts = [np.stack([pair, words | k.astype(np.uint32) << 28], axis=2).reshape(len(d), -1)]
    elif name == "IQ2_XS":
        parts = [(codes.astype(np.uint16) | seven.astype(np.uint16) << 9), scales]
    else:
        high = (codes >> 8).astype(np.uint8).reshape(-1, 8, 4) << np.arange(0, 8, 2, dtype=np.uint8)
        parts = [low, signs, np.bitwise_or.reduce(high, axis=2), scales]
    return np.concatenate([np.ascontiguousarray(part).view(np.uint8) for part in (d, *parts)], axis=1)
