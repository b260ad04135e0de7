"""Synthetic models: real shapes, and random weights that are generated when read. Their cost is realistic, their output
is meaningless.

Quantised tensors are random bytes with small scales. A tensor repeats a pattern of about a megabyte, whose length is
coprime to that of a row.
"""

import functools
import math
import zlib
from bisect import bisect_right
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from ..gguf.file import GGUFFile, Part
from ..gguf.formats import FORMATS
from ..gguf.header import TensorDescription, aligned, write_header
from ..gguf.scan import scan
from ..gguf.source import Source
from .quants import QUANTS, Quant
from .shapes import DRAFTERS, SHAPES, Shape, with_head

HEADED, HEADS = "-mtp", ("qwen35", "qwen35moe", "qwen3next", "deepseek2")
BY_NAME = {fmt.name: fmt for fmt in FORMATS.values()}
# Offsets of float16 scales in a block of random bytes, and their values for weights with a deviation of 1 around 0.
SCALES = {"Q4_K": {0: 1 / 260, 2: 7.5 / 260}, "Q6_K": {208: 1 / 1370}, "Q8_0": {0: 1 / 74}, "Q5_0": {0: 1 / 9.2}}
EXPONENTS = {"MXFP4": (0, 127, 2.93)}  # byte of a block, the exponent of 1, and the deviation of its numbers
BLOCKS, FLOATS = 8191, 524287  # lengths of a pattern: primes
WRITTEN = 4 << 20  # bytes written at a time, which fit in a cache
NORMS = ("norm.weight", "norm_2.weight", "ln.weight", "rope_freqs.weight", "scale", "scale.weight")  # values around 1


class Noise(Source):
    """The bytes of a file with random weights, computed on reading. Supports any offset, from any thread."""

    def __init__(self, name: str, header: bytes, tensors: Sequence[TensorDescription]) -> None:
        self.path = name
        self._starts, self._tensors = [0], list(tensors)
        end = len(header)
        for tensor in tensors:
            self._starts.append(end)
            end = aligned(end + tensor.nbytes)
        self.nbytes = end
        self._header = np.frombuffer(header, np.uint8)

    def close(self) -> None:
        """Does nothing: no file is open."""

    def read_into(self, offset: int, view: memoryview) -> None:
        """Fills the view from the offset on."""
        out = np.frombuffer(view, np.uint8)
        done = 0
        while done < len(out):
            which = bisect_right(self._starts, offset + done) - 1
            end = self._starts[which + 1] if which < len(self._tensors) else self.nbytes
            count = min(len(out) - done, end - offset - done)
            self._fill(which, offset + done - self._starts[which], out[done : done + count])
            done += count

    def _fill(self, which: int, at: int, out: npt.NDArray[np.uint8]) -> None:
        """Fills `out` from byte `at` of the header, 0, or of a tensor."""
        if which == 0:
            out[:] = self._header[at : at + len(out)]
            return
        tensor = self._tensors[which - 1]
        data = pattern(tensor.format.name, tensor.shape[-1], _kind(tensor))
        # Tensors of one kind begin at different positions of the pattern.
        start = zlib.crc32(tensor.name.encode()) % (len(data) // tensor.format.nbytes) * tensor.format.nbytes
        at = (start + at) % len(data)
        while len(out):
            piece = data[at : at + len(out)]
            out[: len(piece)] = piece
            out, at = out[len(piece) :], 0


def _kind(tensor: TensorDescription) -> str:
    if tensor.name.endswith(NORMS):
        return "norm"
    if tensor.name.endswith("ssm_a"):
        return "decay"
    return "vector" if len(tensor.shape) == 1 else "matrix"


@functools.lru_cache(64)
def pattern(format_name: str, width: int, kind: str) -> npt.NDArray[np.uint8]:
    """Bytes of whole blocks, scaled so that products with rows of `width` stay near one."""
    fmt, rng, scale = BY_NAME[format_name], np.random.default_rng(0), 0.5 / np.sqrt(width)
    if fmt.block == 1:
        values = rng.standard_normal(FLOATS, np.float32) * (scale if kind == "matrix" else 0.1) + (kind == "norm")
        if kind == "decay":
            values = -np.abs(values) - np.float32(0.1)
        halves = values.astype(np.float16)  # float32 LoRAs are rounded to float16 too, and may be stored as such
        return (halves if fmt.name == "F16" else halves.astype(np.float32)).view(np.uint8)
    blocks = rng.integers(0, 256, (BLOCKS, fmt.nbytes), np.uint8)
    if fmt.name in EXPONENTS:
        at, one, deviation = EXPONENTS[fmt.name]
        blocks[:, at] = one + round(math.log2(scale / deviation))
        return blocks.reshape(-1)
    for at, d in SCALES[fmt.name].items():
        blocks[:, at : at + 2] = np.array([d * scale], np.float16).view(np.uint8)
    return blocks.reshape(-1)


def named(name: str) -> tuple[str, Shape, Quant]:
    """Parses `rwkv7-2.9b-q4_k_m`, the full name; the default quantisation is q4_k_m.

    `qwen3.5-9b-mtp` is a model with a head that predicts further tokens, `gpt-oss-20b-eagle3` the file of a head.
    """
    low = name.lower()
    quant = next((quant for quant in QUANTS if low.endswith(f"-{quant}")), "q4_k_m")
    shape = low.removesuffix(f"-{quant}")
    plain = SHAPES.get(shape.removesuffix(HEADED))
    if shape.endswith(HEADED) and plain and plain.arch in HEADS:
        return f"{shape}-{quant}", with_head(plain), QUANTS[quant]
    if shape in DRAFTERS:
        return f"{shape}-{quant}", DRAFTERS[shape], QUANTS[quant]
    if shape not in SHAPES:
        raise BadInput(
            f"no synthetic model '{name}'; known: {', '.join(SHAPES)}, each with {', '.join(f'-{q}' for q in QUANTS)}"
        )
    return f"{shape}-{quant}", SHAPES[shape], QUANTS[quant]


def open_synthetic(name: str) -> GGUFFile:
    """Opens the model like a file; nothing is on disk."""
    return opened(noise(*named(name)))


def opened(source: Noise) -> GGUFFile:
    """The file with these bytes."""
    part = Part(Path(source.path), source, scan(source))
    return GGUFFile([part], part.header.tensors)


def noise(name: str, shape: Shape, quant: Quant) -> Noise:
    """The bytes of a model's file."""
    tensors = [TensorDescription(name, size, BY_NAME[kind]) for name, size, kind in shape.tensors(quant)]
    metadata = {"general.name": f"{name} (random)", **shape.metadata()}
    return Noise(name, write_header(metadata, tensors), tensors)


def write(path: Path, source: Source) -> None:
    """Writes a source to a file."""
    buffer = memoryview(bytearray(WRITTEN))
    with open(path, "wb") as file:
        for at in range(0, source.nbytes, WRITTEN):
            piece = buffer[: source.nbytes - at]
            source.read_into(at, piece)
            file.write(piece)
