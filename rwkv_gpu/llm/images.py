"""Images in messages and prompts: each becomes a mark in the text, and the mark becomes the rows of the image.

A mark holds the digest of its image, so texts with equal marks have equal images, and transcripts keep their ids.
"""

import base64
import binascii
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from ..engine.media import IMAGE, Span, image_ids
from ..engine.request import check_length
from ..errors import BadInput
from ..text.base import Tokenizer
from ..text.interruption import check
from ..text.messages import UNKNOWN_PART
from ..vision.image import Image, prepare, unseen
from ..vision.pixels import MAX_BYTES, Picture, Source
from ..vision.samples import Recording, medium_of, recording_of

if TYPE_CHECKING:  # a model without a projector does not need them
    from ..vision.media_projector import MediaProjector

__all__ = ["MAX_BYTES", "Image", "Images", "MediaInput", "Source", "recording_of"]
Images = Mapping[str, Image]  # by mark
MARK = re.compile(rb"<\|image:[0-9a-f]{64}\|>")
MARKER = "<__media__>"  # stands for an image in a prompt, as in llama.cpp
MAX_IMAGES = 256  # maximum images of a request, including repeated ones
MAX_PIXELS = 1 << 30  # pixels of all pictures that a request decodes, or that a chat keeps
NO_PROJECTOR = (
    "this model was loaded without a projector, so it takes no images and no audio; put its mmproj file next to it, "
    "or name it with --mmproj"
)
NO_AUDIO = "this model takes no audio: its projector is for images; use a model for audio, such as Voxtral or Ultravox"
SOUNDS = "audio", "audio_url", "input_audio"  # types of content parts that are sounds
KINDS = "image", "image_url", "input_image", *SOUNDS  # types of content parts that are images or sounds


def mark_of(image: Image) -> str:
    """The mark that represents an image in a text."""
    return f"<|image:{image.identity.hex()}|>"


@dataclass(frozen=True)
class MarkedTokenizer:
    """A tokenizer that replaces the marks of these images by the rows of the images."""

    inner: Tokenizer
    images: Images
    projector: "MediaProjector"

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)

    def encode(self, text: str | bytes, *, after: int | None = None, **options: Any) -> list[int]:
        """The ids of a text. Each image is placed between the texts that the model family puts around images."""
        data = text.encode() if isinstance(text, str) else text
        ids: list[int] = []
        at = 0
        for found in MARK.finditer(data):
            image = self.images.get(found[0].decode())
            if image is None:  # the text itself contained a mark
                continue
            ids += self._text(data[at : found.start()], after if not at else None, options)
            for part in image.texts(self.projector.vision):
                ids += self._text(part.encode(), None, options) if isinstance(part, str) else image_ids(part)
            at = found.end()
        return ids + self._text(data[at:], after if not at else None, options)

    def _text(self, text: bytes, after: int | None, options: Mapping[str, Any]) -> list[int]:
        return self.inner.encode(text, after=after, **options) if text else []


@dataclass(frozen=True)
class ImagePrompt:
    """A prompt in which each marker stands for an image, in order. Special tokens in it are matched."""

    text: str
    images: Sequence[Any]  # base64 data, or another form of an image in a message

    def marked(self, media_input: "MediaInput | None") -> tuple[str, dict[str, Image]]:
        """The text with marks in place of markers, and the images by mark."""
        first, *others = self.text.split(MARKER)
        if len(others) != len(self.images):
            raise BadInput(
                f"prompt has {len(others):,} markers {MARKER} and {len(self.images):,} images; give one for each image"
            )
        if media_input is None:
            raise BadInput(NO_PROJECTOR)
        album = RequestImages(media_input)
        marks = [album.add(source, f"image {n} of the prompt") for n, source in enumerate(self.images, 1)]
        return first + "".join(map("".join, zip(marks, others, strict=True))), album.images


