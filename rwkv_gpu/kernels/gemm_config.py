"""One way to run a matrix product: a kernel of `linear/` and the constants that it is specialised by.

What follows from these constants, such as workgroup memory, differs from kernel to kernel: each says so in its own
entry of the registry, and a configuration asks that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, Protocol, cast

from ..gpu.device import Capabilities
from ..gpu.shader import Constant
from ..gpu.weights import Shard
from .kernel import EXACT, KERNELS, Kernel, Tolerance
from .parts import RMS_NORM, VEC4_ROWS

PART = 256  # columns that a part of a product has at least
FILL = 600  # workgroups that are enough for the last ones to matter little
MANY = 1 << 30
MATRIX_STEP = 64  # columns that matrix units go through at a time, and that rows are rounded by
BYTES = {"int16": 2, "int8": 1}  # of an integer that x becomes
PRECISIONS = ("float32", "float16", "int8")  # what products may be rounded to, each with those before it

INT16 = Tolerance(3e-5, 1e-4, "x as two bytes is off by up to 1/65278 of the largest of its 32 columns", gated=1e-3)
INT8 = Tolerance(4e-3, 2e-2, "x as one byte is off by up to 1/254 of the largest of its 32 columns", gated=5e-2)
F16 = Tolerance(1e-3, 2e-3, "each factor is rounded to float16: by 1/2048 of itself")


@dataclass(frozen=True)
class GemmConfig:
    """One way to spread a matrix product over workgroups."""

    kernel: str  # the shader: linear/gemv, linear/gemm_tile ...
    wg: int  # lanes of a workgroup
    r: int  # rows of W for a workgroup of tiles, for a lane of gemm_lane, else for `lanes_per_row` lanes
    tb: int  # rows of x for a workgroup
    lanes: str = "plain"  # the part that reduces over a workgroup, where the kernel wants one
    lanes_per_row: int = 1  # lanes that share a row of W; of tiles, lanes along the rows of W
    prefetch_depth: int = 1  # chunks of a row that are loaded ahead, for a lane, or for a workgroup of gemm_int8
    subgroup_width: int = 1  # lanes that shuffles can sum over; 1 without subgroups
    tile: str = "f32"  # the type of gemm_tile's tiles in workgroup memory: f16 halves them, and rounds
    gap: int = 0  # padding between columns of such a tile, against bank conflicts
    fill: int = 0  # workgroups that tiles want: columns are split into parts (split-K) until there are as many
    max_workgroups: int = MANY  # of gemv_int and skinny_gemm, whose workgroups then go through several blocks of rows
    activations: str = "f32"  # what x is rounded to: int16 or int8 where W is packed, or float16
    staged: int = 0  # chunks of 32 columns of x that skinny_gemm stages at a time; with none, it reads quantised rows
    copies: bool = False  # whether skinny_gemm stages rows that are quantised already
    fragment: int = 0  # side of the matrices that matrix units multiply, where gemm_matrix has them do it
    fragments_of_w: int = 4  # that a subgroup has there, along its rows
    fragments_of_x: int = 4
    columns: int = 64  # that gemm_matrix stages at a time
    pairs: int = 1  # of fours of each chunk of x that line_gemm stages at a time
    joined_parts: int = 1  # that columns are cut into, which the last workgroup of some rows joins; 0: as many as gain

    @property
    def entry(self) -> "GemmKernel":
        """Its kernel, as the registry knows it."""
        return cast(GemmKernel, KERNELS[self.kernel])

    @property
    def norms(self) -> bool:
        """Whether it can norm x on the way."""
        return self.entry.fuses_norm

    @property
    def reads_quantised(self) -> bool:
        """Whether x is quantised before it, by a dispatch of its own or by what writes x."""
        return self.entry.reads_quantised(self)

    @property
    def integers(self) -> bool:
        """Whether it multiplies nothing but integers."""
        return self.entry.integers_only

    def takes(self, part: str) -> bool:
        """Whether its kernel has a hole for a shader part."""
        return self.entry.takes(part)

    def fit(self, matrices: "Matrices") -> "Fitted":
        """The same config as some matrices need it, and how it keeps rows of x in workgroup memory.

        Rows of gate and up alternate, so gated pairs want an even number of rows.
        """
        even = replace(self, r=self.r + self.r % 2) if matrices.pairs else self
        return even.entry.fit(even, matrices)

    @property
    def block(self) -> int:
        """Rows of W for a workgroup."""
        return self.entry.block(self)

    @property
    def multi_pass(self) -> "GemmConfig":
        """That of gemv_int for what gemv_single_pass cannot multiply: the lanes of a row are of one subgroup."""
        lanes_per_row = min(self.lanes_per_row, self.subgroup_width)
        return replace(self, kernel="linear/gemv_int", lanes_per_row=lanes_per_row, prefetch_depth=1)

    def cuts(self, groups: int, widths: Sequence[int]) -> int:
        """How many parts columns are cut into, where workgroups for whole columns are so many."""
        return max(1, min(-(-self.fill // groups), min(widths) // PART))

    @property
    def constants(self) -> dict[str, Constant]:
        """What the kernel is specialised by."""
        return {"WG": self.wg, "R": self.r, "TB": self.tb, **self.entry.constants(self)}

    @property
    def workgroup_bytes(self) -> int:
        """The memory that a workgroup has in common."""
        return self.entry.workgroup_bytes(self)

    @property
    def parts(self) -> tuple[str, ...]:
        """What it links, whatever it multiplies."""
        return (f"lib/lanes/{self.lanes}", *self.entry.links(self))

    @property
    def bytes_of_x(self) -> int:
        """Of an integer that x becomes."""
        return BYTES.get(self.activations, 1)

    @property
    def tolerance(self) -> Tolerance:
        """How far off products may be where W is packed; of floats, where x stays what it is, less."""
        return {"int16": INT16, "int8": INT8}.get(self.activations, F16 if self.tile == "f16" else self.entry.tolerance)

    @property
    def tried_at_start(self) -> "GemmConfig | None":
        """What the self test tries before anything relies on it: itself, where drivers may get its kernel wrong."""
        return self if self.entry.self_test else None

    def runs_on(self, can: Capabilities) -> bool:
        """Whether a device has all that it asks for."""
        lanes = {"one_subgroup": self.wg == can.subgroup_size, "subgroup": can.subgroup}.get(self.lanes, True)
        width = self.subgroup_width
        return (
            1 <= self.wg <= can.max_invocations
            and self.wg % self.lanes_per_row == 0
            and lanes
            and (width == can.subgroup_size if self.fragment else width <= can.subgroup_width)
            and self.entry.needs.met(can)
            and self.workgroup_bytes <= can.max_workgroup_memory
            and (self.tile != "f16" or can.f16)
        )


@dataclass(frozen=True)
class Matrices:
    """The matrices of a dispatch, for a config that is to fit them."""

    shards: Sequence[Shard]
    widths: Sequence[int]  # columns that each is summed over
    pairs: bool  # whether rows of gate and up alternate
    memory: int  # bytes of a workgroup at most


class Staging(Protocol):
    """How rows of x are kept in workgroup memory."""

    @property
    def parts(self) -> tuple[str, ...]: ...
    @property
    def constants(self) -> Mapping[str, Constant]: ...
    @property
    def nbytes(self) -> int: ...


Fitted = tuple[GemmConfig, Staging | None]


Configs = Callable[[Capabilities], Mapping[str, GemmConfig]]
Candidates = Callable[[Capabilities, int, str], Iterator[GemmConfig]]


@dataclass(frozen=True)
class SelfTest:
    """How the self test tries a kernel that a driver may get wrong, beside the plain gemv."""

    rows: int = 1  # of x
    pairs: Callable[[GemmConfig], bool] = lambda _: True  # whether over gate and up, or over one matrix
    kind: Callable[[GemmConfig], object] = lambda config: config  # of each kind of configuration one is tried


XOrder = Literal["rows", "columns", "fragments"]


@dataclass(frozen=True, kw_only=True)
class GemmKernel(Kernel):
    """A kernel of matrix products, with all that follows from its configurations."""

    trials: Configs  # by name, at several sizes: what `doctor` and the tests run, as far as a device can
    candidates: Candidates | None = None  # for a device, rows of x and a precision: what `tune` tries
    constants: Callable[[GemmConfig], Mapping[str, Constant]]
    workgroup_bytes: Callable[[GemmConfig], int]
    block: Callable[[GemmConfig], int]  # rows of W for a workgroup
    links: Callable[[GemmConfig], tuple[str, ...]]
    fit: Callable[[GemmConfig, Matrices], Fitted] = lambda config, _: (config, None)
    reads_quantised: Callable[[GemmConfig], bool] = lambda _: False
    x_order: XOrder = "rows"  # in which it reads quantised x
    any_lanes: bool = False  # whether its workgroups may have as many lanes as those of another dispatch
    integers_only: bool = False
    packed_only: bool = False  # whether `tune` tries it for packed formats alone
    self_test: SelfTest | None = None  # where a driver may get it wrong
    tolerance: Tolerance = EXACT

    @property
    def fuses_norm(self) -> bool:
        """Whether x may be normed on the way: each workgroup sees whole rows of it, or what quantises x does."""
        return self.takes(RMS_NORM) or not self.takes(VEC4_ROWS)


def gemv(
    wg: int, lanes_per_row: int, r: int, tb: int, *, prefetch_depth: int = 1, subgroup_width: int = 1
) -> GemmConfig:
    """Lanes share rows and reduce."""
    return GemmConfig(
        "linear/gemv",
        wg,
        r,
        tb,
        lanes_per_row=lanes_per_row,
        prefetch_depth=prefetch_depth,
        subgroup_width=subgroup_width,
    )


def gemv_int(
    wg: int,
    lanes_per_row: int,
    r: int,
    *,
    subgroup_width: int,
    max_workgroups: int,
    prefetch_depth: int = 1,
    subgroups_per_row: int = 1,
    activations: str = "int16",
) -> GemmConfig:
    """Workgroups stage x once, and each goes through many rows.

    With a prefetch depth, gemv_single_pass multiplies where each has but one block of rows; then a row may have the
    lanes of several subgroups.
    """
    return GemmConfig(
        "linear/gemv_int",
        wg,
        r,
        1,
        lanes_per_row=min(lanes_per_row, subgroup_width) * subgroups_per_row,
        prefetch_depth=prefetch_depth,
        subgroup_width=subgroup_width,
        max_workgroups=max_workgroups,
        activations=activations,
    )


def skinny_gemm(
    wg: int,
    lanes_per_row: int,
    r: int,
    tb: int,
    *,
    staged: int = 0,
    prefetch_depth: int = 1,
    subgroup_width: int,
    max_workgroups: int = MANY,
    activations: str = "int16",
    copies: bool = False,
) -> GemmConfig:
    """Workgroups stage some rows of x for many rows of W.

    Where they copy rows, or stage none, x is quantised before.
    """
    return GemmConfig(
        "linear/skinny_gemm",
        wg,
        r,
        tb,
        lanes_per_row=min(lanes_per_row, subgroup_width),
        prefetch_depth=prefetch_depth,
        subgroup_width=subgroup_width,
        max_workgroups=max_workgroups,
        activations=activations,
        staged=staged,
        copies=copies,
    )


def gemm_int8(
    wg: int, lanes_per_row: int, r: int, tb: int, *, activations: str, prefetch_depth: int = 2, fill: int = 0
) -> GemmConfig:
    """Tiles of integers; x is quantised once for all workgroups."""
    return GemmConfig(
        "linear/gemm_int8",
        wg,
        r,
        tb,
        lanes_per_row=lanes_per_row,
        prefetch_depth=prefetch_depth,
        fill=fill,
        activations=activations,
    )


def gemm_lane(r: int, tb: int) -> GemmConfig:
    """A lane for a row, on subgroups of 8."""
    return GemmConfig("linear/gemm_lane", 8, r, tb, lanes="one_subgroup")


TILE = GemmConfig("linear/gemm_tile", wg=64, r=64, tb=64, lanes_per_row=8)
WIDE_TILE = GemmConfig("linear/gemm_tile", wg=256, r=128, tb=128, lanes_per_row=16, gap=1)
TILE_F16 = replace(TILE, tile="f16")
INT8_TILE = gemm_int8(128, 16, 128, 64, activations="int16", fill=2 * FILL)


@dataclass(frozen=True)
class MatrixTile:
    """How subgroups share a tile on matrix units: the fragments that each has, and what it shares with others."""

    fragments_of_w: int = 4  # that a subgroup has, along its rows
    fragments_of_x: int = 4
    along_m: int = 2  # subgroups that share out rows of W
    along_t: int = 2  # rows of x
    along_k: int = 1  # columns: their sums meet in the end
    columns: int = 64  # staged at a time
    prefetch_depth: int = 1


def gemm_matrix(fragment: int, subgroup_width: int, tile: MatrixTile = MatrixTile(), *, fill: int = 0) -> GemmConfig:
    """Tiles on matrix units; x is rounded once for all."""
    return GemmConfig(
        "linear/gemm_matrix",
        wg=subgroup_width * tile.along_m * tile.along_t * tile.along_k,
        r=tile.fragments_of_w * fragment * tile.along_m,
        tb=tile.fragments_of_x * fragment * tile.along_t,
        prefetch_depth=tile.prefetch_depth,
        subgroup_width=subgroup_width,
        fill=fill,
        tile="f16",
        activations="f16",
        fragment=fragment,
        fragments_of_w=tile.fragments_of_w,
        fragments_of_x=tile.fragments_of_x,
        columns=tile.columns,
    )


def skinny_gemm_matrix(fragment: int, subgroup_width: int, tile: MatrixTile, *, fill: int = 0) -> GemmConfig:
    """Few rows of x on matrix units; subgroups share out rows of W and columns, and each stages W for itself."""
    assert tile.along_t == 1, "its subgroups have all rows of x"
    least = subgroup_width * 32 // (fragment * tile.columns)  # so that each lane has a chunk to decode
    tile = replace(tile, fragments_of_w=max(tile.fragments_of_w, least))
    return replace(gemm_matrix(fragment, subgroup_width, tile, fill=fill), kernel="linear/skinny_gemm_matrix")


def subgroup_gemm(
    fragment: int,
    subgroup_width: int,
    subgroups: int,
    fragments_of_x: int = 1,
    *,
    max_workgroups: int,
    joined_parts: int = 1,
) -> GemmConfig:
    """Few rows of x on matrix units: each subgroup has rows of W of its own, by about so many workgroups."""
    tile = MatrixTile(1, fragments_of_x, subgroups, 1, 1, columns=128)
    config = gemm_matrix(fragment, subgroup_width, tile)
    return replace(config, kernel="linear/subgroup_gemm", max_workgroups=max_workgroups, joined_parts=joined_parts)


LINE = 256  # columns of a row of W that a subgroup has at a time: 128 bytes where weights have four bits


def line_gemm(
    fragment: int,
    subgroup_width: int,
    subgroups: int,
    fragments_of_x: int = 1,
    *,
    max_workgroups: int,
    joined_parts: int = 1,
) -> GemmConfig:
    """The same for long rows, of which each subgroup loads whole lines of memory."""
    config = subgroup_gemm(
        fragment, subgroup_width, subgroups, fragments_of_x, max_workgroups=max_workgroups, joined_parts=joined_parts
    )
    return replace(config, kernel="linear/line_gemm", columns=LINE)
