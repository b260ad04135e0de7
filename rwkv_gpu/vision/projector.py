"""Projector files (mmproj-*.gguf, architecture `clip`): reads sizes and tensors strictly, by type."""

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, UnsupportedModel
from ..gguf.file import GGUFFile
from ..ops.vocabulary import Whole
from .families import FAMILIES
from .family import Family, Frame
from .sam import Sam, take_sam
from .sizes import LONGEST, Preparation, Size, grids
from .tiles import MAX_TILES, any_shape, best_shape, longest_side, slices
from .tower_file import TABLE, TowerFile, family_of, identity_of
from .towers import Tower

SUMMARY = "v.class_embd"


@dataclass(frozen=True, eq=False)
class Vision:
    """The contents of a projector file: the tower, and how images are prepared and placed in a prompt."""

    path: Path
    type: str
    family: Family
    tower: Tower
    preparation: Preparation
    width: int  # width of its rows, which is that of the language model
    window: int  # side of a window in blocks; 0: every layer sees all patches
    table: npt.NDArray[np.float32] | None  # learned positions, [side², D]
    summary: npt.NDArray[np.float32] | None  # content of an additional row without pixels
    frame: Frame | None  # constant rows around those of an image
    sam: Sam | None  # the tower that reads patches first
    identity: bytes  # digest of the metadata, the preparation, and the beginning of each tensor

    @property
    def deepstack(self) -> int:
        """Number of layers of the language model that add rows of images after them."""
        return len(self.tower.taps)

    @property
    def whole(self) -> Whole:
        """Layers of the language model in which each row of an image attends to the whole image."""
        return "" if self.width in self.family.causal_widths else self.family.whole

    @property
    def min_rows(self) -> int:
        """The smallest number of rows per step: those of an image, if each of them attends to the whole image."""
        return self.preparation.max_patches // self.preparation.merge**2 if self.whole else 0

    @property
    def head_size(self) -> int:
        """The head size of the attention over patches."""
        return self.tower.layers[0].attention.size


def vision_of(file: GGUFFile) -> Vision:
    """The vision part of an open projector file, which has one."""
    kind, family = family_of(file, "vision", FAMILIES, "projectors")
    source = TowerFile(file, family)
    preparation = _preparation(source)
    sam = take_sam(source) if family.sam else None
    tower, width = _tower(source, preparation)
    table = _table(source, preparation)
    summary = None
    if SUMMARY in file.tensors:
        if table is None:
            raise BadFile(f"{file.path}: tensor '{SUMMARY}' needs '{TABLE}'")
        first, table = (table[0], table[1:]) if family.sam else (table[-1], table[:-1])
        summary = _summary(source, first)
    frame = family.frame(file)
    source.tensors.refuse_the_rest()
    identity = identity_of(file, kind, preparation)
    rows = width, source.window, table, summary, frame, sam
    return Vision(Path(file.path), kind, family, tower, preparation, *rows, identity)


def _preparation(source: TowerFile) -> Preparation:
    file, family = source.file, source.family
    side = family.side or source.size("image_size", 1 << 13)
    mean, deviation = (_triple(file, f"clip.vision.image_{name}") for name in ("mean", "std"))
    if min(deviation) <= 0:
        raise source.tensors.bad("metadata key 'clip.vision.image_std'", f"{deviation}", "positive numbers")
    least, most = (count * (source.patch * source.merge) ** 2 for count in family.tokens)
    if family.states_pixels:
        least = file.int("clip.vision.image_min_pixels", low=1, high=LONGEST**2)
        most = file.int("clip.vision.image_max_pixels", low=least, high=LONGEST**2)
    tile_side = family.tile_side
    if family.cut is slices:  # rounded to patches, a narrow image may be larger than a square one
        tile_side, most = side, 2 * side**2
    if most:
        side = 0
    elif side % (source.patch * source.merge):
        block = f"a multiple of {source.patch * source.merge}"
        raise source.tensors.bad("metadata key 'clip.vision.image_size'", f"{side}", block)
    if len(file.ints("clip.vision.feature_layer", default=())):
        raise UnsupportedModel(f"{file.path}: towers whose result joins several layers are not supported")
    counts = _tiles(source) if family.tiles[1] else (0, 0)
    shapes = grids(side, *counts) if family.cut is best_shape and counts[1] else _pinpoints(source, side)
    if family.tile_sides:
        sides = range(side, (family.tile_sides + 1) * side, side)
        shapes = tuple(Size(width, height) for width in sides for height in sides if max(width, height) > side)
    if family.tile_side % (source.patch * source.merge):
        divisor = f"a divisor of {family.tile_side}"
        raise source.tensors.bad("a block of patches", f"{source.patch * source.merge} pixels", divisor)
    longest = _longest(source, side) if family.cut is longest_side else 0
    sizes = side, least, most, shapes, tile_side, longest, family.border, counts, family.closest
    return Preparation(source.patch, source.merge, family.resampling, mean, deviation, *sizes)


