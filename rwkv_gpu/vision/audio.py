"""Audio input of a language model: types of audio projectors, prepared sounds, and their encoder."""

import hashlib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..gguf.file import GGUFFile
from ..gpu.device import Device
from ..ops.vocabulary import Rms
from .conformer import ConformerTower
from .conformer_file import CONFORMERS, ConformerFamily, ConformerFile
from .encoder import Rows, TowerEncoder
from .image import Image
from .projector import Vision
from .samples import Recording
from .sizes import Size
from .sound_tower import ExactMlp, GatedProjector, OneMatrix, SoundFamily, SoundFile, SoundTower, Stem
from .tower_file import family_of, identity_of
from .towers import POSITIONS, Projector

EPS = 1e-6  # epsilon of the norms of a gated projector


def _one_matrix(source: SoundFile) -> Projector:
    name, out = "mm.a.fc", source.tensors.dimension("mm.a.fc.weight", 0)
    return OneMatrix(source.tensors.take(f"{name}.weight", out, source.width), source.tensors.find(f"{name}.bias", out))


def _mlp(source: SoundFile) -> Projector:
    return ExactMlp(source.mlp("mm.a.mlp.1", "mm.a.mlp.2", source.width * source.stack))


def _gated(source: SoundFile) -> Projector:
    tensors, width = source.tensors, source.width * source.stack
    first, second = "mm.a.mlp.1.weight", "mm.a.mlp.2.weight"
    out, inner = (tensors.dimension(second, axis) for axis in (0, 1))
    up, gate = tensors.split(first, width, ("mm.a.mlp.up", inner), ("mm.a.mlp.gate", inner))
    tensors.keep(up, gate)
    sizes = {"pre": width, "mid": inner}
    before, between = (Rms(tensors.take(f"mm.a.norm_{name}.weight", size), EPS) for name, size in sizes.items())
    return GatedProjector((before, between), up, gate, tensors.take(second, out, inner))


QWEN = SoundFamily(_one_matrix, begin="<|audio_bos|>", end="<|audio_eos|>", erf=True, pool=2)
SOUND_FAMILIES = {
    **CONFORMERS,
    "qwen2a": QWEN,
    "qwen2.5o": QWEN,  # Qwen2.5-Omni uses this type for its vision part and its audio part
    "ultravox": SoundFamily(_gated, erf=True, stacks=True),
    "voxtral": SoundFamily(_mlp, begin="[BEGIN_AUDIO]", erf=True, pool=2, stacks=True),
    "qwen3a": SoundFamily(_mlp, begin="<|audio_start|>", end="<|audio_end|>", erf=True, chunked=True),
    "musicflamingo": SoundFamily(_mlp, begin="<sound>", erf=True, pool=2),
}


@dataclass(frozen=True, eq=False)
class Audio:
    """The audio part of a projector file: the tower, and the texts around a sound."""

    path: Path
    type: str
    family: SoundFamily
    tower: SoundTower | ConformerTower
    stem: Stem
    identity: bytes  # digest of the metadata and the beginning of each tensor

    @property
    def width(self) -> int:
        """The width of its output rows, which is that of the language model."""
        return self.tower.projector.width

    @property
    def rows_of_30_seconds(self) -> int:
        """The number of rows that the language model reads for a sound of 30 seconds."""
        return len(self.tower.outputs(self.stem.rows_of_30_seconds))


def audio_of(file: GGUFFile) -> Audio:
    """The audio part of an open projector file."""
    kind, family = family_of(file, "audio", SOUND_FAMILIES, "audio projectors")
    source = (ConformerFile if isinstance(family, ConformerFamily) else SoundFile)(file, family)
    tower, stem = source.tower(), source.stem()
    source.tensors.refuse_the_rest()
    return Audio(Path(file.path), kind, family, tower, stem, identity_of(file, kind))


@dataclass(frozen=True, eq=False)
class Sound(Image):
    """A prepared sound: parts of some seconds, which the tower reads one by one. The engine treats it as an image."""

    around: tuple[str, str] = "", ""

    def texts(self, vision: Vision | None = None) -> tuple["str | Image", ...]:  # noqa: ARG002 - it has its own
        """The texts and the sound that replace it in a prompt."""
        return self.around[0], self, self.around[1]


def prepare_audio(audio: Audio, recording: Recording) -> Sound:
    """Computes the tower's input from a recording. This is slow and runs on the caller's thread."""
    tiles = audio.stem.tiles(recording.samples)
    count = sum(len(_rows(audio, tile)[1]) for tile in tiles)
    none = Size(0, 0)
    identity = hashlib.sha256(audio.identity + recording.digest).digest()
    around = audio.family.begin, audio.family.end
    return Sound(tiles, none, none, count, count, 0, identity, around=around)


class SoundEncoder(TowerEncoder):
    """The audio tower of a projector file on a device."""

    def __init__(self, audio: Audio, device: Device | None) -> None:
        super().__init__(audio.path, device)
        self.audio = audio

    def tower(self, file: GGUFFile) -> SoundTower | ConformerTower:
        return audio_of(file).tower

    def inputs(self, image: Image, tile: npt.NDArray[np.float32]) -> tuple[Rows, npt.NDArray[np.int64]]:  # noqa: ARG002 - sounds have no size
        return _rows(self.audio, tile)


def _rows(audio: Audio, tile: npt.NDArray[np.float32]) -> tuple[Rows, npt.NDArray[np.int64]]:
    """The inputs of a step of the tower, and the rows from which it makes output rows."""
    given = audio.stem.inputs(tile)
    return given, np.array(audio.tower.outputs(len(given[POSITIONS])))
