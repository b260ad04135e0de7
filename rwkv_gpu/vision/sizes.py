"""Sizes of prepared images by family. Arithmetic is in float32, so that sizes equal those of llama.cpp."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

from ..errors import BadInput

Filter = Literal["bilinear", "bicubic", "lanczos"]
F = np.float32


class Size(NamedTuple):
    """The size of an image, in pixels or patches."""

    width: int
    height: int


@dataclass(frozen=True)
class Preparation:
    """How images are resized and normalised for a tower."""

    patch: int  # side of a patch in pixels
    merge: int  # side of a block that becomes one row, in patches
    resampling: Filter
    mean: tuple[float, float, float]
    deviation: tuple[float, float, float]
    side: int = 0  # side of every image; 0: sizes follow the image
    least: int = 0  # pixels
    most: int = 0
    shapes: tuple[Size, ...] = ()  # total sizes of the tiles of an image; empty: no tiles
    tile_side: int = 0  # side of a tile in pixels; 0: `side`
    longest: int = 0  # pixels of the longer side of an image in tiles; 0: unknown
    border: tuple[int, int, int] = (0, 0, 0)  # color
    counts: tuple[int, int] = (0, 0)  # minimum and maximum tiles of an image, if their number follows its shape
    closest: bool = False  # True if sizes have the closest aspect ratio, not the closest sides

    @property
    def step(self) -> int:
        """The side of a block in pixels."""
        return self.patch * self.merge

    def target(self, image: Size) -> Size:
        """The size of an image that is not tiled."""
        if self.side:
            return Size(self.side, self.side)
        size = closest(image, self.step, self.most) if self.closest else fitted(image, self.step, self.least, self.most)
        return self.checked(size, image)

    def checked(self, size: Size, image: Size) -> Size:
        """The size in which a tower reads an image. Raises BadInput if it has too many patches."""
        if size.width * size.height > self.max_patches * self.patch**2:
            raise BadInput(
                f"an image of {image.width:,} x {image.height:,} pixels is too narrow for this model; crop it"
            )
        return size

    def tiled(self, image: Size) -> Size:
        """The total size of the tiles of an image; 0 x 0 if it has none.

        Chooses the size that keeps most pixels of the image. Among equals, it takes the smallest, then the first.
        """
        best, rank = Size(0, 0), (-1, 0)
        for shape in self.shapes if max(image) > self.side else ():
            scale = min(F(shape.width) / F(image.width), F(shape.height) / F(image.height))
            kept = int(F(image.width) * scale) * int(F(image.height) * scale)
            kept = min(kept, image.width * image.height)
            if (kept, kept - shape.width * shape.height) > rank:
                best, rank = shape, (kept, kept - shape.width * shape.height)
        return best

    def grid(self, target: Size) -> Size:
        """Patches of a prepared image."""
        return Size(target.width // self.patch, target.height // self.patch)

    @property
    def max_patches(self) -> int:
        """The maximum patches of an image. A narrow image can exceed the limit if its shorter side is one block."""
        if self.side:
            return (self.side // self.patch) ** 2
        grown = (self.least * LONGEST) ** 0.5 / self.step  # blocks of the longer side of the narrowest small image
        blocks = max(self.most // self.step**2, LONGEST // self.step + 1, self.least // self.step**2 + int(grown) + 2)
        return max(blocks * self.merge**2, (self.tile_side // self.patch) ** 2)


LONGEST = 1 << 14  # pixels of a side of an image, at most


def fitted(image: Size, step: int, least: int, most: int) -> Size:
    """A size in multiples of a step, with about the aspect ratio of an image, and with `least` to `most` pixels."""
    size = [multiple(length, step) for length in image]
    area = F(image.height) * F(image.width)
    if size[0] * size[1] > most:
        shrink = np.sqrt(area / F(most))
        size = [max(step, math.floor(F(length) / shrink / F(step)) * step) for length in image]
    elif size[0] * size[1] < least:
        grow = np.sqrt(F(least) / area)
        size = [math.ceil(F(length) * grow / F(step)) * step for length in image]
    return Size(*size)


def closest(image: Size, step: int, most: int) -> Size:
    """The size nearest to an image's aspect ratio, in multiples of a step, with about its pixels or `most` pixels."""
    wide, high, shape = image.width / step, image.height / step, image.height / image.width
    count = most // step**2
    if wide * high > count:
        ratio = wide / high
        high = math.sqrt(count / ratio)
        wide = high * ratio
    sizes = [Size(w, h) for h in (math.floor(high), math.ceil(high)) for w in (math.floor(wide), math.ceil(wide))]
    fitting = [size for size in sizes if min(size) > 0 and size.width * size.height <= count]
    rounded = Size(max(1, _rounded(F(wide))), max(1, _rounded(F(high))))
    area = {size: size.width * size.height for size in fitting or [rounded]}
    width, height = min(area, key=lambda size: (abs(size.height / size.width - shape), -area[size]))
    return Size(width * step, height * step)


