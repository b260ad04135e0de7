"""Images before the tower: resized and cut for a family, with their place in a sequence."""

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from .pixels import Picture
from .samples import Recording
from .sizes import Size

if TYPE_CHECKING:  # a text needs no projector
    from ..ops.vocabulary import Whole
    from .family import Frame
    from .projector import Vision


@dataclass(frozen=True, eq=False)
class Image:
    """An image resized for its family, and its place in a sequence."""

    tiles: Sequence[npt.NDArray[Any]]  # the images that the tower reads, all of one size, [H, W, 3] each
    grid: Size  # size in patches
    blocks: Size  # size in blocks, each of which is a row
    tokens: int  # rows of the language model
    advance: int  # positions that it takes in the language model
    columns: int  # rows per line, if positions are two-dimensional; otherwise 0
    identity: bytes  # digest of its pixels, its preparation and the projector
    whole: "Whole" = ""  # layers of the language model in which each of its rows attends to all of them
    numbered: bool = False  # whether positions in its plane count from 0, and its number is a position, too
    frame: "Frame | None" = None  # constant rows around those of the tower
    picture: Picture | Recording | None = None  # the picture before resizing, for other models
    parts: tuple["str | Image", ...] = ()  # texts and images that replace it, the whole image last; empty: itself

    @property
    def units(self) -> list["Image"]:
        """The tiles that the tower encodes to rows: the image itself if it is not tiled."""
        return [part for part in self.parts if isinstance(part, Image)] or [self]

    def texts(self, vision: "Vision | None") -> tuple["str | Image", ...]:
        """The texts and images that replace it in a prompt."""
        if not self.tiles or vision is None:
            return ()
        return vision.family.begin, *(self.parts or (self,)), vision.family.end


def unseen(identity: bytes, picture: Picture | Recording | None = None) -> Image:
    """An image that no model sees."""
    return Image((), Size(0, 0), Size(0, 0), 0, 0, 0, identity, picture=picture)


def prepare(vision: "Vision", picture: Picture) -> Image:
    """Resizes an image: slow, on the caller's thread."""
    family = vision.family
    cut, identity = family.cut(picture, vision.preparation), hashlib.sha256(vision.identity + picture.digest).digest()
    if family.sam and cut.tiles:
        rows = [cut.tiles[first : first + cut.columns] for first in range(0, len(cut.tiles), cut.columns)]
        units = [_image(vision, row, _numbered(identity, number), row=True) for number, row in enumerate(rows)]
        units.append(_image(vision, (cut.whole,), _numbered(identity, len(rows))))
        return replace(units[-1], identity=identity, tokens=sum(unit.tokens for unit in units), parts=tuple(units))
    if not (family.tile or family.between_tiles) or not (cut.tiles or family.overview_alone):
        return _image(vision, (*cut.tiles, cut.whole), identity)
    tiles: list[str | Image] = []  # with the texts around them
    for number, tile in enumerate(cut.tiles):
        row, column = divmod(number, cut.columns)
        text = family.tile.format(row=row + 1, column=column + 1)
        text = text if column else (family.row_end if row else "") + text
        tiles.append((family.between_tiles if column else "") + text)
        tiles += [_image(vision, (tile,), _numbered(identity, number)), family.tile_end]
    if cut.tiles and family.ends_rows:
        tiles.append(family.row_end)
    whole = _image(vision, (cut.whole,), _numbered(identity, len(cut.tiles)))
    overview: list[str | Image] = [family.overview[0], whole, family.overview[1]]
    parts = overview + tiles if family.overview_first else tiles + overview
    tokens = sum(part.tokens for part in parts if isinstance(part, Image))
    return replace(whole, identity=identity, tokens=tokens, parts=tuple(parts))


def _numbered(identity: bytes, number: int) -> bytes:
    return hashlib.sha256(identity + number.to_bytes(4, "little")).digest()


def _image(vision: "Vision", tiles: Sequence[npt.NDArray[np.uint8]], identity: bytes, *, row: bool = False) -> Image:
    """The image that consists of some tiles, whose rows are concatenated, or lines of blocks if they are a `row`."""
    how = vision.preparation
    grid = how.grid(Size(tiles[0].shape[1], tiles[0].shape[0]))
    blocks = Size(grid.width // how.merge * (len(tiles) if row else 1), grid.height // how.merge)
    frame = vision.frame if vision.frame is None or not row else replace(vision.frame, last=None)
    tokens = blocks.width * blocks.height + (0 if frame is None else frame.rows(blocks))
    tokens = (vision.tower.projector.queries or tokens) * (1 if row else len(tiles))
    family = vision.family
    advance, columns = (max(blocks), blocks.width) if family.grid_positions else (tokens, 0)
    if family.numbered:
        advance, columns = tokens, blocks.width + 1
    return Image(tiles, grid, blocks, tokens, advance, columns, identity, vision.whole, family.numbered, frame)
