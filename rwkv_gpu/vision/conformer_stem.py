"""The first layers of Conformer audio towers, in numpy: convolutions over a spectrogram.

They run on the thread that prepares the sound, never on an engine's.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..gguf.file import GGUFFile
from ..models.tensors import Tensors
from ..ops.media import ANGLES, cos_and_sin
from .chunk_stem import check, convolved
from .mel import HOP, RATE, WINDOW
from .towers import POSITIONS

Floats = npt.NDArray[np.float32]
AT_ONCE = 1 << 10  # frames that are convolved at once


@dataclass(frozen=True)
class Convolutions:
    """The convolutions before a family's Conformer, and the spectrogram that they read."""

    spectrogram: Callable[..., Floats]  # of samples, a number of mels and the tables, [mels, frames]
    seconds: int  # the longest sound that a tower reads at once
    names: Sequence[str]
    rectified: Sequence[str]  # those whose result becomes relu(norm(x))
    halvings: int  # of the number of frames
    by_channel: bool  # whether the numbers of a channel are next to each other in a row, not those of a frequency
    tables: Mapping[str, int] = field(default_factory=dict)  # tensors for the spectrogram, and the size of their rows

    @property
    def rows(self) -> int:
        """The maximum rows that a tower reads at once."""
        return -(-(self.seconds * RATE // HOP + 1) // (1 << self.halvings))


@dataclass(frozen=True)
class ConformerStem:
    """The convolutions of a projector file; their weights are read with the first sound."""

    path: Path
    mels: int
    how: Convolutions
    frequencies: npt.NDArray[Any]  # frequencies by which queries and keys rotate

    @cached_property
    def _weights(self) -> Mapping[str, Floats]:
        with GGUFFile.open(self.path) as file:
            names = [name for name in file.tensors if name.startswith(tuple(f"{one}." for one in self.how.names))]
            names += self.how.tables
            return {name: file.values(file.tensors[name]).astype(np.float32) for name in names}

    @property
    def rows_of_30_seconds(self) -> int:
        """The number of rows of 30 seconds."""
        frames: int = self._mel(np.zeros(30 * RATE, np.float32)).shape[1]
        return -(-frames // (1 << self.how.halvings))

    def tiles(self, samples: Floats) -> list[Floats]:
        """The tower's input rows, in parts. [n, K] each"""
        each = self.how.seconds * RATE
        parts = (samples[first : first + each] for first in range(0, len(samples), each))
        return [self._rows(self._mel(part)) for part in parts]

    def _mel(self, samples: Floats) -> Floats:
        """The spectrogram of some samples. [mels, frames]"""
        tables = (self._weights[name].reshape(-1, size).squeeze() for name, size in self.how.tables.items())
        return self.how.spectrogram(samples, self.mels, *tables)

    def inputs(self, tile: Floats) -> Mapping[str, Floats]:
        """The inputs of the tower's step."""
        return {POSITIONS: tile, ANGLES: cos_and_sin(np.arange(len(tile))[:, None] * self.frequencies)}

    def _rows(self, mel: Floats) -> Floats:
        """The rows of a spectrogram.

        Each part except the first begins with overlapping frames, whose row is dropped.
        """
        x, before, found = mel.T[:, :, None], 1 << self.how.halvings, []
        for first in range(0, len(x), AT_ONCE):
            rows = self._convolved(x[max(0, first - before) : first + AT_ONCE])
            rows = rows.swapaxes(1, 2) if self.how.by_channel else rows
            found.append(rows.reshape(len(rows), -1)[int(first > 0) :])
        return np.concatenate(found)

    def _convolved(self, x: Floats) -> Floats:
        """[frames, mels, 1] -> [n, frequencies, channels]"""
        w = self._weights
        for name in self.how.names:
            x = convolved(x, w[f"{name}.weight"], w.get(f"{name}.bias"))
            if f"{name}.norm.weight" in w:
                x = x - x.mean(axis=-1, keepdims=True)
                x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + np.float32(1e-6)) * w[f"{name}.norm.weight"]
            x = np.maximum(x, 0) if name in self.how.rectified else x
        return x


def take_convolutions(tensors: Tensors, file: GGUFFile, mels: int, how: Convolutions) -> int:
    """Checks the tensors of the convolutions, which are not loaded onto a device. Returns the width of their rows."""
    for name, size in how.tables.items():
        check(tensors, file, name, *((mels, size) if size != WINDOW else (size,)))
    channels, frequencies = 1, mels
    for name in how.names:
        made, read, side, _ = (tensors.dimension(f"{name}.weight", axis, 4) for axis in range(4))
        depthwise = made == channels and read == 1
        side = 1 if side == 1 else 3
        check(tensors, file, f"{name}.weight", made, 1 if depthwise else channels, side, side)
        for other in ("bias", "norm.weight"):
            if f"{name}.{other}" in tensors:
                check(tensors, file, f"{name}.{other}", made)
        channels, frequencies = made, -(-frequencies // 2) if side == 3 else frequencies
    return channels * frequencies
