"""Storage formats of keys and values: floats, or blocks of 32 dims of a head with one scale each.

Blocks of 4 bits are first rotated by a Hadamard matrix. A head in blocks is a row of words: its quants in order, then
the scales as float16, two per word. GPU kernels (`shaders/attention/cache/`) and numpy use the same layout.
"""

from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from .vocabulary import Cache

Array = npt.NDArray[Any]
KVType = Literal["f16", "f32", "q8", "q4"]
BLOCK = 32  # dims of a head that share a scale


def hadamard(size: int) -> npt.NDArray[np.float32]:
    """The normalised Hadamard matrix, which is its own inverse; N is a power of two. [N, N]"""
    h = np.ones((1, 1), np.float32)
    while len(h) < size:
        h = np.block([[h, h], [h, -h]])
    return h * np.float32(size**-0.5)


HADAMARD = hadamard(BLOCK)


@dataclass(frozen=True)
class KVFormat:
    """A storage format of keys and values."""

    name: KVType
    bits: int  # bits per number
    dtype: type[np.generic]  # element type of an array

    @property
    def quantised(self) -> bool:
        """True if it has blocks with scales."""
        return self.bits < 16

    @property
    def rotated(self) -> bool:
        """True if blocks are rotated before they are stored, which spreads a large dim over its whole block."""
        return self.bits < 8

    def width(self, size: int) -> int:
        """The number of array elements for a head of `size` dims."""
        return size * self.bits // 32 + -(-size // (2 * BLOCK)) if self.quantised else size

    def nbytes(self, size: int) -> int:
        """Bytes of a head."""
        return self.width(size) * np.dtype(self.dtype).itemsize

    def store(self, x: Array) -> Array:
        """Encodes heads [..., N] to [..., width]."""
        return _quantise(self._turned(x), self.bits) if self.quantised else x.astype(self.dtype)

    def load(self, stored: Array, size: int) -> Array:
        """Decodes heads to float32 [..., N]."""
        return self._turned(_dequantise(stored, size, self.bits)) if self.quantised else stored.astype(np.float32)

    def _turned(self, x: Array) -> Array:
        """Rotates blocks; the rotation is its own inverse."""
        return (x.reshape(*x.shape[:-1], -1, BLOCK) @ HADAMARD).reshape(x.shape) if self.rotated else x


KV_FORMATS: dict[KVType, KVFormat] = {
    "f16": KVFormat("f16", 16, np.float16),
    "f32": KVFormat("f32", 32, np.float32),
    "q8": KVFormat("q8", 8, np.uint32),
    "q4": KVFormat("q4", 4, np.uint32),
}


def kv_format(kind: KVType, cache: Cache) -> KVFormat:
    """The format of a cache if the user chose `kind`: latents, and heads that are not whole blocks, stay float16."""
    wanted = KV_FORMATS[kind]
    return KV_FORMATS["f16"] if wanted.quantised and (cache.latent or cache.size % BLOCK) else wanted


def format_of(stored: Array, size: int) -> KVFormat:
    """The format of a stored array, given the size of a head."""
    formats = [f for f in KV_FORMATS.values() if stored.dtype == f.dtype and stored.shape[-1] == f.width(size)]
    return formats[0]


def _quantise(x: Array, bits: int) -> Array:
    """q8: x = d q, d = max |x| / 127.  q4: x = d (q - 8), d = m / -8, m the number of largest magnitude"""
    blocks = x.reshape(*x.shape[:-1], -1, BLOCK).astype(np.float32)
    largest = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=-1, keepdims=True), axis=-1)
    d = np.abs(largest) / np.float32(127) if bits == 8 else largest / np.float32(-8)
    scales = d.astype(np.float16)
    d = scales.astype(np.float32)
    with np.errstate(divide="ignore", invalid="ignore"):
        q = np.rint(np.where(d == 0, np.float32(0), blocks / d))
    flat = q.reshape(*x.shape[:-1], -1)
    if bits == 8:
        quants = np.clip(flat, -127, 127).astype(np.int8).view(np.uint8)
    else:
        nibbles = np.clip(flat + 8, 0, 15).astype(np.uint8)
        quants = nibbles[..., 0::2] | nibbles[..., 1::2] << 4
    scales = scales[..., 0]
    if scales.shape[-1] % 2:
        scales = np.concatenate([scales, np.zeros_like(scales[..., :1])], axis=-1)
    words = [np.ascontiguousarray(part).view(np.uint32) for part in (quants, scales)]
    return np.concatenate(words, axis=-1)


def _dequantise(words: Array, size: int, bits: int) -> Array:
    count = size * bits // 32
    quants = np.ascontiguousarray(words[..., :count]).view(np.uint8)
    scales = np.ascontiguousarray(words[..., count:]).view(np.float16).astype(np.float32)[..., : size // BLOCK]
    if bits == 8:
        q = quants.view(np.int8).astype(np.float32)
    else:
        q = np.stack([quants & 15, quants >> 4], axis=-1).reshape(*words.shape[:-1], size).astype(np.float32) - 8
    y: Array = q.reshape(*words.shape[:-1], -1, BLOCK) * scales[..., None]
    return y.reshape(*words.shape[:-1], size)
