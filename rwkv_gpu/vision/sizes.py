"""Sizes of images as a family prepares them. Arithmetic is in float32, so that sizes equal those of llama.cpp."""

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np

Filter = Literal["bilinear", "bicubic"]
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
    side: int = 0  # of every image; 0: sizes follow the image
    least: int = 0  # pixels
    most: int = 0
    tiles: tuple[int, int] = (0, 0)  # fewest and most of a larger image, each of `side`; 0: it is one image

    @property
    def step(self) -> int:
        """Pixels of the side of a block."""
        return self.patch * self.merge

    def target(self, image: Size) -> Size:
        """The size that an image gets, with borders where its shape differs."""
        if self.side:
            return Size(self.side, self.side)
        size = [max(self.step, _rounded(F(length) / F(self.step)) * self.step) for length in image]
        area = F(image.height) * F(image.width)
        if size[0] * size[1] > self.most:
            shrink = np.sqrt(area / F(self.most))
            size = [max(self.step, math.floor(F(length) / shrink / F(self.step)) * self.step) for length in image]
        elif size[0] * size[1] < self.least:
            grow = np.sqrt(F(self.least) / area)
            size = [math.ceil(F(length) * grow / F(self.step)) * self.step for length in image]
        return Size(*size)

    def tiled(self, image: Size) -> Size:
        """The size that tiles cut from an image; 0 x 0 if it has none.

        Chooses the shape of tiles in which the image keeps most pixels; of equal ones, the smallest.
        """
        fewest, most = self.tiles
        best, rank = Size(0, 0), (-1, 0)
        if not most or max(image) <= self.side:
            return best
        for columns in range(fewest, most + 1):
            for rows in range(max(-(-fewest // columns), fewest), min(most // columns, most) + 1):
                shape = Size(columns * self.side, rows * self.side)
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
    def most_patches(self) -> int:
        """Maximum patches of an image. A very long one can exceed the limit by its shorter side, one block."""
        if self.side:
            return (self.side // self.patch) ** 2
        return max(self.most, self.least) // self.patch**2 + 2 * self.merge * LONGEST // self.patch


LONGEST = 1 << 14  # pixels of a side of an image, at most


def inside(image: Size, target: Size) -> Size:
    """The largest size of the shape of an image within the target."""
    scale = min(F(target.width) / F(image.width), F(target.height) / F(image.height))
    return Size(*(min(math.ceil(F(length) * scale), most) for length, most in zip(image, target, strict=True)))


def _rounded(x: np.float32) -> int:
    """The nearest whole number; halves away from 0."""
    return math.floor(float(x) + 0.5)
