"""Positions of patches: their order in blocks, learned tables, and angles of two-dimensional rotations."""

from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import BadInput
from ..ops.media import cos_and_sin
from .sizes import Size

Array = npt.NDArray[Any]
Plane = Literal["halves", "swapped", "alternate", "apart"]
Between = Literal["corners", "smooth", "linear", "widened", "cubic", "nearest"]
BASE = 10000.0
BASE_APART = 100.0


def in_blocks(grid: Size, merge: int) -> npt.NDArray[np.int64]:
    """The row and column of each patch. The patches of each block of merge x merge are consecutive."""
    rows, columns = np.indices((grid.height, grid.width))
    each = np.stack([rows, columns], axis=-1)
    blocks = each.reshape(grid.height // merge, merge, grid.width // merge, merge, 2)
    return blocks.transpose(0, 2, 1, 3, 4).reshape(-1, 2)


def in_windows(blocks: Size, side: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The order of blocks by windows of side x side blocks, and the bounds of the window of each block. [B, 2]"""
    row, column = np.divmod(np.arange(blocks.width * blocks.height), blocks.width)
    window = row // side * blocks.width + column // side
    order = np.argsort(window, kind="stable")
    _, first, counts = np.unique(window[order], return_index=True, return_counts=True)
    return order, np.repeat(np.stack([first, first + counts], axis=1), counts, axis=0)


def learned(table: Array, grid: Size, places: Array, how: Between = "corners") -> npt.NDArray[np.float32]:
    """Position embeddings of patches from a square table, which is interpolated for other sizes."""
    side = round(len(table) ** 0.5)
    plane = table.reshape(side, side, -1)
    if grid != (side, side) or how == "widened":
        between = {
            "corners": _between, "smooth": _smoothed, "linear": _linear, "widened": _widened, "cubic": _cubic,
            "nearest": _nearest,
        }[how]  # fmt: skip
        plane = between(between(plane, grid.height).swapaxes(0, 1), grid.width).swapaxes(0, 1)
    chosen: npt.NDArray[np.float32] = plane[places[:, 0], places[:, 1]].astype(np.float32, copy=False)
    return chosen


def by_axis(tables: Array, places: Array) -> npt.NDArray[np.float32]:
    """The sum of two learned embeddings per patch: one for its column and one for its row; tables [2, n, D]."""
    if places.max(initial=0) >= tables.shape[1]:
        raise BadInput(f"an image has more than {tables.shape[1]:,} patches on a side, the model's limit; crop it")
    chosen: npt.NDArray[np.float32] = tables[0][places[:, 1]] + tables[1][places[:, 0]]
    return chosen


def _between(rows: Array, count: int) -> Array:
    """Interpolates a table linearly to another number of rows; the first and the last row are unchanged."""
    if len(rows) == count:
        return rows
    scale = (count - 1) / (len(rows) - 1) if count > 1 and len(rows) > 1 else count / len(rows)
    at = np.arange(count) / scale
    low = np.clip(np.floor(at).astype(int), 0, len(rows) - 1)
    share = np.clip(at - low, 0, 1).astype(np.float32)[:, None, None]
    mixed: Array = rows[low] * (1 - share) + rows[np.minimum(low + 1, len(rows) - 1)] * share
    return mixed


def _smoothed(rows: Array, count: int) -> Array:
    """Interpolates a table linearly between row centres; when it shrinks, each row is a mean of nearby rows."""
    scale = len(rows) / count
    reach = max(1.0, scale)
    centres = (np.arange(count) + 0.5) * scale
    weights = np.maximum(0, 1 - np.abs(np.arange(len(rows)) + 0.5 - centres[:, None]) / reach)
    mixed: Array = np.tensordot((weights / weights.sum(axis=1, keepdims=True)).astype(np.float32), rows, 1)
    return mixed


def _widened(rows: Array, count: int) -> Array:
    """Interpolates as `_linear` does, as if a tenth of a row more were asked for."""
    return _linear(rows, count, 0.1)


def _linear(rows: Array, count: int, more: float = 0) -> Array:
    """Interpolates a table linearly between row centres."""
    at = np.clip((np.arange(count) + 0.5) * (len(rows) / (count + more)) - 0.5, 0, len(rows) - 1)
    low = at.astype(int)
    share = (at - low).astype(np.float32)[:, None, None]
    mixed: Array = rows[low] * (1 - share) + rows[np.minimum(low + 1, len(rows) - 1)] * share
    return mixed


def _cubic(rows: Array, count: int) -> Array:
    """Interpolates a table between row centres by cubic convolution with a = -0.75."""
    at = (np.arange(count) + 0.5) * (len(rows) / count) - 0.5
    apart = np.abs(at[:, None] - np.arange(-2, len(rows) + 2))  # two rows beyond each end, which repeat the last one
    near = (1.25 * apart - 2.25) * apart**2 + 1
    far = ((-0.75 * apart + 3.75) * apart - 6) * apart + 3
    weights = np.where(apart <= 1, near, np.where(apart < 2, far, 0)).astype(np.float32)
    mixed: Array = np.tensordot(weights, np.concatenate([rows[[0, 0]], rows, rows[[-1, -1]]]), 1)
    return mixed


def _nearest(rows: Array, count: int) -> Array:
    return rows[np.arange(count) * len(rows) // count]


def plane_waves(places: Array, width: int) -> npt.NDArray[np.float32]:
    """Sines and cosines of columns, then of rows, at width / 4 frequencies. [T, width]"""
    frequencies = (BASE ** (-4 * np.arange(width // 4) / width)).astype(np.float32)
    angles = places[:, ::-1, None].astype(np.float32) * frequencies
    return np.concatenate([np.sin(angles), np.cos(angles)], axis=2).reshape(len(places), -1)


def plane_angles(places: Array, size: int, how: Plane) -> npt.NDArray[np.float32]:
    """The angles of all pairs of a head: half of the pairs rotate by the row, half by the column. [T, size]

    With `halves`, both use the same frequencies, and with `swapped`, columns come first. With `alternate`, rows use the
    even frequencies and columns the odd ones. With `apart`, the first half of a head rotates by the column and the
    second by the row, each with separate frequencies.
    """
    pairs = size // 4
    if how == "apart":
        frequencies = BASE_APART ** (-4 * np.arange(pairs) / size)
        return np.concatenate([cos_and_sin(places[:, axis : axis + 1] * frequencies) for axis in (1, 0)], axis=1)
    exponents = -4 * np.arange(pairs) / size
    of_rows = BASE**exponents
    of_columns = of_rows * (BASE ** (-2 / size) if how == "alternate" else 1)
    angles = [places[:, :1] * of_rows, places[:, 1:] * of_columns]
    return cos_and_sin(np.concatenate(angles[::-1] if how == "swapped" else angles, axis=1))
