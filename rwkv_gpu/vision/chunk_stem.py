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

    def _rows(self, chunks: Floats) -> Floats:
        """The rows of some chunks. [n, mels, CHUNK] -> [n · ROWS, D]"""
        w, x = self._weights, chunks[:, None]
        for name in KERNELS:
            x = _convolved(x, w[f"{name}.weight"], w[f"{name}.bias"])
        x = x.transpose(0, 3, 1, 2).reshape(len(chunks) * ROWS, -1)  # [n · ROWS, C · mels / 8]
        rows: Floats = x @ w[MATRIX].T
        return (rows.reshape(len(chunks), ROWS, -1) + w[TABLE][:ROWS]).reshape(rows.shape)


def _convolved(x: Floats, kernel: Floats, bias: Floats) -> Floats:
    """gelu(kernel * x + bias), with stride 2 on both axes. x [n, C, H, W], kernel [D, C, 3, 3]"""
    near = np.lib.stride_tricks.sliding_window_view(np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1))), (3, 3), axis=(2, 3))
    places = near[:, :, ::2, ::2].transpose(0, 2, 3, 1, 4, 5)  # [n, H / 2, W / 2, C, 3, 3]
    y = places.reshape(-1, kernel[0].size) @ kernel.reshape(len(kernel), -1).T + bias.reshape(-1)
    found: Floats = gelu_erf(y.astype(np.float32)).astype(np.float32)
    return found.reshape(*places.shape[:3], -1).transpose(0, 3, 1, 2)


def take_stem(tensors: Tensors, file: GGUFFile, mels: int, width: int) -> ChunkStem:
    """Checks the tensors of the convolutions, which are not loaded onto a device."""
    channels = 1
    for name in KERNELS:
        made = tensors.dimension(f"{name}.weight", 0, 4)
        _check(tensors, file, f"{name}.weight", made, channels, 3, 3)
        _check(tensors, file, f"{name}.bias", made)
        channels = made
    _check(tensors, file, MATRIX, width, channels * halved(mels))
    _check(tensors, file, TABLE, max(ROWS, tensors.dimension(TABLE, 0)), width)
    return ChunkStem(Path(file.path), mels)


def _check(tensors: Tensors, file: GGUFFile, name: str, *shape: int) -> None:
    found = file.tensors[name].shape if name in tensors else ()
    if [size for size in found if size != 1] != [size for size in shape if size != 1]:
        raise tensors.bad(f"tensor '{name}'", f"the shape {list(found)}", f"{list(shape)}")
    tensors.skip(name)
