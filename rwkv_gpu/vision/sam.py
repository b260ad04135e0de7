"""SAM's tower, the first half of DeepSeek-OCR's: attention within windows, and over the whole image in some layers.

What a score gains by the rows and columns between two patches is a sum of waves, as in `conformer.py`. Windows at the
edge of an image are filled with rows whose norm counts as zero; layers without windows do not see these.
"""

from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedModel
from ..models.layered import normed
from ..models.transformer import LARGEST_HEAD, FeedForward, Output, feed_forward, output, stored_size
from ..ops.vocabulary import Attention, Cache, LayerNorm, Ops, State, Tensor, Weight
from .chunk_stem import check, convolved
from .conformer import RelativeAttention, attend_by_distance
from .conformer_file import padded_keys, unit_pairs
from .positions import in_blocks, learned
from .sizes import Size
from .tower_file import TowerFile
from .towers import EMBEDDED, PATCHES, POSITIONS, WINDOWS

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float32]
GRIDS = 64, 40  # patches on a side of an overview and of a tile
WHOLE = 2, 5, 8, 11  # layers without windows
INSIDE = "inside"  # an input: 1 for a patch, 0 for a row that fills a window
DISTANCES = "distances"  # inputs: angles in layers with windows, and (with ".whole") in others
EPS = 1e-6
HIDDEN = -1e4  # what a row that fills a window adds to scores of layers without windows
AT = "v.sam"


@dataclass(frozen=True)
class SamLayer:
    """One layer of the tower."""

    attention: RelativeAttention
    angles: str  # the input with its angles
    feed: FeedForward


@dataclass(frozen=True)
class SamTower:
    """The tower with its first convolution after the layers. Usable as a model whose rows are patches."""

    weights: tuple[Weight, ...]
    embed: Weight  # [D, 3 · p · p]
    bias: Weight
    layers: tuple[SamLayer, ...]
    matrix: Weight  # [C, D]
    norm: LayerNorm
    context: int

    @property
    def vocabulary(self) -> int:
        """1, since rows have no ids."""
        return 1

    @property
    def states(self) -> list[State]:
        return []

    @property
    def caches(self) -> list[Cache]:
        return list({layer.attention.cache: None for layer in self.layers})

    def forward(self, g: Ops[Tensor], ids: Tensor) -> Tensor:
        """The rows of patches, [R, C]"""
        return self.features(g, ids)[EMBEDDED]

    hidden = forward

    def features(self, g: Ops[Tensor], ids: Tensor) -> dict[str, Tensor]:  # noqa: ARG002 - rows have no ids
        """The rows of patches by name, [R, C]"""
        x = g.add(g.linear(g.step_input(PATCHES), self.embed, bias=self.bias), g.step_input(POSITIONS))
        for i, layer in enumerate(self.layers):
            with g.layer(i):
                p = layer.attention
                h = g.scale_rows(normed(g, x, p.norm), g.step_input(INSIDE))
                q, k, v = g.linears([h, h, h], p.qkv, bias=p.biases)
                x = output(g, p.output, attend_by_distance(g, p, q, k, v, g.step_input(layer.angles)), x)
                x = feed_forward(g, layer.feed, x)
        return {EMBEDDED: normed(g, g.linear(g.pick(x), self.matrix), self.norm)}


