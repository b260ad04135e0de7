"""The contents of a projector file: towers for images, sounds, or both."""

from dataclasses import dataclass
from pathlib import Path

from ..errors import BadFile, UnsupportedModel
from ..gguf.file import GGUFFile
from ..gguf.sample import check_sample
from ..gpu.device import Device
from .audio import Audio, SoundEncoder, audio_of
from .encoder import Encoder, TowerEncoder, tower_bytes
from .projector import Vision, vision_of
from .projector_names import ARCHITECTURE


@dataclass(frozen=True, eq=False)
class MediaProjector:
    """The contents of a projector file: a part for images, one for sounds, or both."""

    path: Path
    vision: Vision | None = None
    audio: Audio | None = None

    @property
    def parts(self) -> tuple[Vision | Audio, ...]:
        """The parts that are present."""
        return tuple(part for part in (self.vision, self.audio) if part is not None)

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds of input in addition to text: image, audio."""
        return ("image",) * (self.vision is not None) + ("audio",) * (self.audio is not None)

    @property
    def type(self) -> str:
        """The types of its projectors, separated by a comma."""
        return ", ".join(dict.fromkeys(part.type for part in self.parts))

    @property
    def identity(self) -> bytes:
        """A digest of its contents."""
        return b"".join(part.identity for part in self.parts)

    @property
    def min_rows(self) -> int:
        """The smallest chunk size: the rows of an image if each of them attends to the whole image, else 0."""
        return 0 if self.vision is None else self.vision.min_rows

    def encoders(self, device: Device | None) -> tuple[Encoder | None, SoundEncoder | None]:
        """The encoders for images and for sounds on a device; without a device, in numpy."""
        return (
            None if self.vision is None else Encoder(self.vision, device),
            None if self.audio is None else SoundEncoder(self.audio, device),
        )

    def tower_bytes(self, device: Device | None) -> int:
        """Memory in bytes of the loaded towers on a device; without a device, in numpy."""
        seen, heard = self.encoders(device)
        encoders: list[TowerEncoder | None] = [seen, seen and seen.first, heard]
        return sum(tower_bytes(one) for one in encoders if one is not None)


def read_projector(path: Path) -> MediaProjector:
    """Reads a projector file. Raises BadFile or UnsupportedModel."""
    with GGUFFile.open(path) as file:
        projector = projector_of(file)
        check_sample(file)
        return projector


def projector_of(file: GGUFFile) -> MediaProjector:
    """The contents of an open projector file. A part of an unsupported type is left out if there is another."""
    arch = file.str("general.architecture")
    if arch != ARCHITECTURE:
        raise BadFile(f"{file.path}: is a model of architecture '{arch}', not a projector; give an mmproj file")
    faults: list[UnsupportedModel] = []
    vision, audio = None, None
    try:
        vision = vision_of(file) if file.bool("clip.has_vision_encoder", default=False) else None
    except UnsupportedModel as error:
        faults.append(error)
    try:
        audio = audio_of(file) if file.bool("clip.has_audio_encoder", default=False) else None
    except UnsupportedModel as error:
        faults.append(error)
    if vision is None and audio is None:
        raise faults[0] if faults else UnsupportedModel(f"{file.path}: this projector has neither vision nor audio")
    return MediaProjector(Path(file.path), vision, audio)
