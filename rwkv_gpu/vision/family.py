"""The declaration of a type of projectors."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

from ..ops.vocabulary import Pairing, Whole
from .pixels import Picture
from .positions import Between, Plane
from .sizes import Filter, Preparation
from .tiles import Cut, uncut
from .towers import Projector


@dataclass(frozen=True)
class Family:
    """The properties in which types of projectors differ."""

    read: Callable[[Any], Projector]  # makes a projector from a `TowerFile`
    resampling: Filter = "bicubic"
    begin: str = ""  # text before an image
    end: str = ""  # text after an image
    norm: Literal["layer", "rms"] = "layer"
    frames: int = 1  # matrices that embed patches: two if a patch of a video has two frames
    tokens: tuple[int, int] = (0, 0)  # minimum and maximum tokens of an image; 0: every image has the file's size
    states_pixels: bool = False  # whether the file states the minimum and maximum pixels of an image instead
    merge: int = 1  # patches on a side of a block
    merge_key: str = "clip.vision.spatial_merge_size"
    cut: Callable[[Picture, Preparation], Cut] = uncut  # splits an image into the tiles that the tower reads
    tiles: tuple[int, int] = (0, 0)  # default minimum and maximum number of tiles of a large image
    tile_side: int = 0  # side of a tile in pixels; 0: that of an image
    border: tuple[int, int, int] = (0, 0, 0)  # color around an image whose shape differs
    tile: str = ""  # text before the tile of a {row} and {column}; empty: rows of all tiles follow each other
    row_end: str = ""  # text between two rows of tiles
    tile_end: str = ""  # text after each tile
    overview_first: bool = False  # whether the whole image precedes its tiles, and gets its texts even without tiles
    overview: tuple[str, str] = ("", "")  # texts before and after the whole image, if there are tiles
    windows: bool = False  # whether most layers attend within windows
    whole: Whole = ""  # layers of the language model in which tokens of an image see all of it
    causal_widths: tuple[int, ...] = ()  # widths of language models whose tokens of an image do not
    head_norms: bool = False  # whether heads of q, k and v are normed, and scores are not scaled
    axes: bool = False  # whether learned positions are tables of columns and of rows, which are added
    centred: bool = False  # whether patches x become 2x - 1
    between: Between = "corners"  # how learned positions are interpolated
    plane: Plane | None = None  # how patches rotate; None is no rotation
    pairing: Pairing = "normal"
    erf: bool = False  # True if feed-forwards use the exact form of GELU
    unused: int = 0  # number of last layers of the file that the tower does not use
    drops_first: bool = False  # whether a class embedding, the last row, stands for the first patch
    swaps: bool = False  # whether old files have the names of up and down swapped
    grid_positions: bool = False  # whether the language model has rows and columns as positions
