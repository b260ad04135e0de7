"""Configurations of matrix products: a kernel of `linear/` and its constants.

Derived values, such as the size of workgroup memory, depend on the kernel. Each kernel defines them in its entry of the
registry, and a configuration looks them up there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, Protocol, cast

from ..gpu.device import Capabilities
from ..gpu.shader import Constant
from ..gpu.weights import Shard
from .kernel import EXACT, KERNELS, Kernel, Tolerance
from .parts import RMS_NORM, VEC4_ROWS

PART = 256  # minimum number of columns of a part (split-K)
FILL = 600  # with at least this many workgroups, a partly filled last wave costs little
# The cost of adding up parts: per dispatch, and per part of a tile. The unit is a column of a tile of 128 x 128 sums.
REDUCING, REDUCING_PART = 255, 2.2
UNLIMITED = 1 << 30
MATRIX_STEP = 64  # columns that matrix units process at a time; rows of float16 are padded to a multiple
BYTES = {"int16": 2, "int8": 1}  # bytes of a quantised element of x
PRECISIONS = ("float32", "float16", "int8")  # lowest precision allowed in products; each includes the ones before it

INT16 = Tolerance(3e-5, 1e-4, "x as two bytes is off by up to 1/65278 of the largest of its 32 columns", gated=1e-3)
INT8 = Tolerance(4e-3, 2e-2, "x as one byte is off by up to 1/254 of the largest of its 32 columns", gated=5e-2)
F16 = Tolerance(1e-3, 2e-3, "each factor is rounded to float16: by 1/2048 of itself")


@dataclass(frozen=True)
class GemmConfig:
    """A kernel of matrix products and its sizes."""

    kernel: str  # the shader: linear/gemv, linear/gemm_tile ...
    wg: int  # lanes of a workgroup
    r: int  # rows of W: per workgroup for tiles, per lane for gemm_lane, else per `lanes_per_row` lanes
    tb: int  # rows of x per workgroup
    lanes: str = "plain"  # the part that reduces over a workgroup, if the kernel has that hole
    lanes_per_row: int = 1  # lanes that share a row of W; for tiles, lanes along the rows of W
    prefetch_depth: int = 1  # chunks of a row that a lane, or a workgroup of gemm_int8, loads ahead
    subgroup_width: int = 1  # lanes that shuffles can sum over; 1 without subgroups
    tile: str = "f32"  # element type of tiles in workgroup memory: f16 halves their size, and rounds
    gap: int = 0  # padding between columns of such a tile, against bank conflicts
    fill: int = 0  # minimum number of workgroups of tiles: columns are split into parts (split-K) to reach it
    at_a_time: int = 0  # workgroups of tiles that run at a time: the number of parts is chosen by cost; 0: by `fill`
    max_workgroups: int = (
        UNLIMITED  # workgroups of gemv_int and skinny_gemm, which then loop over several blocks of rows
    )
    activations: str = "f32"  # type that x is rounded to: int16 or int8 for packed W, or f16
    staged: int = 0  # chunks of 32 columns of x that skinny_gemm stages at a time; 0: it reads quantised rows directly
    copies: bool = False  # whether skinny_gemm stages rows that are already quantised
    fragment: int = 0  # side of a fragment of matrix units; 0: they are not used
    fragments_of_w: int = 4  # fragments of a subgroup along the rows of W
    fragments_of_x: int = 4  # fragments of a subgroup along the rows of x
    columns: int = 64  # columns that a kernel on matrix units stages at a time
    pairs: int = 1  # pairs of vec4s of each chunk of x that line_gemm stages at a time
    joined_parts: int = 1  # parts of columns, which the last workgroup of a block adds up; 0: chosen by cost

    @property
    def entry(self) -> "GemmKernel":
        """The entry of its kernel in the registry."""
        return cast(GemmKernel, KERNELS[self.kernel])

    @property
    def norms(self) -> bool:
        """True if an RMS norm of x can be fused."""
        return self.entry.fuses_norm

    @property
    def reads_quantised(self) -> bool:
        """True if it reads quantised x, written by a separate dispatch or by the producer of x."""
        return self.entry.reads_quantised(self)

    @property
    def integers(self) -> bool:
        """True if it multiplies integers only."""
        return self.entry.integers_only

    def takes(self, part: str) -> bool:
        """True if its kernel has a hole for a shader part."""
        return self.entry.takes(part)

    def fit(self, matrices: "Matrices") -> "Fitted":
        """Adapts the config to some matrices. Returns it with the staging of x in workgroup memory, if any.

        Rows of gate and up alternate, so gated pairs need an even number of rows.
        """
        even = replace(self, r=self.r + self.r % 2) if matrices.pairs else self
        return even.entry.fit(even, matrices)

    @property
    def block(self) -> int:
        """Rows of W per workgroup."""
        return self.entry.block(self)

    @property
    def multi_pass(self) -> "GemmConfig":
        """The config of gemv_int to use if gemv_single_pass does not apply; the lanes of a row are in one subgroup."""
        lanes_per_row = min(self.lanes_per_row, self.subgroup_width)
        return replace(self, kernel="linear/gemv_int", lanes_per_row=lanes_per_row, prefetch_depth=1)

    def cuts(self, groups: int, widths: Sequence[int]) -> int:
        """The number of parts to split columns into (split-K), given the number of workgroups without a split."""
        most = max(1, min(widths) // PART)
        if not self.at_a_time:
            return max(1, min(-(-self.fill // groups), most))

        def cost(parts: int) -> float:
            rounds = -(-groups * parts // self.at_a_time)
            reducing = REDUCING + REDUCING_PART * groups * parts if parts > 1 else 0
            return rounds * -(-max(widths) // parts) + reducing

        return min(range(1, most + 1), key=cost)

    @property
    def constants(self) -> dict[str, Constant]:
        """Constants of the kernel."""
        return {"WG": self.wg, "R": self.r, "TB": self.tb, **self.entry.constants(self)}

    @property
    def workgroup_bytes(self) -> int:
        """Bytes of workgroup memory."""
        return self.entry.workgroup_bytes(self)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that it links for any matrices."""
        return (f"lib/lanes/{self.lanes}", *self.entry.links(self))

    @property
    def bytes_of_x(self) -> int:
        """Bytes of a quantised element of x."""
        return BYTES.get(self.activations, 1)

    @property
    def tolerance(self) -> Tolerance:
        """The allowed error for packed W. For float formats it is smaller, because their x is not quantised."""
        return {"int16": INT16, "int8": INT8}.get(self.activations, F16 if self.tile == "f16" else self.entry.tolerance)

    @property
    def tried_at_start(self) -> "GemmConfig | None":
        """The config itself if the self test must try it first, as drivers may get its kernel wrong; else None."""
        return self if self.entry.self_test else None

    def runs_on(self, can: Capabilities) -> bool:
        """True if a device meets all its requirements."""
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
    """The matrices of a dispatch that a config is adapted to."""

    shards: Sequence[Shard]
    widths: Sequence[int]  # number of columns that each is summed over
    pairs: bool  # whether rows of gate and up alternate
    memory: int  # maximum bytes of workgroup memory


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
    """How the self test compares a kernel that drivers may get wrong with the plain gemv."""

    rows: int = 1  # rows of x
    pairs: Callable[[GemmConfig], bool] = lambda _: True  # whether it uses a gated pair, or one matrix
    kind: Callable[[GemmConfig], object] = lambda config: config  # one configuration of each kind is tried