@dataclass(frozen=True, eq=False)
class Sam:
    """The tower of a projector file, and what surrounds it on the CPU."""

    tower: SamTower
    side: int  # patches on a side of a window
    table: Floats  # positions of patches, [n², D]
    kernels: tuple[Floats, ...]  # of the convolutions after the tower, [D, C, 3, 3] each
    norm: tuple[Floats, Floats]  # of the first one

    def places(self, grid: Size) -> tuple[npt.NDArray[np.int64], dict[str, Floats]]:
        """The patch of each row of a step, or -1, for a square; and the inputs that depend on its size only."""
        count, side = grid.width, self.side
        blocks = -(-count // side)
        y, x = (part.reshape(-1) for part in np.indices((blocks * side, blocks * side)))
        order = np.lexsort((x, y, x // side, y // side))
        y, x = y[order], x[order]
        inside = (y < count) & (x < count)
        patch, places = np.where(inside, y * count + x, -1), np.stack([y, x], axis=1)
        windows = np.arange(len(order)) // side**2 * side**2
        whole = [_turns(places, size) * (size == count) for size in GRIDS]
        mask = np.where(inside, 1, HIDDEN)[:, None] + 0j
        return patch, {
            POSITIONS: filled(self._positions(grid), patch), INSIDE: inside[:, None].astype(np.float32),
            WINDOWS: np.stack([windows, windows + side**2], axis=1).astype(np.float32),
            DISTANCES: _as_angles([_turns(places, side)]), f"{DISTANCES}.whole": _as_angles([*whole, mask]),
        }  # fmt: skip

    def _positions(self, grid: Size) -> Floats:
        return learned(self.table, grid, in_blocks(grid, 1), "cubic")

    def convolved(self, rows: Floats, grid: Size) -> Floats:
        """The rows after the other convolutions, the last two of which halve both sides. [n² / 16, D]"""
        x = convolved(rows.reshape(grid.height, grid.width, -1), self.kernels[0], None, step=1)
        x = x - x.mean(axis=-1, keepdims=True)
        x = x / np.sqrt((x**2).mean(axis=-1, keepdims=True) + np.float32(EPS)) * self.norm[0] + self.norm[1]
        for kernel in self.kernels[1:]:
            x = convolved(x, kernel, None)
        return x.reshape(-1, x.shape[-1])


def filled(patches: Floats, patch: npt.NDArray[np.int64]) -> Floats:
    """The row of each patch, and zeros for -1."""
    return np.where(patch[:, None] < 0, np.float32(0), patches[patch])


def _turns(places: Array, side: int) -> Array:
    """Complex waves of each row and column. Weighted sums of them give any function of distances below `side`."""
    frequencies = 2 * np.pi / (2 * side - 1) * np.arange(side)
    return np.exp(1j * places[:, :, None] * frequencies).reshape(len(places), -1)


def _as_angles(parts: list[Array]) -> Floats:
    turns = np.concatenate(parts, axis=1)
    return np.concatenate([turns.real, turns.imag], axis=1).astype(np.float32)


def waves_of(table: Array, side: int) -> Array:
    """The factors of cosines and of negative sines that add up to a table of distances. [2, side, N]"""
    size = 2 * side - 1
    at = np.clip((np.arange(size) + 0.5) * (len(table) / size) - 0.5, 0, len(table) - 1)
    low = at.astype(int)
    share = (at - low)[:, None]
    table = table[low] * (1 - share) + table[np.minimum(low + 1, len(table) - 1)] * share
    angles = 2 * np.pi / size * np.arange(side)[:, None] * np.arange(1 - side, side)
    scale = np.where(np.arange(side) == 0, 1, 2)[:, None] / size
    return np.stack([scale * np.cos(angles) @ table, -scale * np.sin(angles) @ table])


def _queries(heads: int, sides: tuple[int, ...], masks: int, rows: Array, columns: Array) -> Array:
    """Rows for the pairs of a query, then for the query itself, which is scaled. [H, 2 · F + N, N]"""
    size = rows.shape[1]
    pairs = [waves_of(table, side) for side in sides for table in (rows, columns)] + [np.zeros((2, masks, size))]
    each = np.concatenate([*np.concatenate(pairs, axis=1), np.eye(size) * size**-0.5])
    return np.tile(each, (heads, 1, 1))


def _last_pair(heads: int, pairs: int, size: int) -> Array:
    """(1, 0) for the last pair, and zeros elsewhere. [H · (2 · F + N)]"""
    return np.tile(np.arange(2 * pairs + size) == pairs - 1, heads)


def take_sam(source: TowerFile) -> Sam:
    """The SAM tower of a projector file."""
    tensors, file, begun = source.tensors, source.file, len(source.tensors.taken)
    width, heads = source.size("sam.embedding_length", 1 << 12), source.size("sam.head_count", 1 << 8)
    count = source.size("sam.block_count", 1 << 8)
    side = source.size("window_size", GRIDS[0])
    tensors.check_divides("clip.vision.sam.head_count", heads, width, "numbers of a row")
    layers = tuple(_layer(source, i, width, heads, side) for i in range(count))
    channels, embed = tensors.dimension(f"{AT}.neck.0.weight", 0), f"{AT}.patch_embd"
    tower = SamTower(
        (), tensors.take(f"{embed}.weight", width, 3 * source.patch**2), tensors.take(f"{embed}.bias", width), layers,
        tensors.take(f"{AT}.neck.0.weight", channels, width), _norm(source, f"{AT}.neck.1", channels),
        (-(-GRIDS[0] // side) * side) ** 2,
    )  # fmt: skip
    tower = replace(tower, weights=tuple(tensors.taken[begun:]))
    names, read, kernels = [f"{AT}.neck.2.weight", f"{AT}.net_2.weight", f"{AT}.net_3.weight"], channels, []
    for name in names:
        made = tensors.dimension(name, 0, 4)
        check(tensors, file, name, made, read, 3, 3)
        kernels.append(file.values(file.tensors[name]).astype(np.float32))
        read = made
    norm = [f"{AT}.neck.3.weight", f"{AT}.neck.3.bias"]
    for name in norm:
        check(tensors, file, name, len(kernels[0]))
    table = f"{AT}.pos_embd.weight"
    check(tensors, file, table, GRIDS[0], GRIDS[0], width)
    if read != source.width:
        raise tensors.bad(f"tensor '{names[-1]}'", f"{read} channels", f"{source.width}")
    scale, shift = (file.values(file.tensors[name]).reshape(-1) for name in norm)
    values = file.values(file.tensors[table]).reshape(-1, width)
    return Sam(tower, side, values, tuple(kernels), (scale, shift))


def _norm(source: TowerFile, name: str, width: int) -> LayerNorm:
    take = source.tensors.take
    return LayerNorm(take(f"{name}.weight", width), take(f"{name}.bias", width), EPS)


def _layer(source: TowerFile, i: int, width: int, heads: int, side: int) -> SamLayer:
    tensors, at, size, whole = source.tensors, f"{AT}.blk.{i}", width // heads, i in WHOLE
    sides = GRIDS if whole else (side,)
    pairs = 2 * sum(sides) + whole
    each = 2 * pairs + size
    stored = stored_size(each)
    if stored > LARGEST_HEAD:
        raise UnsupportedModel(f"{source.file.path}: heads of size {size} are not supported in this tower")
    names = [f"{at}.attn.{name}" for name in "qkv"]
    parts = tensors.split(f"{at}.attn.qkv.weight", width, *((f"{name}.weight", width) for name in names))
    biases = tensors.split(f"{at}.attn.qkv.bias", 0, *((f"{name}.bias", width) for name in names))
    tensors.keep(*parts, *biases)
    tables = [(f"{at}.attn.pos_{which}.weight", (2 * sides[0] - 1, size)) for which in "hw"]
    how = Attention(heads, None, 1.0, causal=False, head=each if each != stored else 0, bounds="" if whole else WINDOWS)
    attention = RelativeAttention(
        _norm(source, f"{at}.pre_ln", width), parts, biases,
        tensors.compute(f"{at}.query", (heads, each, size), partial(_queries, heads, sides, int(whole)), *tables),
        tensors.compute(f"{at}.mask", (heads * each,), partial(_last_pair, heads, pairs, size)) if whole else None,
        tensors.compute(f"{at}.key", (heads, each, size), partial(padded_keys, heads, 2 * pairs, size)),
        tensors.compute(f"{at}.key_bias", (heads * each,), partial(unit_pairs, heads, 2 * pairs, size)),
        Output(tensors.take(f"{at}.attn.out.weight", width, width), tensors.take(f"{at}.attn.out.bias", width)),
        Cache(f"{AT}.{'whole' if whole else 'window'}", heads, stored), how, size,
    )  # fmt: skip
    mlp = source.mlp(f"{at}.mlp.lin1", f"{at}.mlp.lin2", width, width)
    feed = FeedForward(
        _norm(source, f"{at}.post_ln", width), mlp.up, mlp.then, Output(mlp.down, mlp.down_bias), (mlp.up_bias,)
    )
    return SamLayer(attention, f"{DISTANCES}.whole" if whole else DISTANCES, feed)
