"""Audio towers as in Whisper: two convolutions over a spectrogram, a transformer, and a projector.

Two frames become one row. The inputs of a step are each frame with its neighbours, and learned positions.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np

from ..models.layered import normed
from ..models.tensors import Tensors
from ..ops.vocabulary import AnyNorm, HeadRows, Ops, Rms, State, Tensor, Weight
from .chunk_stem import CHUNKS, TABLE, take_stem
from .chunk_stem import ROWS as CHUNK_ROWS
from .family import Family
from .mel import CHUNK, Floats, as_rows, log_mel
from .tower_file import SOUNDS, TowerFile
from .towers import EMBEDDED, POSITIONS, Layer, MediaTower, Mlp, Projector, layer_rows

EVEN, ODD = "mel.even", "mel.odd"  # names of inputs: frames with their neighbours
ROWS = CHUNK // 2  # rows of the transformer for 30 seconds
FIRST, SECOND = "a.conv1d.1", "a.conv1d.2"


@dataclass(frozen=True)
class SoundTower(MediaTower):
    """A tower over pairs of frames of a sound."""

    weights: tuple[Weight, ...]
    convolutions: tuple[Weight, ...]  # [D, mels · 3], and [D, 3 · D] by frame; empty if the input is already convolved
    biases: tuple[Weight, ...]
    layers: tuple[Layer, ...]
    last_norm: AnyNorm | None
    projector: Projector
    pool: int  # number of rows that are averaged into one: 1 or 2
    stack: int  # number of averaged rows that are joined into one
    context: int = ROWS
    states: list[State] = field(default_factory=list)

    def outputs(self, rows: int) -> range:
        """The tower's rows that begin a row of the language model. An incomplete last one is left out."""
        each = self.pool * self.stack
        return range(self.pool - 1, rows // each * each, each)

    def features(self, g: Ops[Tensor], ids: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - frames have no ids
        x = self._convolved(g) if self.convolutions else g.step_input(POSITIONS)
        for i, layer in enumerate(self.layers):
            with g.layer(i):
                x = layer_rows(g, layer, x)
        if self.pool == 2:  # each odd row becomes the mean of itself and the row before
            x = g.scale(g.add(x, g.shift(x, self.states[1])), 0.5)
        x = normed(g, x, self.last_norm)
        if self.stack == 1:
            x = g.pick(x)
        else:
            width = x.shape[1]
            x = g.pick_blocks(x, self.pool * self.stack, "joined")
            x = g.resize_heads(x, self.stack, width) if self.pool == 2 else x
        return {EMBEDDED: self.projector.project(g, x)}

    def _convolved(self, g: Ops[Tensor]) -> Tensor:
        """The rows after both convolutions, with positions: the transformer's input, [T, D]"""
        even, odd = (
            g.gelu_erf(g.linear(g.step_input(name), self.convolutions[0], bias=self.biases[0])) for name in (EVEN, ODD)
        )
        x = g.concat(g.concat(g.shift(odd, self.states[0]), even), odd)  # frames 2t - 1, 2t and 2t + 1
        return g.add(g.gelu_erf(g.linear(x, self.convolutions[1], bias=self.biases[1])), g.step_input(POSITIONS))


@dataclass(frozen=True)
class OneMatrix(Projector):
    """Qwen2-Audio: W x + bias"""

    matrix: Weight
    bias: Weight | None

    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        return g.linear(x, self.matrix, bias=self.bias)


@dataclass(frozen=True)
class ExactMlp(Projector):
    """An optional norm, and two matrices with the exact form of GELU between them."""

    mlp: Mlp
    norm: AnyNorm | None = None

    @property
    def width(self) -> int:
        return self.mlp.down.shape[0]

    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        y = g.gelu_erf(g.linear(x, self.mlp.up, bias=self.mlp.up_bias, norm=self.norm))
        return g.linear(y, self.mlp.down, bias=self.mlp.down_bias)


@dataclass(frozen=True)
class GatedProjector(Projector):
    """Ultravox: W (norm(silu(gate h) · up h)), h = norm(x)"""

    norms: tuple[Rms, Rms]
    up: Weight
    gate: Weight
    down: Weight

    @property
    def width(self) -> int:
        return self.down.shape[0]

    def project(self, g: Ops[Tensor], x: Tensor) -> Tensor:
        up, gate = g.linears([x, x], (self.up, self.gate), then=("none", "silu"), norm=self.norms[0])
        return g.linear(g.mul(gate, up), self.down, norm=self.norms[1])


@dataclass(frozen=True)
class SoundFamily(Family):
    """The properties of a type of audio projector."""

    pool: int = 1  # rows of the transformer that are averaged into one
    stacks: bool = False  # whether the file gives the number of averaged rows to join
    chunked: bool = False  # whether a `ChunkStem` computes the transformer's input


class Stem(Protocol):
    """The first layers of an audio tower, in numpy. They run on the thread that prepares a sound."""

    @property
    def mels(self) -> int:
        """The number of mel bands."""

    @property
    def rows_of_30_seconds(self) -> int:
        """The number of rows of 30 seconds."""

    def tiles(self, samples: Floats) -> list[Floats]:
        """A sound in the parts that the tower reads at once."""

    def inputs(self, tile: Floats) -> Mapping[str, Floats]:
        """The inputs of the tower's step for a part, by name."""


@dataclass(frozen=True, eq=False)
class FrameStem:
    """The input of towers as in Whisper: spectrograms of 30 seconds, and learned positions."""

    mels: int
    table: Floats  # [ROWS, D]
    rows_of_30_seconds: int = ROWS

    def tiles(self, samples: Floats) -> list[Floats]:
        return log_mel(samples, self.mels)

    def inputs(self, tile: Floats) -> Mapping[str, Floats]:
        even, odd = as_rows(tile)
        return {EVEN: even, ODD: odd, POSITIONS: self.table}


class SoundFile(TowerFile):
    """A projector file whose audio tower is being read."""

    section, at = "clip.audio", "a"
    family: SoundFamily

    def _begin(self) -> None:
        self.stack = self.size("projector.stack_factor", 64) if self.family.stacks else 1
        self.as_matrices([f"{FIRST}.weight"])
        self.as_matrices([f"{SECOND}.weight"], axes=2)
        self._take_sounds()

    def _take_sounds(self) -> None:
        self.mels = self.size("num_mel_bins", 512)
        self.tensors = Tensors(self.file, tuple(name for name in self.file.tensors if not name.startswith(SOUNDS)))

    def stem(self) -> Stem:
        """The stem, which computes the tower's input."""
        tensors, width = self.tensors, self.width
        if self.family.chunked:
            return take_stem(tensors, self.file, self.mels, width)
        count, values = tensors.dimension(TABLE, 0), self.file.values(self.file.tensors[TABLE])
        if count < ROWS or values.shape != (count, width):
            raise tensors.bad(f"tensor '{TABLE}'", f"{list(values.shape)}", f"[{ROWS}, {width}]")
        tensors.skip(TABLE)
        return FrameStem(self.mels, values[:ROWS].astype(np.float32))

    def tower(self) -> SoundTower:
        """The tower and its projector."""
        family, tensors, width = self.family, self.tensors, self.width
        convolutions: tuple[Weight, ...] = ()
        biases: tuple[Weight, ...] = ()
        if not family.chunked:
            every = HeadRows(width, width, 0, width, transposed=True)
            convolutions = (
                tensors.take(f"{FIRST}.weight", width, 3 * self.mels),
                tensors.slice_heads(f"{SECOND}.by_frame", f"{SECOND}.weight", every, 3, flat=True),
            )
            biases = tensors.take(f"{FIRST}.bias", width), tensors.take(f"{SECOND}.bias", width)
        layers, norm, projector = self.layers(), self.optional_norm("a.post_ln"), family.read(self)
        return SoundTower(
            tuple(tensors.taken), convolutions, biases, layers, norm, projector, family.pool, self.stack,
            context=CHUNKS * CHUNK_ROWS if family.chunked else ROWS,
            states=[] if family.chunked else [State(name, (1, width)) for name in ("a.before", "a.pooled")],
        )  # fmt: skip