XOrder = Literal["rows", "columns", "fragments"]


@dataclass(frozen=True, kw_only=True)
class GemmKernel(Kernel):
    """A kernel of matrix products, with the values derived from its configurations."""

    trials: Configs  # configurations by name that `doctor` and the tests run, if the device can
    candidates: Candidates | None = None  # configurations that `tune` tries for a device, rows of x and a precision
    constants: Callable[[GemmConfig], Mapping[str, Constant]]
    workgroup_bytes: Callable[[GemmConfig], int]
    block: Callable[[GemmConfig], int]  # rows of W for a workgroup
    links: Callable[[GemmConfig], tuple[str, ...]]
    fit: Callable[[GemmConfig, Matrices], Fitted] = lambda config, _: (config, None)
    reads_quantised: Callable[[GemmConfig], bool] = lambda _: False
    x_order: XOrder = "rows"  # the layout of quantised x that it reads
    any_lanes: bool = False  # whether its workgroup size may be set to that of another dispatch
    integers_only: bool = False
    packed_only: bool = False  # whether `tune` tries it for packed formats only
    self_test: SelfTest | None = None  # for kernels that drivers may get wrong
    tolerance: Tolerance = EXACT

    @property
    def fuses_norm(self) -> bool:
        """True if an RMS norm can be fused: each workgroup, or the dispatch that quantises x, sees whole rows."""
        return self.takes(RMS_NORM) or not self.takes(VEC4_ROWS)


