"""Quantises float32 weights to IQ formats: groups of 4 or 8 weights become the nearest entry of a codebook.

The scale of a run is searched for: each candidate is fitted to the entries that are nearest at that scale.

In IQ2 and IQ3, entries are magnitudes, stored apart from the signs. The scale of a run is d · (k + 1/2) · factor,
where k has 4 bits. Where 7 bits store the signs of 8 weights, the number of negative weights must be even. If it is
odd, the sign whose change costs least is flipped.

In IQ1, the numbers of an entry are -1, 0 and 1, shifted by 1/8 up or down: a whole run at once, or each group of
eight. The scale of a run is d · (2 k + 1), where k has 3 bits. The search also includes d.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import quants

Floats = npt.NDArray[np.float32]
Bytes = npt.NDArray[np.uint8]
Codes = npt.NDArray[np.intp]

SEARCH = [*np.linspace(0.6, 1.2, 9, dtype=np.float32)]  # scales to try, relative to the one for the largest weight
NEAR = 16  # number of nearest entries that are compared
AT_ONCE = 1024  # blocks
TINY = np.float32(1e-12)
TERNARY_SEARCH = [*np.linspace(0.8, 1.8, 6, dtype=np.float32)]  # scales to try, relative to the root mean square
STEPS = [*np.linspace(0.85, 1.05, 3, dtype=np.float32)]  # steps to try, relative to the one for the largest weight
DELTA = np.float32(0.125)
LARGEST = 7  # largest k in IQ1


@dataclass(frozen=True)
class Form:
    """The parameters in which formats with a codebook of magnitudes differ."""

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
TERNARY = {"IQ1_S": (32, 32), "IQ1_M": (16, 8)}  # weights that share a scale, and weights that are shifted together


def least(tries: Iterable[tuple[Floats, npt.NDArray[Any]]]) -> npt.NDArray[Any]:
    """For each place, chooses the attempt with the smallest error; zeros if no error is finite."""
    best: Any = np.inf
    kept: Any = 0
    for error, found in tries:
        better = error < best
        kept = np.where(better.reshape(better.shape + (1,) * (found.ndim - better.ndim)), found, kept)
        kept = kept.astype(found.dtype, copy=False)
        best = np.where(better, error, best)
    return np.asarray(kept)


def _fitted(x: Floats, w: Floats, levels: Floats, axes: tuple[int, ...]) -> Floats:
    """The scales with which levels err least for x, weighted by w"""
    found: Floats = (w * x * levels).sum(axes) / np.maximum((w * levels**2).sum(axes), TINY)
    return found


@dataclass(frozen=True)
class Entries:
    """A codebook, and the nearest entries of each combination of sizes."""

    sizes: Floats  # [E, n]
    borders: Floats  # borders between the sizes that a weight can have
    places: npt.NDArray[np.intp]  # [n], the place value of each weight's size in the number of an entry
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
    """The codebook of a format."""
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
    """Quantises blocks x [N, 256] to a format. `w` is the weight of each number's error."""
    blocks = _ternary_blocks if name in TERNARY else _blocks
    return np.concatenate(
        [blocks(name, x[at : at + AT_ONCE], w[at : at + AT_ONCE]) for at in range(0, len(x), AT_ONCE)]
    )


def _blocks(name: str, x: Floats, w: Floats) -> Bytes:
    form, book, count = FORMS[name], entries(name), len(x)
    negative, sizes = _signs(x, w, even=form.even)
    n = book.sizes.shape[1]
    shape = count, 256 // form.run, form.run // n, n
    sizes, w = sizes.reshape(shape), w.reshape(shape)

    def nearest(s: Floats) -> Floats:
        by = np.maximum(s, TINY)[:, :, None, None]
        return book.sizes[book.nearest(np.asarray(sizes / by, np.float32), w)]

    scales = _scales(sizes, w, np.maximum(sizes.max((2, 3)), 0) / book.sizes.max(), SEARCH, nearest)
    largest = scales.max(1, keepdims=True)
    step = np.maximum(largest / 15.5, TINY)
    k = np.clip(np.rint(scales / step - 0.5), 0, 15)
    by = (k + 0.5) * step
    codes = book.nearest(np.asarray(sizes / by[:, :, None, None], np.float32), w)
    d = _fitted(sizes, w, (k + 0.5).astype(np.float32)[:, :, None, None] * form.factor * book.sizes[codes], (1, 2, 3))
    half = np.where(largest[:, 0] > 0, np.clip(d, 0, 65504), 0).astype(np.float16)[:, None]
    return _packed(name, half, codes.reshape(count, -1), negative, k.astype(np.uint8))


