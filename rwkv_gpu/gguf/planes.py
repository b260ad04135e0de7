"""Weights as kernels read them: the blocks of a file split into planes, losslessly.

A plane holds one part of every run (quants, high bits, scales, ...), run after run, so that a kernel finds it by the
run's number alone and decodes it by few operations on whole words. Bits only change places. Knows no GPU.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from types import EllipsisType
from typing import Any

import numpy as np
import numpy.typing as npt
from gguf import GGMLQuantizationType, quants

from .formats import Format

Bytes = npt.NDArray[np.uint8]

# For types that the package gguf cannot dequantise: the values of a weight's bits, relative to d.
LEVELS = {"Q1_0": np.array([-1, 1], np.float32), "Q2_0": np.array([-1, 0, 1, 2], np.float32)}

CHUNK = 1 << 20  # bytes of blocks packed at a time: they stay in cache, and threads seldom wait for each other
DEQUANTISED = 1 << 17  # bytes of blocks dequantised at a time: their numbers stay in cache


@dataclass(frozen=True)
class Exchange:
    """Swaps bits `mask << shift` of words a with bits `mask` of words b, for each pair (a, b). Its own inverse."""

    pairs: Sequence[tuple[slice, slice]]
    shift: int
    mask: int

    def apply(self, words: npt.NDArray[Any]) -> None:
        """Swaps in place, on [words of a block, blocks]. A pair (a, a) swaps bits inside each word."""
        for first, second in self.pairs:
            a, b = words[first], words[second]
            moved = a >> self.shift
            moved ^= b
            moved &= self.mask
            b ^= moved
            moved <<= self.shift
            a ^= moved


@dataclass(frozen=True)
class Plane:
    """The words of a block that go to one plane: after the exchanges, word `order[n]` is the n-th there."""

    offset: int
    word: str  # type as numpy writes it; V16 is 16 bytes that are only moved
    count: int = 1
    exchanges: tuple[Exchange, ...] = ()
    order: list[int] | EllipsisType = ...

    @property
    def nbytes(self) -> int:
        """Bytes of a block in this plane."""
        return self.count * np.dtype(self.word).itemsize

    def split(self, blocks: Bytes, plane: Bytes) -> None:
        """Copies this plane's words of [blocks, bytes of a block] in the order of the file, without the exchanges."""
        whole = f"V{self.nbytes}"
        plane.view(whole)[...] = blocks[:, self.offset : self.offset + self.nbytes].view(whole)

    @cached_property
    def table(self) -> npt.NDArray[np.uint32]:
        """The exchanges and the order for `weights/exchange`: counts, order, (word, word, shift, mask) of each pair.

        Words have 32 bits here. Larger ones are split, as their exchanges stay within bytes.
        """
        wide = max(1, np.dtype(self.word).itemsize // 4)
        numbers = np.arange(self.count * wide).reshape(self.count, wide)
        pairs = [
            (int(a), int(b), exchange.shift, exchange.mask & 0xFFFFFFFF)
            for exchange in self.exchanges
            for first, second in exchange.pairs
            for a, b in zip(numbers[first].flat, numbers[second].flat, strict=True)
        ]
        flat = [number for pair in pairs for number in pair]
        return np.array([numbers.size, len(pairs), *numbers[self.order].flat, *flat], np.uint32)

    def pack(self, blocks: Bytes, plane: Bytes) -> None:
        """Converts [blocks, bytes of a block] to [blocks, bytes of a block in the plane]."""
        words = self.words_of(blocks)
        if self.exchanges:
            words = words.T.copy()  # so that exchanges run over contiguous memory
            for exchange in self.exchanges:
                exchange.apply(words)
            words = words[self.order].T
        plane.view(self.word)[...] = words

    def words_of(self, blocks: Bytes) -> npt.NDArray[Any]:
        """This plane's words, as a view of the blocks of a file. [blocks, words]"""
        return blocks[:, self.offset : self.offset + self.nbytes].view(self.word)


def _every(pattern: int, bits: int, width: int) -> int:
    """A mask that repeats a pattern of `bits` bits over a word."""
    return sum(pattern << at for at in range(0, width, bits))


def _apart(distance: int) -> list[tuple[slice, slice]]:
    """All pairs of words whose numbers differ only in the bit `distance`."""
    every = 2 * distance
    return [(slice(n, None, every), slice(n + distance, None, every)) for n in range(distance)]


def _one(word: int) -> slice:
    return slice(word, word + 1)


def _swap_places(words: slice, i: int, j: int) -> Exchange:
    """Moves the bit at each place p to the place that p becomes when its bits i and j are exchanged (i < j)."""
    mask = sum(1 << p for p in range(32) if p >> i & 1 and not p >> j & 1)
    return Exchange([(words, words)], (1 << j) - (1 << i), mask)


# Two runs of 32 share bytes: the high nibbles of 16 bytes are exchanged with the low nibbles of the next 16.
_NIBBLES_OF_RUNS = (Exchange(_apart(2), 4, _every(0x0F, 8, 64)),)

# Bit r of byte l belongs to run r. Transposing 8 words moves weight 4k + b of run r to bit k of byte b of word r.
_BITS_OF_RUNS = (
    Exchange(_apart(4), 4, _every(0x0F, 8, 32)),
    Exchange(_apart(2), 2, _every(0x33, 8, 32)),
    Exchange(_apart(1), 1, _every(0x55, 8, 32)),
)

# Bits 2g of byte l belong to group g. Four words are transposed, so that a word has one run of 16, with weight 4k + b
# at bits 2k of byte b. The order of words changes from [half, s, g] to [half, g, s].
_PAIRS_OF_RUNS = (Exchange(_apart(2), 4, _every(0x0F, 8, 32)), Exchange(_apart(1), 2, _every(0x33, 8, 32)))
_PAIRS_ORDER = [8 * half + 4 * s + g for half in range(2) for g in range(4) for s in range(2)]

# Groups g and g + 2 of 32 share bytes: the high nibbles of 8 bytes are exchanged with the low nibbles of the next 8.
# A word is half a run of 16. The order of words changes from [half, g % 2, s, g / 2] to [half, g, s].
_NIBBLES_OF_GROUPS = (Exchange(_apart(1), 4, _every(0x0F, 8, 64)),)
_NIBBLES_ORDER = [8 * half + 4 * (g % 2) + 2 * s + g // 2 for half in range(2) for g in range(4) for s in range(2)]

# Moves the bit of weight 4k + b from place 4k + b of a word to bit k of byte b.
_BITS_OF_WORD = tuple(_swap_places(_one(0), i, j) for i, j in ((0, 3), (0, 1), (0, 4), (0, 2)))

# Bits 2k of byte b belong to weight 4b + k; moves them to weight 4k + b.
_PAIRS_OF_WORDS = tuple(_swap_places(slice(None), i, j) for i, j in ((1, 3), (2, 4)))

# Converts words d|dmin and 12 bytes of 6-bit scales and mins to words of nibbles. Nibble r belongs to run r. The words
# hold the low 4 bits of the scales, the low 4 bits of the mins, and the high 2 bits of both.
_SCALES_AND_MINS = (
    Exchange([(_one(1), _one(3))], 4, _every(0x0F, 8, 32)),
    Exchange([(_one(2), _one(3))], 0, _every(0xF0, 8, 32)),
    _swap_places(_one(3), 1, 2),
    _swap_places(slice(1, 4), 2, 3),
    _swap_places(slice(1, 4), 3, 4),
)

_HEADER_OF_K = Plane(0, "<u4", 4, _SCALES_AND_MINS)

# By format. The order is that of `plane.x` to `plane.w` in its shader part. Floats have one run of 32 as their block.
PLANES: dict[str, tuple[Plane, ...]] = {
    "F32": (Plane(0, "V128"),),
    "F16": (Plane(0, "V64"),),
    "BF16": (Plane(0, "V64"),),
    "Q4_0": (Plane(2, "V16"), Plane(0, "<u2")),
    "Q4_1": (Plane(4, "V16"), Plane(0, "<u4")),
    "Q5_0": (Plane(6, "V16"), Plane(2, "<u4", exchanges=_BITS_OF_WORD), Plane(0, "<u2")),
    "Q5_1": (Plane(8, "V16"), Plane(4, "<u4", exchanges=_BITS_OF_WORD), Plane(0, "<u4")),
    "Q8_0": (Plane(2, "V32"), Plane(0, "<u2")),
    "Q2_K": (Plane(16, "<u4", 16, _PAIRS_OF_RUNS, _PAIRS_ORDER), Plane(0, "V16"), Plane(80, "<u4")),
    "Q3_K": (
        Plane(32, "<u4", 16, _PAIRS_OF_RUNS, _PAIRS_ORDER),
        Plane(0, "<u4", 8, _BITS_OF_RUNS),
        Plane(96, "V12"),
        Plane(108, "<u2"),
    ),
    "Q4_K": (Plane(16, "<u8", 16, _NIBBLES_OF_RUNS), _HEADER_OF_K),
    "Q5_K": (Plane(48, "<u8", 16, _NIBBLES_OF_RUNS), Plane(16, "<u4", 8, _BITS_OF_RUNS), _HEADER_OF_K),
    "Q6_K": (
        Plane(0, "<u8", 16, _NIBBLES_OF_GROUPS, _NIBBLES_ORDER),
        Plane(128, "<u4", 16, _PAIRS_OF_RUNS, _PAIRS_ORDER),
        Plane(192, "V16"),
        Plane(208, "<u2"),
    ),
    "IQ4_NL": (Plane(2, "V16"), Plane(0, "<u2")),
    "IQ4_XS": (Plane(8, "V128"), Plane(0, "<u8")),
    "MXFP4": (Plane(1, "V16"), Plane(0, "u1")),
    "NVFP4": (Plane(4, "V32"), Plane(0, "<u4")),
    "TQ1_0": (Plane(0, "V48"), Plane(48, "<u4"), Plane(52, "<u2")),
    "TQ2_0": (Plane(0, "<u4", 16, _PAIRS_OF_RUNS, _PAIRS_ORDER), Plane(64, "<u2")),
    "Q1_0": (Plane(2, "V16"), Plane(0, "<u2")),
    "Q2_0": (Plane(2, "<u4", 4, _PAIRS_OF_WORDS), Plane(0, "<u2")),
    "IQ1_S": (Plane(2, "V48"), Plane(0, "<u2")),
    "IQ1_M": (Plane(0, "V56"),),
    "IQ2_XXS": (Plane(2, "V64"), Plane(0, "<u2")),
    "IQ2_XS": (Plane(2, "V64"), Plane(66, "V8"), Plane(0, "<u2")),
    "IQ2_S": (Plane(2, "V64"), Plane(66, "V16"), Plane(0, "<u2")),
    "IQ3_XXS": (Plane(2, "V64"), Plane(66, "V32"), Plane(0, "<u2")),
    "IQ3_S": (Plane(2, "V64"), Plane(66, "V44"), Plane(0, "<u2")),
}


def plane_row_bytes(fmt: Format, width: int) -> tuple[int, ...]:
    """Bytes of a row of `width` weights in each plane."""
    blocks = -(-fmt.row_bytes(width) // _block_bytes(fmt))
    return tuple(blocks * plane.nbytes for plane in PLANES[fmt.name])


def pack_rows(fmt: Format, raw: Bytes) -> tuple[Bytes, ...]:
    """Converts [rows, row_bytes] of a file to planes, each [rows, plane_row_bytes]."""
    blocks = _blocks(fmt, raw)
    planes = PLANES[fmt.name]
    packed = tuple(np.empty((len(blocks), plane.nbytes), np.uint8) for plane in planes)
    for part in _parts(blocks):
        for plane, target in zip(planes, packed, strict=True):
            plane.pack(blocks[part], target[part])
    return tuple(target.reshape(len(raw), -1) for target in packed)


def split_rows(fmt: Format, raw: Bytes, planes: Sequence[Bytes]) -> None:
    """Copies [rows, row_bytes] as in the file to planes, before the exchanges of `PLANES`."""
    blocks = _blocks(fmt, raw)
    for plane, target in zip(PLANES[fmt.name], planes, strict=True):
        plane.split(blocks, target.reshape(len(blocks), plane.nbytes))


def dequantise_rows(fmt: Format, raw: Bytes) -> npt.NDArray[np.float32]:
    """Converts [rows, row_bytes] of a file to float32 [rows, width]."""
    if fmt.name in LEVELS:
        return _of_levels(fmt, raw)
    kind = getattr(quants, fmt.name, None)
    with np.errstate(over="ignore", invalid="ignore"):  # values that a file makes infinite stay infinite
        if kind is None:
            return np.asarray(quants.dequantize(raw, GGMLQuantizationType(fmt.type)), np.float32)
        kind.init_grid()
        blocks = np.ascontiguousarray(raw).reshape(-1, kind.type_size)
        weights = np.empty((len(blocks), kind.block_size), np.float32)
        for part in _parts(blocks, DEQUANTISED):
            weights[part] = kind.dequantize_blocks(blocks[part])
    return weights.reshape(len(raw), -1)


def _of_levels(fmt: Format, raw: Bytes) -> npt.NDArray[np.float32]:
    """Decodes blocks of a float16 scale and the numbers of levels, the first weight in the lowest bits of a byte."""
    blocks, levels = np.ascontiguousarray(raw).reshape(-1, fmt.nbytes), LEVELS[fmt.name]
    shifts = np.arange(0, 8, len(levels).bit_length() - 1, dtype=np.uint8)
    numbers = (blocks[:, 2:, None] >> shifts) & np.uint8(len(levels) - 1)  # [blocks, bytes, weights of a byte]
    scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
    return np.asarray(scales[:, :, None] * levels[numbers], np.float32).reshape(len(raw), -1)


def _block_bytes(fmt: Format) -> int:
    return sum(plane.nbytes for plane in PLANES[fmt.name])


def _blocks(fmt: Format, raw: Bytes) -> Bytes:
    """Rows as [blocks, bytes of a block]; rows of floats are padded with zeros to whole runs."""
    size = _block_bytes(fmt)
    if raw.shape[1] % size:
        raw = np.pad(raw, [(0, 0), (0, -raw.shape[1] % size)])
    return np.ascontiguousarray(raw).reshape(-1, size)


def _parts(blocks: Bytes, nbytes: int = CHUNK) -> list[slice]:
    """Slices of some blocks, each of about `nbytes` bytes."""
    step = max(1, nbytes // blocks.shape[1])
    return [slice(start, start + step) for start in range(0, len(blocks), step)]