@dataclass(frozen=True)
class MediaInput:
    """Prepares images for a model with a projector.

    With `keeps`, an image includes its picture, so that another model can use it.
    """

    projector: "MediaProjector"
    context: int | None = None  # tokens of a prompt
    keeps: bool = False

    @property
    def keeping(self) -> "MediaInput":
        """Returns a copy whose images include their pictures, for chats that may drop their first messages."""
        return replace(self, keeps=True, context=None)

    def image(
        self, source: Any, where: str = "the image", count: Callable[[Picture | Recording], None] | None = None
    ) -> Image:
        """Decodes, counts and prepares an image or a sound: a path, bytes, an array, a PIL image or a recording."""
        if isinstance(source, Image):
            return source
        medium, projector = medium_of(source, where), self.projector
        if count is not None:
            count(medium)
        kept = medium if self.keeps else None
        if isinstance(medium, Recording):
            if projector.audio is None:
                raise BadInput(NO_AUDIO)
            from ..vision.audio import prepare_audio

            return replace(prepare_audio(projector.audio, medium), picture=kept)
        if projector.vision is None:
            raise BadInput("this model takes no images: its projector is for audio; send audio or text")
        return replace(prepare(projector.vision, medium), picture=kept)

    def again(self, image: Image) -> Image:
        """Prepares an image or a sound that another model has read for this model, if this model supports it."""
        medium = image.tiles[-1] if image.picture is None else image.picture
        able = self.projector.audio if isinstance(medium, Recording) else self.projector.vision
        return unseen(image.identity, image.picture) if able is None else self.keeping.image(medium)

    def tokenizer(self, tokenizer: Tokenizer, images: Images) -> Tokenizer:
        """A tokenizer for texts with marks of these images."""
        return MarkedTokenizer(tokenizer, images, self.projector) if images else tokenizer  # type: ignore[return-value]


class RequestImages:
    """The images of a request. Each is counted before and after it is decoded, so that a request stays small."""

    def __init__(self, media_input: MediaInput | None) -> None:
        self.images: dict[str, Image] = {}  # by mark
        self._media_input = media_input
        self._count = self._tokens = self._pixels = 0

    def add(self, source: Any, where: str) -> str:
        """The mark of an image, which may be one that the request has already."""
        if self._media_input is None:
            raise BadInput(NO_PROJECTOR)
        check()
        self._count += 1
        if self._count > MAX_IMAGES:
            raise BadInput(f"there are more than {MAX_IMAGES} images; send fewer")
        image = self._media_input.image(_bytes(source, where), where, self._spend)
        mark = mark_of(image)
        self._tokens += image.tokens
        check_length(self._tokens, self._media_input.context, least=True)
        if isinstance(source, Image) and mark not in self.images and image.picture is not None:
            self._spend(image.picture)
        self.images[mark] = image
        return mark

    def _spend(self, medium: Picture | Recording) -> None:
        self._pixels += medium.size.width * medium.size.height
        if self._pixels > MAX_PIXELS:
            raise BadInput(f"the images have more than {MAX_PIXELS:,} pixels in all; send fewer, or smaller ones")


def marked(
    messages: Sequence[Mapping[str, object]], media_input: MediaInput | None
) -> tuple[Sequence[Mapping[str, object]], dict[str, Image]]:
    """The messages with marks in place of images, and the images by mark. Refuses images if there is no projector."""
    album = RequestImages(media_input)
    if isinstance(messages, str | bytes | Mapping) or not isinstance(messages, Sequence):
        return messages, {}  # refused later, when messages are checked
    texts = [_marked(message, album, f"messages[{i}]") for i, message in enumerate(messages)]
    return texts, album.images


def has_images(messages: Any) -> bool:
    """True if any message has an image, which is slow to decode."""
    if not isinstance(messages, list | tuple):
        return False
    each = [message for message in messages if isinstance(message, Mapping)]
    return any(message.get("images") or _has_parts(message.get("content")) for message in each)


def has_media(body: Mapping[str, Any]) -> bool:
    """True if the body of a request of any API has images or sounds."""
    prompt = body.get("prompt")
    prompts = prompt if isinstance(prompt, list) else [prompt]
    return (
        bool(body.get("images"))
        or has_images(body.get("messages"))
        or has_images(body.get("input"))
        or any(isinstance(one, Mapping) and one.get("multimodal_data") for one in prompts)
    )


def _has_parts(content: Any) -> bool:
    return isinstance(content, list) and any(isinstance(p, Mapping) and p.get("type") in KINDS for p in content)