# One function per kernel, with its sizes as named arguments; `more` are further fields of a GemmConfig.
def gemv(wg: int, lanes_per_row: int, r: int, tb: int, **more: Any) -> GemmConfig:
    """Lanes share a row of W and reduce their sums."""
    return GemmConfig("linear/gemv", wg, r, tb, lanes_per_row=lanes_per_row, **more)


def gemv_int(
    wg: int,
    lanes_per_row: int,
    r: int,
    *,
    subgroup_width: int,
    subgroups_per_row: int = 1,
    activations: str = "int16",
    **more: Any,
) -> GemmConfig:
    """Workgroups stage x once, as integers, and loop over blocks of rows of W.

    With `prefetch_depth` > 1, gemv_single_pass is used if each workgroup has a single block of rows; then several
    subgroups may share a row.
    """
    more |= {"lanes_per_row": min(lanes_per_row, subgroup_width) * subgroups_per_row, "activations": activations}
    return GemmConfig("linear/gemv_int", wg, r, 1, subgroup_width=subgroup_width, **more)


def skinny_gemm(
    wg: int, lanes_per_row: int, r: int, tb: int, *, subgroup_width: int, activations: str = "int16", **more: Any
) -> GemmConfig:
    """Workgroups stage a few rows of x, as integers, for many rows of W.

    If they copy rows or stage none, a separate dispatch must quantise x first.
    """
    more |= {"lanes_per_row": min(lanes_per_row, subgroup_width), "activations": activations}
    return GemmConfig("linear/skinny_gemm", wg, r, tb, subgroup_width=subgroup_width, **more)


def gemm_int8(wg: int, lanes_per_row: int, r: int, tb: int, *, prefetch_depth: int = 2, **more: Any) -> GemmConfig:
    """Tiles of integers; x is quantised once, in advance."""
    more |= {"lanes_per_row": lanes_per_row, "prefetch_depth": prefetch_depth}
    return GemmConfig("linear/gemm_int8", wg, r, tb, **more)


def gemm_lane(r: int, tb: int) -> GemmConfig:
    """One lane per row of W, for devices with subgroups of 8 lanes."""
    return GemmConfig("linear/gemm_lane", 8, r, tb, lanes="one_subgroup")


TILE = GemmConfig("linear/gemm_tile", wg=64, r=64, tb=64, lanes_per_row=8)
WIDE_TILE = GemmConfig("linear/gemm_tile", wg=256, r=128, tb=128, lanes_per_row=16, gap=1)
TILE_F16 = replace(TILE, tile="f16")
INT8_TILE = gemm_int8(128, 16, 128, 64, activations="int16", fill=2 * FILL)


@dataclass(frozen=True)
class MatrixTile:
    """How the subgroups of a workgroup share a tile on matrix units."""

    fragments_of_w: int = 4  # fragments of a subgroup along the rows of W
    fragments_of_x: int = 4  # fragments of a subgroup along the rows of x
    along_m: int = 2  # number of subgroups along the rows of W
    along_t: int = 2  # along the rows of x
    along_k: int = 1  # number of subgroups along the columns; their sums are added up at the end
    columns: int = 64  # columns staged at a time
    prefetch_depth: int = 1


def gemm_matrix(fragment: int, subgroup_width: int, tile: MatrixTile = MatrixTile(), *, fill: int = 0) -> GemmConfig:
    """Tiles on matrix units; x is rounded once, in advance."""
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


def subgroup_gemm(
    fragment: int,
    subgroup_width: int,
    subgroups: int,
    fragments_of_x: int = 1,
    *,
    max_workgroups: int,
    joined_parts: int = 1,
) -> GemmConfig:
    """Few rows of x on matrix units; each subgroup has its own rows of W. `max_workgroups` is a target."""
    tile = MatrixTile(1, fragments_of_x, subgroups, 1, 1, columns=128)
    config = gemm_matrix(fragment, subgroup_width, tile)
    return replace(config, kernel="linear/subgroup_gemm", max_workgroups=max_workgroups, joined_parts=joined_parts)


LINE = 256  # columns of a row of W that a subgroup loads at a time: 128 bytes with weights of four bits


def line_gemm(*sizes: int, **more: int) -> GemmConfig:
    """Like subgroup_gemm, but each subgroup loads whole cache lines of a row of W; for long rows."""
    return replace(subgroup_gemm(*sizes, **more), kernel="linear/line_gemm", columns=LINE)
