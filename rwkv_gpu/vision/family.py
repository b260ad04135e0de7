"""The declaration of a type of projectors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..gguf.file import GGUFFile
from ..ops.vocabulary import Pairing, Whole
from .pixels import Picture
from .positions import Between, Plane
from .sizes import Filter, Preparation, Size
from .tiles import Cut, uncut
from .towers import Projector

Row = npt.NDArray[np.float32]  # [D]
Rows = npt.NDArray[np.float32]  # [n, D]


@dataclass(frozen=True, eq=False)
class Frame:
    """Constant rows around those of an image."""

    line: Row  # after each line of blocks
    first: Row | None = None
    last: Row | None = None
    after_all: bool = False  # whether a line row follows the last line, too

    def rows(self, blocks: Size) -> int:
        """The number of these rows."""
        return blocks.height - 1 + self.after_all + (self.first is not None) + (self.last is not None)

    def around(self, rows: Rows, blocks: Size) -> Rows:
        """The rows of an image with these. [n, D]"""
        ends = np.broadcast_to(self.line, (blocks.height, 1, len(self.line)))
        lines = np.concatenate([rows.reshape(blocks.height, blocks.width, -1), ends], axis=1)
        framed = lines.reshape(-1, rows.shape[1])
        parts = [self.first, framed if self.after_all else framed[:-1], self.last]
        return np.concatenate([np.atleast_2d(part) for part in parts if part is not None])


@dataclass(frozen=True)
class Family:
    """The properties in which types of projectors differ."""

    read: Callable[[Any], Projector]  # makes a projector from a `TowerFile`
    resampling: Filter = "bicubic"
    begin: str = ""  # text before an image
    end: str = ""  # text after an image
    frame: Callable[[GGUFFile], Frame | None] = lambda _: None  # reads constant rows around those of an image
    norm: Literal["layer", "rms"] = "layer"
    frames: int = 1  # matrices that embed patches: two if a patch of a video has two frames
    tokens: tuple[int, int] = (0, 0)  # minimum and maximum tokens of an image; 0: every image has the file's size
    states_pixels: bool = False  # True if the file states the minimum and maximum pixels of an image instead
    sam: bool = False  # whether another tower, SAM's, reads the patches first, and its rows of tiles are fused
    patch: int = 0  # side of a patch, if not the file's
    side: int = 0  # side of an image, if not the file's
    eps: float = 0.0  # of norms, if not the file's
    merge: int = 1  # patches on a side of a block
    closest: bool = False  # True if the new size has the closest aspect ratio, False if it has the closest sides
    merge_key: str = "clip.vision.spatial_merge_size"
    cut: Callable[[Picture, Preparation], Cut] = uncut  # splits an image into the tiles that the tower reads
    tiles: tuple[int, int] = (0, 0)  # default for the minimum and maximum number of tiles of a larger image
    tile_sides: int = 0  # most tiles on each side of a larger image, if not 0
    tile_side: int = 0  # side of a tile in pixels; 0: that of an image
    border: tuple[int, int, int] = (0, 0, 0)  # color around an image whose shape differs
    tile: str = ""  # text before the tile of a {row} and {column}; empty: rows of all tiles follow each other
    between_tiles: str = ""  # text between two tiles of a row
    row_end: str = ""  # text between two rows of tiles
    ends_rows: bool = False  # True if this text follows the last row, too
    tile_end: str = ""  # text after each tile
    overview_first: bool = False  # True if the whole image precedes its tiles
    overview: tuple[str, str] = ("", "")  # texts before and after the whole image, if there are tiles
    overview_alone: bool = False  # whether it has these texts without tiles, too
    windows: bool = False  # whether most layers attend within windows
    period: int = 0  # of layers without a window, if files do not state it; the last layer has none, either
    whole: Whole = ""  # layers of the language model in which tokens of an image see all of it
    causal_widths: tuple[int, ...] = ()  # widths of language models whose tokens of an image do not
    head_norms: bool = False  # whether heads of q, k and v are normed, and scores are not scaled
    axes: bool = False  # whether learned positions are tables of columns and of rows, which are added
    centred: bool = False  # whether patches x become 2x - 1
    between: Between = "corners"  # how learned positions are interpolated
    plane: Plane | None = None  # how patches rotate; None is no rotation
    pairing: Pairing = "normal"
    erf: bool = False  # True if feed-forwards use the exact form of GELU
    quick: bool = False  # True if they use its quick form, whatever the file says
    unused: int = 0  # number of last layers of the file that the tower does not use
    drops_first: bool = False  # whether a class embedding, the last row, stands for the first patch
    swaps: bool = False  # whether old files have the names of up and down swapped
    grid_positions: bool = False  # whether the language model has rows and columns as positions
    numbered: bool = False  # whether these count from 0 in each image, and the number of the image is a position, too