def grids(side: int, fewest: int, most: int) -> tuple[Size, ...]:
    """The sizes of all rectangles of `fewest` to `most` tiles."""
    return tuple(
        Size(columns * side, rows * side)
        for columns in range(fewest, most + 1)
        for rows in range(max(-(-fewest // columns), fewest), min(most // columns, most) + 1)
    )


def should_tile(image: Size, how: Preparation) -> bool:
    """True if an image, rounded to blocks, has more than twice the pixels of an untiled image."""
    width, height = (max(how.patch, round(length / how.step) * how.step) for length in image)
    return width * height > 2 * how.most


def closest_grid(image: Size, side: int, tiles: tuple[int, int]) -> Size:
    """Columns and rows of tiles with the aspect ratio closest to that of an image.

    If several grids are equally close, the one with the most tiles, if the image fills more than half of it.
    """
    fewest, most = tiles
    shapes = [Size(w, h) for w in range(1, most + 1) for h in range(1, most + 1) if fewest <= w * h <= most]
    best, least, area = Size(1, 1), F(np.inf), F(image.width * image.height)
    for shape in sorted(shapes, key=lambda shape: shape.width * shape.height):
        apart = abs(F(image.width) / F(image.height) - F(shape.width) / F(shape.height))
        filled = area > F(0.5) * F(side**2 * shape.width * shape.height)
        if apart < least or (apart == least and filled):
            best, least = shape, apart
    return best


def sliced(image: Size, step: int, side: int, most: int) -> tuple[Size, Size]:
    """Columns and rows of at most `most` slices, and the size of a slice, of about `side` x `side` pixels."""
    wanted = min(math.ceil(F(image.width) * F(image.height) / F(side**2)), most)
    grids = [
        Size(columns, count // columns)
        for count in range(wanted - 1, min(wanted + 1, most) + 1)
        for columns in range(1, count + 1)
        if count != 1 and count % columns == 0
    ]
    shape = F(math.log(F(image.width) / F(image.height)))
    grid = min(grids, key=lambda grid: F(abs(float(shape) - math.log(grid.width / grid.height))))
    cell = Size(*(multiple(length, count) // count for length, count in zip(image, grid, strict=True)))
    return grid, squared(cell, step, side)


def squared(image: Size, step: int, side: int) -> Size:
    """A size in multiples of a step, with the aspect ratio of an image and about `side` x `side` pixels."""
    shape = F(image.width) / F(image.height)
    height = int(F(side) / np.sqrt(shape))
    return Size(multiple(int(F(height) * shape), step), multiple(height, step))


def multiple(length: int, step: int) -> int:
    """The multiple of a step nearest to a length; at least one step."""
    return max(step, _rounded(F(length) / F(step)) * step)


def inside(image: Size, target: Size, *, nearest: bool = False) -> Size:
    """The largest size with the aspect ratio of an image that fits the target."""
    scale = min(F(target.width) / F(image.width), F(target.height) / F(image.height))
    lengths = [F(length) * scale for length in image]
    rounded = [max(1, _rounded(length)) if nearest else math.ceil(length) for length in lengths]
    return Size(*map(min, rounded, target))


def _rounded(x: np.float32) -> int:
    """The nearest whole number; halves away from 0."""
    return math.floor(float(x) + 0.5)