def _scales(
    x: Floats, w: Floats, start: Floats, factors: Sequence[float], nearest: Callable[[Floats], Floats]
) -> Floats:
    """The best scale of each run found, [N, runs]; `nearest` gives the levels at such scales."""

    def tries() -> Iterator[tuple[Floats, Floats]]:
        for factor in factors:
            levels = nearest(start * factor)
            s = np.maximum(_fitted(x, w, levels, (2, 3)), 0)
            yield (w * (s[:, :, None, None] * levels - x) ** 2).sum((2, 3)), s

    return np.asarray(least(tries()), np.float32)


def _signs(x: Floats, w: Floats, *, even: bool) -> tuple[npt.NDArray[np.bool_], Floats]:
    """Which weights are negative, and all magnitudes. The magnitude of a flipped sign is negative. [N, 256] both"""
    negative, sizes = x < 0, np.abs(x)
    if even:
        cost = (w * sizes * sizes).reshape(-1, 8)
        odd = np.flatnonzero(negative.reshape(-1, 8).sum(1) % 2)
        turned = odd, cost[odd].argmin(1)
        negative.reshape(-1, 8)[turned] ^= True
        sizes.reshape(-1, 8)[turned] *= -1
    return negative, sizes


def _packed(name: str, d: npt.NDArray[np.float16], codes: Codes, negative: npt.NDArray[np.bool_], k: Bytes) -> Bytes:
    """Packs codes [N, 256 / n], signs [N, 256] and scales [N, runs] in ggml's layout."""
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


@dataclass(frozen=True)
class Chosen:
    """The entries chosen at a scale for each group of eight weights in runs, [N, runs, groups, 8]."""

    codes: Codes  # [N, runs, eights]
    down: npt.NDArray[np.bool_]  # [N, runs, eights], True if they are shifted down
    levels: Floats  # the values without a scale


def _ternary_blocks(name: str, x: Floats, w: Floats) -> Bytes:
    (run, together), book, count = TERNARY[name], entries("IQ1_S"), len(x)
    shape = count, 256 // run, run // 8, 8
    x, w = x.reshape(shape), w.reshape(shape)
    start = np.sqrt((w * x * x).sum((2, 3)) / np.maximum(w.sum((2, 3)), TINY))
    scales = _scales(x, w, start, TERNARY_SEARCH, lambda s: _nearest_moved(book, together, x, w, s).levels)
    largest = scales.max(1, keepdims=True)

    def tries() -> Iterator[tuple[Floats, Bytes]]:
        for factor in STEPS:
            step = np.maximum(largest / (2 * LARGEST + 1) * factor, TINY)
            k = np.clip(np.rint((scales / step - 1) / 2), 0, LARGEST)
            chosen = _nearest_moved(book, together, x, w, (2 * k + 1) * step)
            levels = (2 * k + 1).astype(np.float32)[:, :, None, None] * chosen.levels
            d = np.maximum(_fitted(x, w, levels, (1, 2, 3)), 0)
            half = np.where(largest[:, 0] > 0, np.minimum(d, 65504), 0).astype(np.float16)
            error = (w * (half.astype(np.float32)[:, None, None, None] * levels - x) ** 2).sum((1, 2, 3))
            yield error, _packed_ternary(name, half, chosen.codes.reshape(count, 32), chosen.down, k.astype(np.uint16))

    return np.asarray(least(tries()), np.uint8)


def _nearest_moved(book: Entries, together: int, x: Floats, w: Floats, scales: Floats) -> Chosen:
    """The entries that err least at these scales [N, runs], and whether each is shifted up or down."""
    by = np.maximum(scales, TINY)[:, :, None, None]
    ways = []
    for move in (DELTA, -DELTA):
        codes = book.nearest(np.asarray(x / by - move, np.float32), w)
        levels = book.sizes[codes] + move
        errors = (w * (by * levels - x) ** 2).sum(3)
        if together > 8:
            errors = np.broadcast_to(errors.sum(2, keepdims=True), errors.shape)
        ways.append((errors, codes, levels))
    (up, up_codes, up_levels), (low, low_codes, low_levels) = ways
    down = low < up
    return Chosen(np.where(down, low_codes, up_codes), down, np.where(down[..., None], low_levels, up_levels))


def _packed_ternary(
    name: str, d: npt.NDArray[np.float16], codes: Codes, down: npt.NDArray[np.bool_], k: npt.NDArray[np.uint16]
) -> Bytes:
    """Packs codes [N, 32], directions of the shifts [N, runs, groups] and scales [N, runs] in ggml's layout."""
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
