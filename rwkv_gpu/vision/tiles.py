"""Ways to cut an image into tiles, which a tower encodes one by one; by family.

Resampling is slow and runs on the caller's thread.
"""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from .pixels import Picture, bordered, stretched
from .sizes import Preparation, Size, closest_grid, fitted, multiple, should_tile, sliced, squared

Pixels = npt.NDArray[np.uint8]  # [H, W, 3]
LFM2_TILES = 2, 10  # minimum and maximum tiles of an image
MAX_SLICES = 9
MAX_TILES = 64  # maximum tiles of an image


@dataclass(frozen=True, eq=False)
class Cut:
    """The images that a tower encodes for one image: tiles by row, and the whole image."""

    whole: Pixels
    tiles: tuple[Pixels, ...] = ()  # empty: the image has no tiles
    columns: int = 0  # tiles of a row


def uncut(picture: Picture, how: Preparation) -> Cut:
    """The image without tiles, with borders to fill the aspect ratio."""
    return Cut(bordered(picture.pixels, how.target(picture.size), how.resampling, how.border))


def unbordered(picture: Picture, how: Preparation) -> Cut:
    """The image without tiles, stretched."""
    return Cut(stretched(picture.pixels, how.target(picture.size), how.resampling))


def best_shape(picture: Picture, how: Preparation) -> Cut:
    """InternVL: tiles whose total size keeps most pixels; the whole image is stretched."""
    whole = stretched(picture.pixels, how.target(picture.size), how.resampling)
    size = how.tiled(picture.size)
    return _squares(whole, bordered(picture.pixels, size, how.resampling), how.side) if size.width else Cut(whole)


def any_shape(picture: Picture, how: Preparation) -> Cut:
    """LLaVA: tiles if the file lists sizes for them, otherwise the whole image only."""
    return best_shape(picture, how) if how.shapes else uncut(picture, how)


def closest_shape(picture: Picture, how: Preparation) -> Cut:
    """LFM2: large images get the tiles whose total aspect ratio is closest to that of the image."""
    whole = stretched(picture.pixels, how.target(picture.size), how.resampling)
    if not should_tile(picture.size, how):
        return Cut(whole)
    side = how.tile_side
    grid = closest_grid(picture.size, side, LFM2_TILES)
    refined = bordered(picture.pixels, Size(grid.width * side, grid.height * side), how.resampling)
    return _squares(whole, refined, side)


def rows_of_tiles(picture: Picture, how: Preparation) -> Cut:
    """DeepSeek-OCR: large images are stretched to the grid of the closest aspect ratio; whole ones get borders."""
    target = how.target(picture.size)
    whole = bordered(picture.pixels, target, how.resampling, how.border, nearest=True)
    side = how.tile_side
    if max(picture.size) <= side:
        return Cut(whole)
    grid = closest_grid(picture.size, side, how.counts)
    return _squares(whole, stretched(picture.pixels, Size(grid.width * side, grid.height * side), how.resampling), side)


def longest_side(picture: Picture, how: Preparation) -> Cut:
    """Idefics 3 and SmolVLM: the longer side is scaled to a given length, then both are stretched to whole tiles.

    Old files do not state the length. For these, sides are rounded to tiles, with borders.
    """
    side, (width, height) = how.side, picture.size
    if not how.longest:
        size = fitted(picture.size, side, 0, MAX_TILES * side**2)
        whole = stretched(picture.pixels, Size(side, side), "bicubic")
        return _squares(whole, bordered(picture.pixels, size, "bicubic"), side)
    shape = width / height
    short = int(how.longest / shape if width >= height else how.longest * shape)
    short += short % 2
    if not short:
        raise BadInput(f"an image of {width:,} x {height:,} pixels is too narrow; crop it")
    first = Size(how.longest, short) if width >= height else Size(short, how.longest)
    size = Size(*(-(-length // side) * side for length in first))
    refined = stretched(stretched(picture.pixels, first, how.resampling), size, how.resampling)
    return _squares(stretched(refined, Size(side, side), how.resampling), refined, side)


def slices(picture: Picture, how: Preparation) -> Cut:
    """MiniCPM-V: slices with the image's aspect ratio and about equal numbers of pixels. Small images become square."""
    image, side = picture.size, how.tile_side
    if max(image) <= side:
        return Cut(stretched(picture.pixels, Size(side, side), how.resampling))
    small = image.width * image.height <= side**2
    size = Size(*(multiple(length, how.step) for length in image)) if small else squared(image, how.step, side)
    whole = stretched(picture.pixels, how.checked(size, image), how.resampling)
    grid, cell = sliced(image, how.step, side, MAX_SLICES)
    width, height = how.checked(cell, image)
    refined = bordered(picture.pixels, Size(grid.width * width, grid.height * height), how.resampling)
    return _squares(whole, refined, width, height)


def _squares(whole: Pixels, refined: Pixels, side: int, high: int = 0) -> Cut:
    """The tiles of a resized image: squares, or rectangles whose height is given."""
    height, width = refined.shape[:2]
    high = high or side
    corners = [(y, x) for y in range(0, height, high) for x in range(0, width, side)]
    return Cut(whole, tuple(refined[y : y + high, x : x + side] for y, x in corners), width // side)
