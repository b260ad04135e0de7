"""Configurations of products with experts: a kernel of `moe/` and its sizes."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from ..gpu.device import Capabilities
from ..gpu.shader import Constant
from .gemm_config import MATRIX_STEP, UNLIMITED, GemmConfig
from .kernel import KERNELS, Kernel, Tolerance
from .matrix_tiles import matrix_units

STAGED_FLOATS = 2304  # floats of x that expert_gemv stages in workgroup memory, unless its lanes need more
DECODED = 32  # weights of a tile on matrix units that each lane decodes at a time


@dataclass(frozen=True)
class ExpertConfig:
    """A kernel of products with experts and its sizes."""

    kernel: str  # the shader: moe/expert_gemv ...
    wg: int  # lanes of a workgroup
    r: int  # rows of an expert's matrices per workgroup, or per group of lanes; even, as gate and up alternate
    tb: int  # choices of one expert per workgroup; with 1 they are used unsorted, with more they are sorted
    lanes_per_row: int = 1  # lanes of expert_gemv and expert_gemv_int that share rows
    subgroup_width: int = 1  # lanes that shuffles can sum over; 1 without subgroups
    sum_lanes_per_row: int = 0  # lanes per row in the kernel that also sums the choices of a row; 0: lanes_per_row
    sum_r: int = 0  # rows that these lanes share
    fragment: int = 0  # side of a fragment of matrix units; 0: they are not used
    fragments_of_w: int = 1  # fragments of a subgroup along the rows of W
    columns: int = 64  # columns that expert_gemm_matrix stages at a time
    ahead: int = 1  # on matrix units: steps in flight; more than 1 only with one fragment each of W and x
    max_workgroups: int = UNLIMITED  # workgroups of expert_gemv_int, which then loop over several blocks of rows

    @property
    def summing(self) -> "ExpertConfig":
        """The config for the kernel that also sums the choices of a row, whose rows are few and long."""
        return replace(self, lanes_per_row=self.sum_lanes_per_row or self.lanes_per_row, r=self.sum_r or self.r)

    @property
    def of_floats(self) -> "ExpertConfig":
        """The config without quantisation of x."""
        if self.kernel != "moe/expert_gemv_int":
            return self
        return replace(self, kernel="moe/expert_gemv", max_workgroups=UNLIMITED)

    @property
    def entry(self) -> "ExpertKernel":
        """The entry of its kernel in the registry."""
        return cast(ExpertKernel, KERNELS[self.kernel])

    @property
    def block(self) -> int:
        """Rows of an expert's matrices per workgroup."""
        return self.entry.block(self)

    def shares(self, tiles: int, blocks: int) -> int:
        """The number of workgroups per tile of choices, given the number of blocks of rows.

        Each may have several blocks.
        """
        return max(1, min(blocks, self.max_workgroups // tiles))

    @property
    def norms(self) -> bool:
        """True if a norm of x can be fused: the lanes that share a row see all of x."""
        return self.entry.fuses_norm

    @property
    def sums(self) -> bool:
        """True if one kernel can compute and sum the products of a row."""
        return self.norms and self.tb == 1

    @property
    def along_k(self) -> int:
        """The number of subgroups that divide the columns of a step, on matrix units."""
        return self.wg // self.subgroup_width * self.fragments_of_w * self.fragment // self.r

    def within(self, width: int) -> "ExpertConfig":
        """The config for short rows: on matrix units, at most one subgroup per step divides the columns."""
        if not self.fragment:
            return self
        share = self.columns // self.along_k
        least = max(share, MATRIX_STEP)
        columns = min(self.columns, -(-width // least) * least)
        return replace(self, wg=self.wg // self.along_k * (columns // share), columns=columns)

    def staged(self, run: int, runs: int = 1 << 30) -> int:
        """The number of runs of a row of x that are staged at a time: all, or as many as fit."""
        room = STAGED_FLOATS // (self.tb * (run + 4))
        return self.lanes_per_row * max(1, min(room, runs + self.lanes_per_row - 1) // self.lanes_per_row)

    @property
    def workgroup_bytes(self) -> int:
        """Bytes of workgroup memory."""
        return self.entry.workgroup_bytes(self)

    @property
    def constants(self) -> dict[str, Constant]:
        """Constants of the kernel."""
        own: dict[str, Constant] = {"LANES_PER_ROW": self.lanes_per_row, "SUBGROUP": self.subgroup_width}
        if self.fragment:
            own = expert_tile(self)
        return {"WG": self.wg, "R": self.r, "TB": self.tb, **(own if self.norms or self.fragment else {})}

    @property
    def gathers_row(self) -> bool:
        """True if a workgroup can compute the row of x that it reads."""
        return self.kernel == "moe/expert_gemv_int"

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts that it links for any matrices."""
        return ("lib/lanes/plain", *self.entry.links(self))

    @property
    def tolerance(self) -> Tolerance:
        """The allowed error of products, and its reason."""
        return self.entry.tolerance

    @property
    def tried_at_start(self) -> GemmConfig | None:
        """The plain product that the self test tries in its place; None if drivers get its kernel right."""
        return self.entry.tried_as(self) if self.entry.tried_as else None

    def runs_on(self, can: Capabilities) -> bool:
        """True if a device meets all its requirements."""
        width = self.subgroup_width
        whole = not self.fragment or self.r * self.columns // DECODED % self.wg == 0
        return (
            1 <= self.wg <= can.max_invocations
            and whole
            and (width == can.subgroup_size if self.fragment else width <= can.subgroup_width)
            and self.entry.needs.met(can)
            and self.workgroup_bytes <= can.max_workgroup_memory
        )


@dataclass(frozen=True, kw_only=True)
class ExpertKernel(Kernel):
    """A kernel of products with experts, with the values derived from its configurations."""

    trials: Callable[[Capabilities], Mapping[str, ExpertConfig]]  # configurations that `doctor` and the tests run
    candidates: Callable[[Capabilities], Iterator[ExpertConfig]]  # configurations that `tune` tries
    block: Callable[[ExpertConfig], int]  # rows of an expert's matrices for a workgroup
    links: Callable[[ExpertConfig], tuple[str, ...]]
    workgroup_bytes: Callable[[ExpertConfig], int] = lambda _: 0
    fuses_norm: bool = False
    tried_as: Callable[[ExpertConfig], GemmConfig] | None = None  # the plain product for the self test


EXPERT_TILE = ExpertConfig("moe/expert_gemm_tile", wg=128, r=64, tb=32)


def expert_gemv(
    wg: int, lanes_per_row: int, r: int, tb: int, *, subgroup_width: int = 1, summing: tuple[int, int] = (0, 0)
) -> ExpertConfig:
    """Lanes share rows and reduce. `summing` has the lanes and rows of the kernel that also sums choices."""
    return ExpertConfig("moe/expert_gemv", wg, r, tb, lanes_per_row, subgroup_width, *summing)


def expert_gemv_int(
    wg: int,
    lanes_per_row: int,
    r: int,
    *,
    subgroup_width: int,
    summing: tuple[int, int] = (0, 0),
    max_workgroups: int = UNLIMITED,
) -> ExpertConfig:
    """Workgroups stage the x of one choice as integers; `summing` is as in `expert_gemv`."""
    return ExpertConfig(
        "moe/expert_gemv_int", wg, r, 1, lanes_per_row, subgroup_width, *summing, max_workgroups=max_workgroups
    )


def expert_gemm_lane(r: int, tb: int) -> ExpertConfig:
    """One lane per row, for devices with subgroups of 8 lanes."""
    return ExpertConfig("moe/expert_gemm_lane", 8, r, tb)


@dataclass(frozen=True)
class ExpertMatrixTile:
    """How the subgroups of a workgroup share a tile on matrix units; each multiplies its fragments of W by all of x."""

    fragments_of_w: int = 2  # fragments of a subgroup along the rows of W
    fragments_of_x: int = 4
    along_m: int = 4  # number of subgroups along the rows of W
    along_k: int = 1  # number of subgroups along the columns of a step; their sums are added up at the end
    columns: int = 64  # columns of a step
    ahead: int = 1  # steps in flight


def expert_gemm_matrix(fragment: int, subgroup_width: int, tile: ExpertMatrixTile) -> ExpertConfig:
    """Tiles on matrix units; W is decoded once for all choices of an expert, and x is rounded in advance."""
    return ExpertConfig(
        "moe/expert_gemm_matrix",
        wg=subgroup_width * tile.along_m * tile.along_k,
        r=tile.fragments_of_w * fragment * tile.along_m,
        tb=tile.fragments_of_x * fragment,
        subgroup_width=subgroup_width,
        fragment=fragment,
        fragments_of_w=tile.fragments_of_w,
        columns=tile.columns,
        ahead=tile.ahead,
    )


def expert_tile(config: ExpertConfig) -> dict[str, Constant]:
    """Constants of a tiled kernel of experts on matrix units."""
    return {
        **matrix_units(config.fragment, config.subgroup_width),
        "FM": config.fragments_of_w,
        "ALONG_K": config.along_k,
        "COLUMNS": config.columns,
        **({"AHEAD": config.ahead} if config.ahead > 1 else {}),
    }


def expert_tile_bytes(config: ExpertConfig) -> int:
    """Bytes of workgroup memory: a step of W and of x, sums to write out, and the number of fragments of x."""
    steps = 2 * (config.columns + 8) * (config.r + config.tb)
    sums = 4 * config.wg // config.subgroup_width * config.fragments_of_w * config.fragment**2
    return steps + sums + 16
