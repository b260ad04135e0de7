"""How products with experts are spread over workgroups."""

from dataclasses import dataclass, replace

from ..gpu.shader import Constant

STAGED_FLOATS = 2304  # of x in the workgroup memory of experts_vec, where lanes do not want more


@dataclass(frozen=True)
class ExpertConfig:
    """One way to spread products with experts over workgroups."""

    kernel: str  # experts_vec, experts_row, experts_lane, experts_tile
    wg: int  # lanes of a workgroup
    r: int  # rows of an expert's matrices: for a workgroup, or lanes that share them; even, as gate and up take turns
    tb: int  # choices of one expert for a workgroup; with 1 they are taken as they come, with more they are sorted
    lanes_per_row: int = 1  # lanes of experts_vec and experts_row that share rows
    subgroup_width: int = 1  # lanes that shuffles can sum over: those of a subgroup, or one
    sum_lanes_per_row: int = (
        0  # lanes that share rows where the products of all choices of a row are summed; 0 is as many
    )
    sum_r: int = 0  # rows that they share there

    @property
    def summing(self) -> "ExpertConfig":
        """The same where the products of all choices of a row are summed: few rows, and long ones."""
        return replace(self, lanes_per_row=self.sum_lanes_per_row or self.lanes_per_row, r=self.sum_r or self.r)

    @property
    def of_floats(self) -> "ExpertConfig":
        """The same where x does not become integers."""
        return replace(self, kernel="moe/expert_gemv") if self.kernel == "moe/expert_gemv_int" else self

    @property
    def block(self) -> int:
        """Rows of an expert's matrices for a workgroup."""
        groups = {
            "moe/expert_gemv": self.wg // self.lanes_per_row,
            "moe/expert_gemv_int": self.wg // self.lanes_per_row,
            "moe/expert_gemm_lane": self.wg,
        }
        return self.r * groups.get(self.kernel, 1)

    @property
    def norms(self) -> bool:
        """Whether it can norm x on the way: lanes that share rows see all of it."""
        return self.kernel in ("moe/expert_gemv", "moe/expert_gemv_int")

    @property
    def sums(self) -> bool:
        """Whether the products of one row can be summed where they are computed."""
        return self.norms and self.tb == 1

    def staged(self, run: int, runs: int = 1 << 30) -> int:
        """Runs of a row of x that lie in workgroup memory at a time: all of so many, or as many as have room."""
        room = STAGED_FLOATS // (self.tb * (run + 4))
        return self.lanes_per_row * max(1, min(room, runs + self.lanes_per_row - 1) // self.lanes_per_row)

    @property
    def workgroup_bytes(self) -> int:
        """The memory that a workgroup has in common."""
        if self.kernel != "moe/expert_gemv":
            return 32 * (self.r + self.tb) * 4 if self.kernel == "moe/expert_gemm_tile" else 0
        most = 0
        for shape in (self, self.summing) if self.sums else (self,):
            staged = max(shape.tb * shape.staged(run) * (run + 4) for run in (16, 32))
            sums = (
                shape.wg // min(shape.lanes_per_row, shape.subgroup_width) * shape.r * shape.tb
                + shape.wg // shape.subgroup_width * shape.tb
            )
            most = max(most, 4 * (staged + sums))
        return most

    @property
    def constants(self) -> dict[str, Constant]:
        """What the kernel is specialised by."""
        own: dict[str, Constant] = {"LANES_PER_ROW": self.lanes_per_row, "SUBGROUP": self.subgroup_width}
        return {"WG": self.wg, "R": self.r, "TB": self.tb, **(own if self.norms else {})}

    @property
    def parts(self) -> tuple[str, ...]:
        """What it links, whatever it multiplies."""
        subgroup_width = "lib/sum/subgroup" if self.subgroup_width > 1 else "lib/sum/single_lane"
        own = {
            "moe/expert_gemv": ("moe/stage", "lib/sum/across_subgroups", "lib/sum/squares", subgroup_width),
            "moe/expert_gemv_int": ("lib/sum/squares", subgroup_width),
            "moe/expert_gemm_lane": ("lib/lanes/broadcast",),
        }
        return ("lib/lanes/plain", *own.get(self.kernel, ()))


EXPERT_TILE = ExpertConfig("moe/expert_gemm_tile", wg=128, r=64, tb=32)


def expert_gemv(
    wg: int, lanes_per_row: int, r: int, tb: int, *, subgroup_width: int = 1, summing: tuple[int, int] = (0, 0)
) -> ExpertConfig:
    """Lanes share rows and reduce; `summing` are the lanes and rows where all products of a row are summed."""
    return ExpertConfig("moe/expert_gemv", wg, r, tb, lanes_per_row, subgroup_width, *summing)


def expert_gemv_int(
    wg: int, lanes_per_row: int, r: int, *, subgroup_width: int, summing: tuple[int, int] = (0, 0)
) -> ExpertConfig:
    """Workgroups stage the x of one choice as integers; `summing` as above."""
    return ExpertConfig("moe/expert_gemv_int", wg, r, 1, lanes_per_row, subgroup_width, *summing)


def expert_gemm_lane(r: int, tb: int) -> ExpertConfig:
    """A lane for a row, on subgroups of 8."""
    return ExpertConfig("moe/expert_gemm_lane", 8, r, tb)
