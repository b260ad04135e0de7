"""Joins a projector with its language model: checks that they fit, and makes rows for the engine."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.media import PlaneRope, rope_of
from ..errors import BadFile, BadInput, UnsupportedModel
from ..gguf.file import GGUFFile
from ..gpu.device import Device
from ..models.registry import Contents
from ..ops.media import EMBEDDED
from .audio import Audio, Sound, SoundEncoder
from .encoder import Encoder
from .image import Image
from .media_projector import MediaProjector, read_projector
from .projector import Vision
from .projector_names import projectors_next_to
from .towers import deepstack

MAX_CANDIDATES = 16  # projectors in a folder that are tried
CONTIGUOUS = (
    "qwen2vl",
    "glm4",
    "glm4moe",
    "paddleocr",
    "hunyuan_vl",
)  # architectures whose two-dimensional positions rotate neighbouring pairs


@dataclass(frozen=True)
class MediaEncoders:
    """Encodes images and sounds as input rows of one language model."""

    projector: MediaProjector
    encoders: tuple[Encoder | None, SoundEncoder | None]  # encoders of images and of sounds
    angles: PlaneRope | None

    @property
    def widths(self) -> Mapping[str, int]:
        """The width of each kind of row that it computes, by name."""
        vision = self.projector.vision
        names = [] if vision is None else map(deepstack, range(vision.deepstack))
        return dict.fromkeys([EMBEDDED, *names], self.projector.parts[0].width)

    def rows(self, image: Image, salt: int = 0) -> Mapping[str, npt.NDArray[np.float32]]:
        """The rows of an image by name, [R, D] each. Rows of an equal image are reused only with the same salt."""
        return self._encoder(image).rows(image, salt)

    def advance(self, image: Image, salt: int = 0) -> bool:
        """Submits the next part of the work on an image. True if its rows are ready."""
        return self._encoder(image).advance(image, salt)

    def _encoder(self, image: Image) -> Encoder | SoundEncoder:
        encoder = self.encoders[isinstance(image, Sound)]
        assert encoder is not None, "it was prepared for this projector"
        return encoder


def check_projector(projector: MediaProjector, file: GGUFFile, model: Contents) -> PlaneRope | None:
    """Refuses a projector of another language model. Returns the two-dimensional rotation if positions need one."""
    arch = file.str("general.architecture")
    width = file.int(f"{arch}.embedding_length", default=0)
    for part in projector.parts:
        if width != part.width:
            raise _other(part, f"it makes rows of {part.width:,} numbers, and the model has {width:,}")
    return None if projector.vision is None else _plane(projector.vision, file, model, arch)


def _plane(vision: Vision, file: GGUFFile, model: Contents, arch: str) -> PlaneRope | None:
    """The two-dimensional rotation of positions, if the projector needs one."""
    layers = file.int(f"{arch}.n_deepstack_layers", low=0, high=1 << 10, default=vision.deepstack)
    if layers != vision.deepstack:
        raise _other(vision, f"it makes rows for {vision.deepstack} layers, and the model expects {layers}")
    key = f"{arch}.rope.dimension_sections"
    if not vision.family.grid_positions:
        if key in file.metadata:
            raise _other(vision, "the model needs two-dimensional positions, and the projector does not give them")
        return None
    rope: Any = rope_of(model)
    if rope is None or rope.factors or rope.long_factors or key not in file.metadata:
        raise _other(vision, "the model has no two-dimensional positions")
    sections = tuple(int(count) for count in file.ints(key)[:4])
    if min(sections) < 0 or not 0 < sum(sections) <= rope.dims // 2:
        raise _other(vision, f"the sections of positions are {list(sections)}")
    return PlaneRope(rope, sections, interleaved=arch not in CONTIGUOUS)


def find_projector(file: GGUFFile, model: Contents) -> MediaProjector | None:
    """The projector of a model in the same folder: a file with mmproj in its name; None if no such file fits."""
    for name in projectors_next_to(file.path)[:MAX_CANDIDATES]:
        try:
            projector = read_projector(file.path.with_name(name))
            check_projector(projector, file, model)
        except (BadFile, BadInput, UnsupportedModel, OSError):
            continue
        return projector
    return None


def media_encoders_for(
    projector: MediaProjector, file: GGUFFile, model: Contents, device: Device | None
) -> MediaEncoders:
    """Creates the encoders of a language model on a device; None is numpy."""
    return MediaEncoders(projector, projector.encoders(device), check_projector(projector, file, model))


def _other(part: Vision | Audio, why: str) -> BadInput:
    return BadInput(f"{part.path}: is the projector of another model: {why}; use the one of this model")
