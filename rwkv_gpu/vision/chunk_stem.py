"""The first layers of Qwen3's audio towers, in numpy: three convolutions over chunks of a spectrogram.

Each convolution halves both axes. They run on the thread that prepares the sound, never on an engine's.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..gguf.file import GGUFFile
from ..models.tensors import Tensors
from ..ops.elementwise import gelu_erf
from .mel import whole_log_mel
from .towers import POSITIONS

Floats = npt.NDArray[np.float32]
CHUNK, CHUNKS = 100, 8  # frames of a chunk, and chunks that a tower reads at once
KERNELS = "a.conv2d.1", "a.conv2d.2", "a.conv2d.3"
MATRIX, TABLE = "a.conv_out.weight", "a.position_embd.weight"


def halved(size: int) -> int:
    """The size of an axis after the three convolutions."""
    return -(-size // 8)


ROWS = halved(CHUNK)  # rows of a chunk


@dataclass(frozen=True)
class ChunkStem:
    """The convolutions of a projector file; their weights are read with the first sound."""

    path: Path
    mels: int

    @cached_property
    def _weights(self) -> Mapping[str, Floats]:
        with GGUFFile.open(self.path) as file:
            names = [f"{name}.{part}" for name in KERNELS for part in ("weight", "bias")] + [MATRIX, TABLE]
            return {name: file.values(file.tensors[name]).astype(np.float32) for name in names}

    @property
    def rows_of_30_seconds(self) -> int:
        """The number of rows of 30 seconds."""
        return 30 * ROWS

    def tiles(self, samples: Floats) -> list[Floats]:
        """The tower's input rows, in parts of up to eight seconds. [n, D] each"""
        mel = whole_log_mel(samples, self.mels)
        frames = mel.shape[1]
        found = []
        for first in range(0, frames, CHUNK * CHUNKS):
            part = mel[:, first : first + CHUNK * CHUNKS]
            part = np.pad(part, ((0, 0), (0, -part.shape[1] % CHUNK)))
            found.append(self._rows(part.reshape(self.mels, -1, CHUNK).transpose(1, 0, 2)))
        return found

    def inputs(self, tile: Floats) -> Mapping[str, Floats]:
        """The inputs of the tower's step."""
        return {POSITIONS: tile}

    def _rows(self, chunks: Floats) -> Floats:
        """The rows of some chunks. [n, mels, CHUNK] -> [n · ROWS, D]"""
        w, x = self._weights, chunks[..., None]
        for name in KERNELS:
            x = gelu_erf(convolved(x, w[f"{name}.weight"], w[f"{name}.bias"])).astype(np.float32)
        x = x.transpose(0, 2, 3, 1).reshape(len(chunks) * ROWS, -1)  # [n · ROWS, C · mels / 8]
        rows: Floats = x @ w[MATRIX].T
        return (rows.reshape(len(chunks), ROWS, -1) + w[TABLE][:ROWS]).reshape(rows.shape)


def convolved(x: Floats, kernel: Floats, bias: Floats | None, step: int = 2) -> Floats:
    """kernel * x + bias, with this stride on both axes if k is 3. x [.., H, W, C], kernel [D, C, k, k]

    A kernel [D, 1, k, k] has one channel of x for each of D, or one for all.
    """
    side = kernel.shape[-1]
    step = 1 if side == 1 else step
    padded = np.pad(x, [(0, 0)] * (x.ndim - 3) + [(side // 2, side // 2)] * 2 + [(0, 0)])
    y = np.zeros((), np.float32) if bias is None else bias.reshape(-1)
    for i, j in np.ndindex(side, side):
        near = padded[..., i : i + x.shape[-3] : step, j : j + x.shape[-2] : step, :]
        taps = kernel[:, :, i, j]
        y = y + (near * taps[:, 0] if taps.shape[1] == 1 else near @ taps.T)
    return y


def take_stem(tensors: Tensors, file: GGUFFile, mels: int, width: int) -> ChunkStem:
    """Checks the tensors of the convolutions, which are not loaded onto a device."""
    channels = 1
    for name in KERNELS:
        made = tensors.dimension(f"{name}.weight", 0, 4)
        check(tensors, file, f"{name}.weight", made, channels, 3, 3)
        check(tensors, file, f"{name}.bias", made)
        channels = made
    check(tensors, file, MATRIX, width, channels * halved(mels))
    check(tensors, file, TABLE, max(ROWS, tensors.dimension(TABLE, 0)), width)
    return ChunkStem(Path(file.path), mels)


def check(tensors: Tensors, file: GGUFFile, name: str, *shape: int) -> None:
    """Checks the shape of a tensor that is not loaded onto a device."""
    found = file.tensors[name].shape if name in tensors else ()
    if [size for size in found if size != 1] != [size for size in shape if size != 1]:
        raise tensors.bad(f"tensor '{name}'", f"the shape {list(found)}", f"{list(shape)}")
    tensors.skip(name)