def _marked(message: Any, album: RequestImages, where: str) -> Mapping[str, object]:
    if not isinstance(message, Mapping):
        return message  # type: ignore[no-any-return]
    content, own = message.get("content"), message.get("images")
    parts = _has_parts(content)
    if not own and not parts:
        return message
    text, marks = "".join(_pieces(content, album, f"{where}.content")) if parts else content, ""
    for n, source in enumerate(own if isinstance(own, Sequence) and not isinstance(own, str) else ()):
        mark = album.add(source, f"{where}.images[{n}]")
        if isinstance(text, str) and not (isinstance(source, Image) and mark in text):  # an earlier message has marks
            marks += mark
    text = marks + text if isinstance(text, str) else text
    return {**{key: value for key, value in message.items() if key != "images"}, "content": text}


def _pieces(content: Any, album: RequestImages, where: str) -> Iterator[str]:
    """The texts and marks of the parts of a message; adjacent texts are separated by a newline."""
    after_text = False
    for n, part in enumerate(content):
        at = f"{where}[{n}]"
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind in KINDS:
            source = _source(part, at)
            if kind in SOUNDS:
                source = recording_of(_bytes(source, at), at)
            yield album.add(source, at)
            after_text = False
            continue
        text = part.get("text") if kind in ("text", "input_text") else None
        if not isinstance(text, str):
            raise BadInput(f"{at} {UNKNOWN_PART}")
        yield "\n" * after_text + text
        after_text = True


def _source(part: Mapping[str, Any], where: str) -> Any:
    """The image or the sound of a part: its content, a URL, or base64."""
    url = url_of(part)
    if url is None:
        raise BadInput(f"{where} has no image or audio")
    if part.get("type") == "input_audio":
        return url
    if (isinstance(url, str) and not is_data(url)) or isinstance(url, int | float | list | dict):
        raise BadInput(f"{where}: images must be data URLs (data:image/png;base64,...); other URLs are not fetched")
    return url


def url_of(part: Mapping[str, Any]) -> Any:
    """The image or sound of a part: a URL, base64, or any form that the library accepts."""
    found = [part[key] for key in ("image_url", "image", "input_audio", "audio_url", "audio") if key in part]
    url = found[0] if found else None
    return url.get("url", url.get("data")) if isinstance(url, Mapping) else url


def is_data(url: str) -> bool:
    """True for a URL that contains the data itself."""
    return url[:5].lower() == "data:"


def base64_of(text: object, where: str) -> bytes:
    """The bytes of a data URL or of base64, which may have line breaks. Nothing is fetched."""
    if isinstance(text, str) and is_data(text):
        head, _, text = text.partition(",")
        text = text if head.lower().endswith(";base64") else None
    if not isinstance(text, str) or len(text) > MAX_BYTES * 4 // 3 + 4:
        raise BadInput(f"{where} must be base64 of at most {MAX_BYTES >> 20} MiB")
    try:
        return base64.b64decode("".join(text.split()), validate=True)
    except (binascii.Error, ValueError):
        raise BadInput(f"{where} is not base64; send the bytes of the file in base64") from None


def _bytes(source: Any, where: str) -> Any:
    """The bytes of a text, which is never a path: messages come from other machines."""
    return base64_of(source, where) if isinstance(source, str) else source


def media_of(media_input: MediaInput | None) -> tuple[str, ...]:
    """The kinds of input that a model accepts in addition to text: image, audio."""
    return () if media_input is None else media_input.projector.kinds


def spans_of(ids: Sequence[int], images: Images) -> list[Span]:
    """The positions of images among the ids of a prompt."""
    if not images:
        return []
    firsts = {image_ids(unit)[0]: unit for image in images.values() for unit in image.units if unit.tokens}
    return [Span(at, firsts[token]) for at, token in enumerate(ids) if token in firsts]


def text_ids(ids: Sequence[int]) -> list[int]:
    """The ids of a prompt without those of images."""
    return [token for token in ids if not token & IMAGE]


def marks_in(text: str) -> list[str]:
    """The marks of images in a text, in order."""
    return [mark.decode() for mark in MARK.findall(text.encode("utf-8", "replace"))]


def without_marks(text: str) -> str:
    """A text without the marks of images."""
    return MARK.sub(b"", text.encode("utf-8", "surrogateescape")).decode("utf-8", "surrogateescape")
