"""Pictures as pixels: decoding within limits, resizing as a family requires, and patches. Uses Pillow.

All of this is slow, so it runs on the caller's thread, never on that of an engine.
"""

import hashlib
import io
import os
import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import BadInput, MissingExtra
from .sizes import LONGEST, Filter, Preparation, Size, inside

Source = str | os.PathLike[str] | bytes | Any  # a path, the bytes of a file, an array [H, W, 3] or a PIL image
MAX_BYTES = 64 << 20  # maximum size of an encoded image
MAX_PIXELS = 1 << 26  # maximum size of a decoded image
LIMIT = f"{LONGEST:,} on a side and {MAX_PIXELS:,} in all"
MAX_SLOW_BYTES = 2 << 20  # maximum size of an encoded image that Pillow decodes in Python
MAX_SCANS = 100  # maximum number of scans of a JPEG file, as each of them goes through all pixels
BAND = 256  # rows of 16-bit and float pixels that are converted at once
TILE_SIZE = 322, 323  # tags of a TIFF file: width and length of a tile
FORMATS = "PNG", "JPEG", "WEBP", "GIF", "BMP", "TIFF", "PPM"
HELP = "take a PNG, JPEG, WebP, GIF, BMP, TIFF or PPM file"


@dataclass(frozen=True, eq=False)
class Picture:
    """A decoded image: RGB pixels, and their digest."""

    pixels: npt.NDArray[np.uint8]  # [H, W, 3]
    digest: bytes
    file: bytes | None = None  # the encoded file, if there was one

    @property
    def size(self) -> Size:
        return Size(self.pixels.shape[1], self.pixels.shape[0])


def picture_of(source: Source, where: str = "the image") -> Picture:
    """Decodes an image: its first frame, upright, without transparency. Raises BadInput with one sentence."""
    if isinstance(source, Picture):
        return source
    if isinstance(source, str | os.PathLike):
        source, where = read_file(source, HELP), str(source)
    if isinstance(source, bytes | bytearray | memoryview):
        data = bytes(source)
        return replace(_picture(_decoded(data, where)), file=data)
    if isinstance(source, np.ndarray):
        return _picture(_checked_array(source, where).copy())  # the caller may change the array later
    return _picture(_readable(lambda: _converted(source, where), where))


def encoded(picture: Picture) -> bytes:
    """An image as a file: the one that it was decoded from, or a PNG."""
    if picture.file is not None:
        return picture.file
    data = io.BytesIO()
    _pillow().fromarray(picture.pixels).save(data, "PNG")
    return data.getvalue()


def stretched(pixels: npt.NDArray[np.uint8], target: Size, resampling: Filter) -> npt.NDArray[np.uint8]:
    """The pixels resized to another size without keeping the aspect ratio. [H, W, 3]"""
    image = _pillow()
    height, width = pixels.shape[:2]
    if target == (width, height):
        return pixels
    # Columns first, as both passes round and Pillow chooses their order by size.
    how = image.Resampling[resampling.upper()]
    return np.asarray(image.fromarray(pixels).resize((target.width, height), how).resize(target, how))


