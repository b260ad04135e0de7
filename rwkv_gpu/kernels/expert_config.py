"""How products with experts are spread over workgroups."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import cast

from ..gpu.device import Capabilities
from ..gpu.shader import Constant
from .gemm_config import MANY, MATRIX_STEP, GemmConfig
from .kernel import KERNELS, Kernel, Tolerance
from .matrix_tiles import matrix_units

STAGED_FLOATS = 2304  # of x in the workgroup memory of expert_gemv, where lanes do not want more
DECODED = 32  # weights of a tile on matrix units that a lane decodes at a time, and all lanes as many


@dataclass(frozen=True)
class ExpertConfig:
    """One way to spread products with experts over workgroups."""

    kernel: str  # the shader: moe/expert_gemv ...
    wg: int  # lanes of a workgroup
    r: int  # rows of an expert's matrices: for a workgroup, or lanes that share them; even, as gate and up take turns
    tb: int  # choices of one expert for a workgroup; with 1 they are taken as they come, with more they are sorted
    lanes_per_row: int = 1  # lanes of expert_gemv and expert_gemv_int that share rows
    subgroup_width: int = 1  # lanes that shuffles can sum over: those of a subgroup, or one
    sum_lanes_per_row: int = (
        0  # lanes that share rows where the products of all choices of a row are summed; 0 is as many
    )
    sum_r: int = 0  # rows that they share there
    fragment: int = 0  # side of the matrices that matrix units multiply, where expert_gemm_matrix has them do it
    fragments_of_w: int = 1  # that a subgroup has there, along its rows
    columns: int = 64  # that expert_gemm_matrix stages at a time
    ahead: int = 1  # steps that are on their way there: several, where it has one fragment of W and one of x
    max_workgroups: int = MANY  # of expert_gemv_int, which then go through several blocks of rows

    @property
    def summing(self) -> "ExpertConfig":
        """The same where the products of all choices of a row are summed: few rows, and long ones."""
        return replace(self, lanes_per_row=self.sum_lanes_per_row or self.lanes_per_row, r=self.sum_r or self.r)

    @property
    def of_floats(self) -> "ExpertConfig":
        """The same where x does not become integers."""
        if self.kernel != "moe/expert_gemv_int":
            return self
        return replace(self, kernel="moe/expert_gemv", max_workgroups=MANY)

    @property
    def entry(self) -> "ExpertKernel":
        """Its kernel, as the registry knows it."""
        return cast(ExpertKernel, KERNELS[self.kernel])

    @property
    def block(self) -> int:
        """Rows of an expert's matrices for a workgroup."""
        return self.entry.block(self)

    def shares(self, tiles: int, blocks: int) -> int:
        """Workgroups for each tile of choices, where rows make so many blocks: as many, or fewer that have several."""
        return max(1, min(blocks, self.max_workgroups // tiles))

    @property
    def norms(self) -> bool:
        """Whether it can norm x on the way: lanes that share rows see all of it."""
        return self.entry.fuses_norm

    @property
    def sums(self) -> bool:
        """Whether the products of one row can be summed where they are computed."""
        return self.norms and self.tb == 1

    @property
    def along_k(self) -> int:
        """Subgroups that share out columns of a step, on matrix units."""
        return self.wg // self.subgroup_width * self.fragments_of_w * self.fragment // self.r

    def within(self, width: int) -> "ExpertConfig":
        """The same for rows of so few columns: on matrix units no more subgroups share them out than have any."""
        if not self.fragment:
            return self
        share = self.columns // self.along_k
        least = max(share, MATRIX_STEP)
        columns = min(self.columns, -(-width // least) * least)
        return replace(self, wg=self.wg // self.along_k * (columns // share), columns=columns)

    def staged(self, run: int, runs: int = 1 << 30) -> int:
        """Runs of a row of x that lie in workgroup memory at a time: all of so many, or as many as have room."""
        room = STAGED_FLOATS // (self.tb * (run + 4))
        return self.lanes_per_row * max(1, min(room, runs + self.lanes_per_row - 1) // self.lanes_per_row)

    @property
    def workgroup_bytes(self) -> int:
        """The memory that a workgroup has in common."""
        return self.entry.workgroup_bytes(self)

    @property
    def constants(self) -> dict[str, Constant]:
        """What the kernel is specialised by."""
        own: dict[str, Constant] = {"LANES_PER_ROW": self.lanes_per_row, "SUBGROUP": self.subgroup_width}
        if self.fragment:
            own = expert_tile(self)
        return {"WG": self.wg, "R": self.r, "TB": self.tb, **(own if self.norms or self.fragment else {})}

    @property
    def gathers_row(self) -> bool:
        """Whether a workgroup may make the row of x that it reads, before it does."""
        return self.kernel == "moe/expert_gemv_int"

    @property
    def parts(self) -> tuple[str, ...]:
        """What it links, whatever it multiplies."""
        return ("lib/lanes/plain", *self.entry.links(self))

    @property
    def tolerance(self) -> Tolerance:
        """How far off products may be, and why."""
        return self.entry.tolerance

    @property
    def tried_at_start(self) -> GemmConfig | None:
        """The product that the self test tries in its place, where drivers may get its kernel wrong."""
        return self.entry.tried_as(self) if self.entry.tried_as else None

    def runs_on(self, can: Capabilities) -> bool:
        """Whether a device has all that it asks for."""
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
    """A kernel of products with experts, with all that follows from its configurations."""

    trials: Callable[[Capabilities], Mapping[str, ExpertConfig]]  # what `doctor` and the tests run
    candidates: Callable[[Capabilities], Iterator[ExpertConfig]]  # what `tune` tries
    block: Callable[[ExpertConfig], int]  # rows of an expert's matrices for a workgroup
    links: Callable[[ExpertConfig], tuple[str, ...]]
    workgroup_bytes: Callable[[ExpertConfig], int] = lambda _: 0
    fuses_norm: bool = False
    tried_as: Callable[[ExpertConfig], GemmConfig] | None = None  # by the self test: a product of the same parts


EXPERT_TILE = ExpertConfig("moe/expert_gemm_tile", wg=128, r=64, tb=32)


def expert_gemv(
    wg: int, lanes_per_row: int, r: int, tb: int, *, subgroup_width: int = 1, summing: tuple[int, int] = (0, 0)
) -> ExpertConfig:
    """Lanes share rows and reduce; `summing` are the lanes and rows where all products of a row are summed."""
    return ExpertConfig("moe/expert_gemv", wg, r, tb, lanes_per_row, subgroup_width, *summing)


def expert_gemv_int(
    wg: int,
    lanes_per_row: int,
    r: int,
    *,
    subgroup_width: int,
    summing: tuple[int, int] = (0, 0),
    max_workgroups: int = MANY,
) -> ExpertConfig:
    """Workgroups stage the x of one choice as integers; `summing` as above."""
    return ExpertConfig(
        "moe/expert_gemv_int", wg, r, 1, lanes_per_row, subgroup_width, *summing, max_workgroups=max_workgroups
    )


def expert_gemm_lane(r: int, tb: int) -> ExpertConfig:
    """A lane for a row, on subgroups of 8."""
    return ExpertConfig("moe/expert_gemm_lane", 8, r, tb)


@dataclass(frozen=True)
class ExpertMatrixTile:
    """How subgroups share a tile on matrix units: each has fragments of W and multiplies them by all of x."""

    fragments_of_w: int = 2  # that a subgroup has, along its rows
    fragments_of_x: int = 4
    along_m: int = 4  # subgroups that share out rows of W
    along_k: int = 1  # columns of a step: their sums meet in the end
    columns: int = 64  # of a step
    ahead: int = 1  # steps on their way


def expert_gemm_matrix(fragment: int, subgroup_width: int, tile: ExpertMatrixTile) -> ExpertConfig:
    """Tiles on matrix units, whose W is decoded once for all choices of an expert; x is rounded before."""
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
    """What a kernel of tiles on matrix units is specialised by."""
    return {
        **matrix_units(config.fragment, config.subgroup_width),
        "FM": config.fragments_of_w,
        "ALONG_K": config.along_k,
        "COLUMNS": config.columns,
        **({"AHEAD": config.ahead} if config.ahead > 1 else {}),
    }


def expert_tile_bytes(config: ExpertConfig) -> int:
    """The memory of a workgroup: a step of W and of x, sums on their way out, and the number of fragments of x."""
    steps = 2 * (config.columns + 8) * (config.r + config.tb)
    sums = 4 * config.wg // config.subgroup_width * config.fragments_of_w * config.fragment**2
    return steps + sums + 16
