"""Projector files (mmproj-*.gguf, architecture `clip`): strict reading of sizes and tensors, by type."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from ..errors import BadFile, UnsupportedModel
from ..gguf.file import GGUFFile
from ..models.dense import take_biases, take_gates, take_qkv, take_qkv_biases
from ..models.tensors import EPS, Tensors
from ..models.transformer import LARGEST_HEAD, FeedForward, Output, stored_size
from ..ops.vocabulary import Activation, AnyNorm, Attention, Cache, HeadRows, LayerNorm, Pairing, Rms, Weight
from .positions import Plane
from .sizes import Filter, Preparation
from .towers import JoinedProjector, Layer, MergedProjector, Mlp, PatchAttention, PooledProjector, Projector, Tower

ARCHITECTURE = "clip"
BREAK = "v.token_embd.img_break"
POSITIONS = "v.position_embd.weight"
SUMMARY = "v.class_embd"
MOST_TILES = 64  # of an image
SAMPLE = 4096  # bytes of each tensor that identify a file
CACHE = "v.kv"  # of all layers: each is done with its keys before the next begins


@dataclass(frozen=True)
class Family:
    """In what one type of projector differs from others."""

    read: "Callable[[TowerFile], Projector]"
    resampling: Filter
    begin: str = ""  # text before an image
    end: str = ""  # and after it
    norm: Literal["layer", "rms"] = "layer"
    frames: int = 1  # matrices of patches: two where a video has two frames for each
    tokens: tuple[int, int] = (0, 0)  # fewest and most of an image; 0: every image has the file's size
    merge: int = 1  # patches on a side of a block
    merge_key: str = "clip.vision.spatial_merge_size"
    tiles: tuple[int, int] = (0, 0)  # default for the fewest and most tiles of a larger image
    whole: bool = False  # whether tokens of an image see all of it
    plane: Plane | None = None  # how patches turn; None does not
    pairing: Pairing = "normal"
    swaps: bool = False  # whether old files have the names of up and down swapped
    grid_positions: bool = False  # whether the language model has rows and columns as positions


@dataclass(frozen=True, eq=False)
class Vision:
    """A projector file as read: the tower, and how images are prepared and placed in a text."""

    path: Path
    type: str
    family: Family
    tower: Tower
    preparation: Preparation
    width: int  # of the rows that it makes: that of the language model
    table: npt.NDArray[np.float32] | None  # learned positions, [side², D]
    summary: npt.NDArray[np.float32] | None  # what is added to a row without pixels, which patches attend to
    line_break: npt.NDArray[np.float32] | None  # a row between two rows of blocks
    parameters: int
    nbytes: int
    identity: bytes  # digest of the metadata, the preparation, and the beginning of each tensor

    @property
    def deepstack(self) -> int:
        """Number of layers of the language model after which rows are added."""
        return len(self.tower.taps)

    @property
    def least_rows(self) -> int:
        """Rows that one step must hold: an image, if its rows see all of it."""
        return self.preparation.most_patches // self.preparation.merge**2 if self.family.whole else 0

    @property
    def head_size(self) -> int:
        """The head size of the attention over patches."""
        return self.tower.layers[0].attention.size


class TowerFile:
    """A projector file while it is read."""

    def __init__(self, file: GGUFFile, family: Family) -> None:
        self.file, self.family = file, family
        self.width = self.size("embedding_length", 1 << 14)
        self.heads = self.size("attention.head_count", 1 << 10)
        self.count = self.size("block_count", 1 << 10)
        self.patch = file.int("clip.vision.patch_size", low=1, high=256)
        self.eps = file.float("clip.vision.attention.layer_norm_epsilon", *EPS)
        self.merge = file.int(family.merge_key, low=1, high=16, default=family.merge)
        self._as_matrices()
        self.tensors = Tensors(file)
        self.tensors.check_divides("clip.vision.attention.head_count", self.heads, self.width, "numbers of a row")

    def size(self, key: str, high: int) -> int:
        """A size from the metadata."""
        return self.file.int(f"clip.vision.{key}", low=1, high=high)

    @property
    def block(self) -> int:
        """Patches of a block."""
        return self.merge**2

    def _as_matrices(self) -> None:
        """Has the kernels of patches [D, 3, p, p] as matrices [D, 3 · p · p], whose numbers are in the same order."""
        tensors = dict(self.file.tensors)
        for name in self.patch_names:
            if name in tensors and len(tensors[name].shape) == 4:
                rows, *others = tensors[name].shape
                if tensors[name].format.name not in ("F32", "F16", "BF16"):
                    raise BadFile(f"{self.file.path}: tensor '{name}': its format is not one of floats")
                tensors[name] = replace(tensors[name], shape=(rows, int(np.prod(others))))
        self.file.tensors = MappingProxyType(tensors)

    @property
    def patch_names(self) -> list[str]:
        """Names of the matrices of patches."""
        return ["v.patch_embd.weight", "v.patch_embd.weight.1"][: self.family.frames]

    def norm(self, name: str, size: int = 0) -> AnyNorm:
        """A norm of the residual stream, or of `size` numbers."""
        weight = self.tensors.take(f"{name}.weight", size or self.width)
        bias = self.tensors.find(f"{name}.bias", size or self.width)
        return LayerNorm(weight, bias, self.eps) if self.family.norm == "layer" else Rms(weight, self.eps, bias)

    def optional_norm(self, name: str) -> AnyNorm | None:
        """The same where the file has it."""
        return self.norm(name) if f"{name}.weight" in self.tensors else None

    def mlp(self, first: str, second: str, width: int, out: int = 0, then: Activation = "gelu") -> Mlp:
        """Two matrices that read `width` numbers; the second has as many rows as the file says, or `out`."""
        tensors = self.tensors
        inner = tensors.dimension(f"{first}.weight", 0)
        out = out or tensors.dimension(f"{second}.weight", 0)
        return Mlp(
            tensors.take(f"{first}.weight", inner, width),
            tensors.find(f"{first}.bias", inner),
            tensors.take(f"{second}.weight", out, inner),
            tensors.find(f"{second}.bias", out),
            then,
        )

    def layers(self) -> tuple[Layer, ...]:
        """All layers of the tower."""
        size = self.width // self.heads
        if size > LARGEST_HEAD or size % 2:
            raise UnsupportedModel(f"{self.file.path}: heads of size {size} are not supported")
        stored = stored_size(size)
        how = Attention(
            self.heads, None, scale=size**-0.5, causal=False, head=size if stored != size else 0
        )  # every patch sees all of them
        cache = Cache(CACHE, self.heads, stored)
        return tuple(
            Layer(self._attention(i, how, cache, size), self._feed(i), self._scales(i)) for i in range(self.count)
        )

    def _scales(self, i: int) -> tuple[Weight | None, Weight | None]:
        find, at = self.tensors.find, f"v.blk.{i}"
        return find(f"{at}.ls1.weight", self.width), find(f"{at}.ls2.weight", self.width)

    def _attention(self, i: int, how: Attention, cache: Cache, size: int) -> PatchAttention:
        at, width, tensors = f"v.blk.{i}.attn", self.width, self.tensors
        pairing = self.family.pairing if self.family.plane else None
        return PatchAttention(
            self.norm(f"v.blk.{i}.ln1"),
            take_qkv(tensors, at, (width,) * 3, width),
            take_qkv_biases(tensors, at, (width,) * 3),
            Output(tensors.take(f"{at}_out.weight", width, width), tensors.find(f"{at}_out.bias", width)),
            cache,
            how,
            size,
            pairing,
        )

    def _feed(self, i: int) -> FeedForward:
        at, tensors, width = f"v.blk.{i}.ffn", self.tensors, self.width
        up, down = f"{at}_up", f"{at}_down"
        if self.family.swaps and tensors.dimension(f"{down}.weight", 1) == width:
            inner = tensors.dimension(f"{down}.weight", 0)
            if tensors.dimension(f"{up}.weight", 0) == width:
                up, down = down, up
        inner = tensors.dimension(f"{up}.weight", 0)
        gates: Any
        if f"{at}_gate.weight" in tensors:
            gates, biases = take_gates(tensors, at, inner, width), take_biases(tensors, at, inner, ("gate", "up"))
        else:
            gates, biases = tensors.take(f"{up}.weight", inner, width), (tensors.find(f"{up}.bias", inner),)
        branch = Output(tensors.take(f"{down}.weight", width, inner), tensors.find(f"{down}.bias", width))
        return FeedForward(self.norm(f"v.blk.{i}.ln2"), gates, self._activation(), branch, biases)

    def _activation(self) -> Activation:
        for key, activation in (("clip.use_gelu", "gelu"), ("clip.use_silu", "silu")):
            if self.file.bool(key, default=False):
                return activation  # type: ignore[return-value]
        raise UnsupportedModel(f"{self.file.path}: a projector with the quick form of GELU is not supported")

    def taps(self) -> dict[int, Projector]:
        """The projectors of deepstack rows, by layer."""
        found: dict[int, Projector] = {}
        for i in range(self.count):
            at, width = f"v.deepstack.{i}", self.width * self.block
            if f"{at}.fc1.weight" in self.tensors:
                norm = self.norm(f"{at}.norm", width)
                assert isinstance(norm, LayerNorm), "this family has layer norms"
                found[i] = JoinedProjector(self.block, self.mlp(f"{at}.fc1", f"{at}.fc2", width), norm)
        return found


def _gemma3(source: TowerFile) -> Projector:
    tensors, width, name = source.tensors, source.width, "mm.input_projection.weight"
    rows = HeadRows(1, width, 0, width, transposed=True)
    out = tensors.dimension(name, 1)
    norm = Rms(tensors.take("mm.soft_emb_norm.weight", width), source.eps)
    return PooledProjector(source.block, norm, tensors.slice_heads("mm.input_projection", name, rows, out))


def _qwen3vl(source: TowerFile) -> Projector:
    return JoinedProjector(source.block, source.mlp("mm.0", "mm.2", source.width * source.block))


def _internvl(source: TowerFile) -> Projector:
    width, at = source.width * source.block, "mm.model.mlp"
    norm = LayerNorm(source.tensors.take(f"{at}.0.weight", width), source.tensors.find(f"{at}.0.bias", width), 1e-5)
    return JoinedProjector(source.block, source.mlp(f"{at}.1", f"{at}.3", width), norm)


def _pixtral(source: TowerFile) -> Projector:
    tensors, width, merger = source.tensors, source.width, "mm.patch_merger.weight"
    norm = Rms(tensors.take("mm.input_norm.weight", width), source.eps) if merger in tensors else None
    matrix = tensors.take(merger, width, width * source.block) if merger in tensors else None
    tensors.skip(BREAK)
    return MergedProjector(source.block, source.mlp("mm.1", "mm.2", width), norm, matrix)


FAMILIES: dict[str, Family] = {
    "gemma3": Family(
        _gemma3, "bilinear", "<start_of_image>", "<end_of_image>", merge=4,
        merge_key="clip.vision.projector.scale_factor", whole=True, swaps=True,
    ),
    "qwen3vl_merger": Family(
        _qwen3vl, "bicubic", "<|vision_start|>", "<|vision_end|>", frames=2, tokens=(8, 4096), merge=2,
        plane="halves", pairing="neox", grid_positions=True,
    ),
    "internvl": Family(
        _internvl, "bicubic", "<img>", "</img>", merge=2, merge_key="clip.vision.projector.scale_factor", tiles=(1, 12),
    ),
    "pixtral": Family(
        _pixtral, "bicubic", end="[IMG_END]", norm="rms", tokens=(8, 1024), plane="alternate",
    ),
}  # fmt: skip


def read_vision(path: Path) -> Vision:
    """Reads a projector file. Raises BadFile or UnsupportedModel."""
    with GGUFFile.open(path) as file:
        return vision_of(file)


def vision_of(file: GGUFFile) -> Vision:
    """The contents of an open projector file."""
    arch = file.str("general.architecture")
    if arch != ARCHITECTURE:
        raise BadFile(f"{file.path}: is a model of architecture '{arch}', not a projector; give an mmproj file")
    if not file.bool("clip.has_vision_encoder", default=False):
        raise UnsupportedModel(f"{file.path}: this projector has no vision; only images are supported")
    kind = file.str("clip.projector_type", default="") or file.str("clip.vision.projector_type", default="")
    if kind not in FAMILIES:
        known = ", ".join(sorted(FAMILIES))
        raise UnsupportedModel(f"{file.path}: projectors of type '{kind[:40]}' are not supported; known: {known}")
    family = FAMILIES[kind]
    source = TowerFile(file, family)
    preparation = _preparation(source)
    tower, width = _tower(source, preparation)
    table = _table(source, preparation)
    summary = None
    if SUMMARY in file.tensors:
        if table is None:
            raise BadFile(f"{file.path}: tensor '{SUMMARY}' needs '{POSITIONS}'")
        table, summary = table[:-1], _summary(source, table[-1])
    line_break = file.values(file.tensors[BREAK]).reshape(-1) if BREAK in file.tensors else None
    source.tensors.refuse_the_rest()
    identity = hashlib.sha256(repr((kind, preparation, sorted(file.tensors))).encode())
    for tensor in file.tensors.values():
        identity.update(file.read(tensor, 0, min(SAMPLE, tensor.nbytes)))
    parameters = sum(int(np.prod(tensor.shape)) for tensor in file.tensors.values())
    nbytes = sum(tensor.nbytes for tensor in file.tensors.values())
    rows = width, table, summary, line_break
    return Vision(Path(file.path), kind, family, tower, preparation, *rows, parameters, nbytes, identity.digest())


def _preparation(source: TowerFile) -> Preparation:
    file, family = source.file, source.family
    side = source.size("image_size", 1 << 13)
    mean, deviation = (_triple(file, f"clip.vision.image_{name}") for name in ("mean", "std"))
    if min(deviation) <= 0:
        raise source.tensors.bad("metadata key 'clip.vision.image_std'", f"{deviation}", "positive numbers")
    least, most = (count * (source.patch * source.merge) ** 2 for count in family.tokens)
    if most:
        side = 0
    elif side % (source.patch * source.merge):
        block = f"a multiple of {source.patch * source.merge}"
        raise source.tensors.bad("metadata key 'clip.vision.image_size'", f"{side}", block)
    tiles = _tiles(source) if family.tiles[1] else (0, 0)
    return Preparation(source.patch, source.merge, family.resampling, mean, deviation, side, least, most, tiles)


def _tiles(source: TowerFile) -> tuple[int, int]:
    """Fewest and most tiles of an image."""
    low, high = source.family.tiles
    fewest = source.file.int("clip.vision.preproc_min_tiles", low=1, high=MOST_TILES, default=low)
    return fewest, source.file.int("clip.vision.preproc_max_tiles", low=fewest, high=MOST_TILES, default=max(low, high))


def _summary(source: TowerFile, position: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """What a row without pixels gets: its embedding and position, less the bias that every row gets."""
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
    """The tower, and the width of the rows that it makes."""
    tensors, width, pixels = source.tensors, source.width, 3 * source.patch**2
    patches = tuple(tensors.take(name, width, pixels) for name in source.patch_names)
    bias = tensors.find("v.patch_embd.bias", width)
    layers = source.layers()
    ends = source.optional_norm("v.pre_ln"), source.optional_norm("v.post_ln")
    projector, taps = source.family.read(source), source.taps() if source.family.grid_positions else {}
    learned = POSITIONS in tensors
    out = _rows_of(projector)
    for tap in taps.values():
        if _rows_of(tap) != out:
            raise BadFile(f"{source.file.path}: deepstack rows have {_rows_of(tap)} numbers, expected {out}")
    most = preparation.most_patches + (SUMMARY in tensors)
    return (
        Tower(tuple(tensors.taken), patches, bias, layers, *ends, projector, most, learned, taps),
        out,
    )


def _rows_of(projector: Projector) -> int:
    """Numbers of a row that a projector makes."""
    if isinstance(projector, PooledProjector):
        return projector.matrix.shape[1]
    assert isinstance(projector, JoinedProjector | MergedProjector), "every projector ends with a matrix"
    return projector.mlp.down.shape[0]


def _table(source: TowerFile, preparation: Preparation) -> npt.NDArray[np.float32] | None:
    """Learned positions, for a square of patches."""
    if POSITIONS not in source.tensors:
        return None
    count = source.tensors.dimension(POSITIONS, 0)
    first = int(SUMMARY in source.tensors)
    side = round((count - first) ** 0.5)
    grid = preparation.side // source.patch
    if side**2 + first != count or (grid and grid != side):
        raise source.tensors.bad(f"tensor '{POSITIONS}'", f"{count} rows", f"{grid**2 or 'a square number'}")
    values = source.file.values(source.file.tensors[POSITIONS])
    if values.shape != (count, source.width):
        raise source.tensors.bad(f"tensor '{POSITIONS}'", f"{values.shape[1]} numbers", f"{source.width}")
    source.tensors.skip(POSITIONS)
    return values