def bordered(
    pixels: npt.NDArray[np.uint8],
    target: Size,
    resampling: Filter,
    color: tuple[int, int, int] = (0, 0, 0),
    *,
    nearest: bool = False,
) -> npt.NDArray[np.uint8]:
    """The pixels resized to another size with the aspect ratio kept; borders fill the rest. [H, W, 3]

    The size within the borders is rounded up, or to the nearest.
    """
    size = Size(pixels.shape[1], pixels.shape[0])
    if size == target:
        return pixels
    inner = inside(size, target, nearest=nearest)
    framed = np.full((target.height, target.width, 3), color, np.uint8)
    left, top = ((outer - length + nearest) // 2 for outer, length in zip(target, inner, strict=True))
    framed[top : top + inner.height, left : left + inner.width] = stretched(pixels, inner, resampling)
    return framed


def patches_of(pixels: npt.NDArray[np.uint8], how: Preparation) -> npt.NDArray[np.float32]:
    """The patches of resized pixels, normalised and in blocks. [T, 3 · p · p]"""
    mean, deviation = (np.array(numbers, np.float32) for numbers in (how.mean, how.deviation))
    values = (np.arange(256, dtype=np.float32)[:, None] / np.float32(255) - mean) / deviation  # of each shade, [256, 3]
    grid, merge, side = how.grid(Size(pixels.shape[1], pixels.shape[0])), how.merge, how.patch
    tiles = pixels.reshape(grid.height // merge, merge, side, grid.width // merge, merge, side, 3)
    shades = tiles.transpose(0, 3, 1, 4, 6, 2, 5).reshape(-1, 3, side**2)
    patches = np.empty(shades.shape, np.float32)
    for color in range(3):
        patches[:, color] = values[:, color][shades[:, color]]
    return patches.reshape(len(patches), -1)


def _picture(pixels: npt.NDArray[np.uint8]) -> Picture:
    pixels = np.ascontiguousarray(pixels)
    digest = hashlib.sha256(f"{pixels.shape[1]} x {pixels.shape[0]} ".encode())
    digest.update(pixels.data)
    return Picture(pixels, digest.digest())


def _pillow() -> Any:
    try:
        from PIL import Image
    except ImportError:
        raise MissingExtra.of("images need Pillow", "media") from None
    return Image


def read_file(source: str | os.PathLike[str], remedy: str) -> bytes:
    """The bytes of a file, and one more than allowed of a larger one."""
    path = Path(source)
    try:
        if not path.is_file():
            if str(source).startswith(("http:/", "https:/")):
                remedy = "download it first"
            raise BadInput(f"{source}: is not a file; {remedy}")
        with path.open("rb") as file:
            return file.read(MAX_BYTES + 1)
    except OSError as error:
        raise BadInput(f"{path}: cannot be read: {error.strerror}") from None


def _decoded(data: bytes, where: str) -> npt.NDArray[np.uint8]:
    """The pixels of an encoded image, whose size is checked before it is decoded."""
    image = _pillow()
    if len(data) > MAX_BYTES:
        raise BadInput(f"{where} has more than {MAX_BYTES >> 20} MiB; make it smaller")

    def decode() -> npt.NDArray[np.uint8]:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the bound on pixels is below Pillow's own
            opened = image.open(io.BytesIO(data), formats=FORMATS)
            _check_size(Size(*opened.size), where)
            _check_work(opened, data, where)
            opened.draft("RGB", None)
            opened.load()
            return _converted(opened, where)

    return _readable(decode, where)


def _readable(decode: Callable[[], npt.NDArray[np.uint8]], where: str) -> npt.NDArray[np.uint8]:
    """The pixels that `decode` returns. Decoders of broken images raise anything; the reason is in the sentence."""
    image = _pillow()
    try:
        return decode()
    except BadInput:
        raise
    except image.DecompressionBombError:
        raise BadInput(f"{where} has far too many pixels; the limit is {LIMIT}, so make it smaller") from None
    except Exception as error:  # noqa: BLE001
        reason = "its format is unknown" if isinstance(error, image.UnidentifiedImageError) else str(error)
        raise BadInput(f"{where} is not an image that can be read ({reason or type(error).__name__}); {HELP}") from None


def _check_work(opened: Any, data: bytes, where: str) -> None:
    """Refuses files of few bytes or pixels that take much time or memory to decode."""
    if opened.format == "TIFF" and all(tag in opened.tag_v2 for tag in TILE_SIZE):
        _check_size(Size(*(opened.tag_v2[tag] for tag in TILE_SIZE)), f"{where}: a tile of the file")
    if opened.format in ("JPEG", "MPO") and data.count(b"\xff\xda") > MAX_SCANS:
        raise BadInput(f"{where} has more than {MAX_SCANS} scans; save it again")
    if len(data) > MAX_SLOW_BYTES and any(tile[0] in _pillow().DECODERS for tile in opened.tile):
        raise BadInput(f"{where} is a {opened.format} file of a kind that takes long to decode; save it as PNG")


def _converted(opened: Any, where: str) -> npt.NDArray[np.uint8]:
    """RGB pixels of a PIL image, upright; transparent parts are white."""
    image = _pillow()
    from PIL import ImageOps

    if not isinstance(opened, image.Image):
        raise BadInput(f"{where} is of type {type(opened).__name__}; give a path, bytes, an array or a PIL image")
    _check_size(Size(*opened.size), where)
    opened = ImageOps.exif_transpose(opened)
    if opened.mode in ("I", "F") or opened.mode.startswith("I;16"):
        values = np.asarray(opened)
        unit = 1 / 257 if opened.mode != "F" else 255.0 if values.max(initial=0) <= 1 else 1.0
        shades = np.empty((*values.shape, 3), np.uint8)
        for top in range(0, len(values), BAND):
            band = np.nan_to_num(values[top : top + BAND].astype(np.float64) * unit)
            shades[top : top + BAND] = np.clip(band, 0, 255).round()[..., None]
        return shades
    if opened.has_transparency_data:
        opened = opened.convert("RGBA")
        white = image.new("RGBA", opened.size, "white")
        opened = image.alpha_composite(white, opened)
    return np.asarray(opened.convert("RGB"))


def _checked_array(array: npt.NDArray[Any], where: str) -> npt.NDArray[np.uint8]:
    if array.ndim == 2:
        array = np.repeat(array[..., None], 3, axis=2)
    if array.dtype != np.uint8 or array.ndim != 3 or array.shape[2] != 3:
        raise BadInput(
            f"{where} is an array {list(array.shape)} of {array.dtype}; it must be [height, width, 3] of uint8"
        )
    _check_size(Size(array.shape[1], array.shape[0]), where)
    return array


def _check_size(size: Size, where: str) -> None:
    if min(size) < 1 or max(size) > LONGEST or size.width * size.height > MAX_PIXELS:
        shape = f"{size.width:,} x {size.height:,}"
        raise BadInput(f"{where} has {shape} pixels; the limit is {LIMIT}, so make it smaller")
