"""Images in saved chats. Each is stored once in the file, as it was added, under the digest of its pixels."""

import base64
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from ..engine.media import IMAGE
from ..errors import BadInput
from ..vision.image import unseen
from ..vision.pixels import Picture, picture_of
from ..vision.samples import Recording, encoded, medium_of
from .chat_format import Message
from .images import MAX_PIXELS, Image, Images, MediaInput, mark_of, spans_of

PREFIX = "image/"  # for the names of arrays
HEADS = {"png": b"\x89PNG", "jpeg": b"\xff\xd8"}  # beginnings of files
SOUND_HEADS = {"wav": b"RIFF", "flac": b"fLaC", "ogg": b"OggS", "aiff": b"FORM"}  # the same; any other is MP3
Bytes = npt.NDArray[Any]


def picture_in(image: Image) -> Picture | Recording:
    """The picture of an image, or the recording of a sound. If it was not kept, the input of the tower."""
    return image.picture or picture_of(image.tiles[-1])


def rows_of(message: Message) -> list[list[str]]:
    """The digests of each image of a message: of the prepared image, as in its mark, and of its pixels."""
    return [[image.identity.hex(), picture_in(image).digest.hex()] for image in message.images]


def arrays_of(messages: Iterable[Message]) -> dict[str, Bytes]:
    """The encoded images of messages, by name."""
    found = {picture.digest: picture for one in messages for picture in map(picture_in, one.images)}
    _check_pixels(found.values())
    return {PREFIX + digest.hex(): np.frombuffer(encoded(one), np.uint8) for digest, one in found.items()}


def as_parts(message: Message) -> str | list[dict[str, Any]]:
    """The content of a message as a page has it: a text, or parts if it has images or sounds."""
    if not message.images:
        return message.content
    media = {mark_of(image): _part(picture_in(image)) for image in message.images}
    parts: list[dict[str, Any]] = []
    for piece in re.split(f"({'|'.join(map(re.escape, media))})", message.content):
        if piece in media:
            parts.append(media[piece])
        elif piece:
            parts.append({"type": "text", "text": piece})
    return parts


def _part(medium: Picture | Recording) -> dict[str, Any]:
    """The part of a message for an image or a sound."""
    kind = "audio_url" if isinstance(medium, Recording) else "image_url"
    return {"type": kind, kind: {"url": data_url(medium)}}


def data_url(picture: Picture | Recording) -> str:
    """The data URL of an image in a format that every browser shows, or of a sound as it is."""
    data = encoded(picture)
    if isinstance(picture, Recording):
        sound = next((kind for kind, head in SOUND_HEADS.items() if data.startswith(head)), "mpeg")
        return f"data:audio/{sound};base64,{base64.b64encode(data).decode()}"
    kind = next((kind for kind, head in HEADS.items() if data.startswith(head)), None)
    if kind is None:
        kind, data = "png", encoded(replace(picture, file=None))
    return f"data:image/{kind};base64,{base64.b64encode(data).decode()}"


class SavedImages:
    """The images of a file, prepared for any model. Without a projector, they are only stored."""

    def __init__(self, arrays: Mapping[str, Bytes], media_input: MediaInput | None) -> None:
        self._arrays = arrays
        self._media_input = None if media_input is None else media_input.keeping
        self._pictures: dict[str, Picture | Recording] = {}

    def restored(self, message: Message, rows: Any) -> Message:
        """A message with its images."""
        if not isinstance(rows, list) or not all(isinstance(one, list) and len(one) == 2 for one in rows):
            raise TypeError("the images of a message are not a list of pairs")
        images, content = [], message.content
        for identity, digest in rows:
            picture, old = self._picture(str(digest)), unseen(_digest(identity))
            image = unseen(old.identity, picture)
            image = image if self._media_input is None else self._media_input.again(image)
            content = content.replace(mark_of(old), mark_of(image))
            images.append(image)
        return Message(
            message.role, content, message.reasoning, message.raw, tuple(images), message.calls, message.call
        )

    def _picture(self, digest: str) -> Picture | Recording:
        if digest not in self._pictures:
            array = self._arrays[PREFIX + digest]
            if array.dtype != np.uint8 or array.ndim != 1:
                raise TypeError("an image is not made of bytes")
            self._pictures[digest] = medium_of(array.tobytes(), "an image of the file")
            _check_pixels(self._pictures.values())
        return self._pictures[digest]


def same_images(messages: Sequence[Message], rows: Iterable[Any]) -> bool:
    """True if the model sees the images of messages as it did when they were saved, so that their tokens are valid."""
    seen = [[image.identity.hex() for image in one.images if image.tiles] for one in messages]
    return seen == [[str(identity) for identity, _ in each] for each in rows]


def check_ids(ids: Sequence[int], vocabulary: int, messages: Iterable[Message]) -> None:
    """Refuses ids that are neither in the vocabulary nor the rows of whole images."""
    images: Images = {mark_of(image): image for one in messages for image in one.images if image.tiles}
    at = 0
    for span in (*spans_of(ids, images), None):
        text = ids[at : len(ids) if span is None else span.start]
        if any(not isinstance(token, int) or not 0 <= token < vocabulary for token in text):
            raise ValueError("a token id is not in the vocabulary")
        if span is not None and list(ids[span.start : span.end]) != span.ids():
            raise ValueError("an image is incomplete")
        at = len(ids) if span is None else span.end


def id_type(ids: Sequence[int]) -> type[np.unsignedinteger[Any]]:
    """The type of an array of ids: those of images have 63 bits."""
    return np.uint64 if any(token & IMAGE for token in ids) else np.uint32


def _digest(text: Any) -> bytes:
    digest = bytes.fromhex(text)
    if len(digest) != 32:
        raise ValueError("a digest does not have 32 bytes")
    return digest


def _check_pixels(pictures: Iterable[Picture | Recording]) -> None:
    if sum(one.size.width * one.size.height for one in pictures) > MAX_PIXELS:
        raise BadInput(f"the images have more than {MAX_PIXELS:,} pixels in all; a saved chat may have as many")