def _tiles(source: TowerFile) -> tuple[int, int]:
    """The minimum and maximum number of tiles of an image."""
    low, high = source.family.tiles
    fewest = source.file.int("clip.vision.preproc_min_tiles", low=1, high=MAX_TILES, default=low)
    return fewest, source.file.int("clip.vision.preproc_max_tiles", low=fewest, high=MAX_TILES, default=max(low, high))


def _pinpoints(source: TowerFile, side: int) -> tuple[Size, ...]:
    """The image sizes that a file lists, in pixels: each is a grid of tiles."""
    key = "clip.vision.image_grid_pinpoints"
    if source.family.cut is not any_shape or key not in source.file.metadata:
        return ()
    numbers = [int(number) for number in source.file.ints(key)]
    shapes = tuple(Size(*pair) for pair in zip(numbers[::2], numbers[1::2], strict=False))
    fits = all(min(shape) > 0 and shape.width * shape.height <= MAX_TILES * side**2 for shape in shapes)
    if not fits or len(numbers) % 2 or any(number % side for number in numbers):
        raise source.tensors.bad(f"metadata key '{key}'", f"{numbers[:8]}", f"pairs of multiples of {side}")
    return shapes


def _longest(source: TowerFile, side: int) -> int:
    """The pixels of the longer side of a tiled image."""
    key, most = "clip.vision.preproc_image_size", side * int(MAX_TILES**0.5)
    return source.file.int(key, low=1, high=most) if key in source.file.metadata else 0


def _summary(source: TowerFile, position: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """The row that precedes the patches: its embedding and position, without the bias that every row gets."""
    bias = source.file.tensors.get("v.patch_embd.bias")
    source.tensors.take(SUMMARY, source.width)
    found: npt.NDArray[np.float32] = source.file.values(source.file.tensors[SUMMARY]).reshape(-1) + position
    return found if bias is None else found - source.file.values(bias).reshape(-1)


def _triple(file: GGUFFile, key: str) -> tuple[float, float, float]:
    numbers = file.floats(key)
    if len(numbers) != 3:
        raise BadFile(f"{file.path}: metadata key '{key}': found {len(numbers)} numbers, expected 3")
    red, green, blue = (float(number) for number in numbers)
    return red, green, blue


def _tower(source: TowerFile, preparation: Preparation) -> tuple[Tower, int]:
    """The tower, and the width of its rows."""
    tensors, width, pixels = source.tensors, source.width, 3 * source.patch**2
    patches = () if source.family.sam else tuple(tensors.take(name, width, pixels) for name in source.patch_names)
    bias = tensors.find("v.patch_embd.bias", width)
    layers = source.layers()
    find = source.optional_norm
    norms = find("v.norm_embd"), find("v.pre_ln"), find("v.post_ln")
    projector, taps = source.family.read(source), source.taps() if source.family.grid_positions else {}
    learned = TABLE in tensors
    out = projector.width
    for tap in taps.values():
        if tap.width != out:
            raise BadFile(f"{source.file.path}: deepstack rows have {tap.width} numbers, expected {out}")
    most = preparation.max_patches // (source.block if source.family.sam else 1)
    most = max(most + (SUMMARY in tensors), projector.queries)
    return (
        Tower(tuple(tensors.taken), patches, bias, layers, *norms, projector, most, learned, taps, source.clips),
        out,
    )


def _table(source: TowerFile, preparation: Preparation) -> npt.NDArray[np.float32] | None:
    """The learned position table for a square of patches."""
    if TABLE not in source.tensors:
        return None
    if source.family.axes:
        source.tensors.skip(TABLE)
        tables = source.file.values(source.file.tensors[TABLE])
        if tables.ndim != 3 or tables.shape[::2] != (2, source.width):
            raise source.tensors.bad(f"tensor '{TABLE}'", f"{list(tables.shape)}", f"[2, n, {source.width}]")
        return tables
    count = source.tensors.dimension(TABLE, 0)
    first = int(SUMMARY in source.tensors)
    side = round((count - first) ** 0.5)
    grid = preparation.side // (source.patch * (source.merge if source.family.sam else 1))
    if side**2 + first != count or (grid and grid != side):
        raise source.tensors.bad(f"tensor '{TABLE}'", f"{count} rows", f"{grid**2 or 'a square number'}")
    values = source.file.values(source.file.tensors[TABLE])
    if values.shape != (count, source.width):
        raise source.tensors.bad(f"tensor '{TABLE}'", f"{values.shape[1]} numbers", f"{source.width}")
    source.tensors.skip(TABLE)
    return values
