"""How products with experts are spread over workgroups."""

from dataclasses import dataclass, replace

from .shader import Constant

STAGED_FLOATS = 2304  # of x in the workgroup memory of experts_vec, where lanes do not want more


@dataclass(frozen=True)
class ExpertShape:
    """One way to spread products with experts over workgroups."""

    kernel: str  # experts_vec, experts_row, experts_lane, experts_tile
    wg: int  # lanes of a workgroup
    r: int  # rows of an expert's matrices: for a workgroup, or lanes that share them; even, as gate and up take turns
    tb: int  # choices of one expert for a workgroup; with 1 they are taken as they come, with more they are sorted
    side: int = 1  # lanes of experts_vec and experts_row that share rows
    reach: int = 1  # lanes that shuffles can sum over: those of a subgroup, or one
    sum_side: int = 0  # lanes that share rows where the products of all choices of a row are summed; 0 is as many
    sum_r: int = 0  # rows that they share there

    @property
    def summing(self) -> "ExpertShape":
        """The same where the products of all choices of a row are summed: few rows, and long ones."""
        return replace(self, side=self.sum_side or self.side, r=self.sum_r or self.r)

    @property
    def of_floats(self) -> "ExpertShape":
        """The same where x does not become integers."""
        return replace(self, kernel="experts_vec") if self.kernel == "experts_row" else self

    @property
    def block(self) -> int:
        """Rows of an expert's matrices for a workgroup."""
        groups = {"experts_vec": self.wg // self.side, "experts_row": self.wg // self.side, "experts_lane": self.wg}
        return self.r * groups.get(self.kernel, 1)

    @property
    def norms(self) -> bool:
        """Whether it can norm x on the way: lanes that share rows see all of it."""
        return self.kernel in ("experts_vec", "experts_row")

    @property
    def sums(self) -> bool:
        """Whether the products of one row can be summed where they are computed."""
        return self.norms and self.tb == 1

    def staged(self, run: int, runs: int = 1 << 30) -> int:
        """Runs of a row of x that lie in workgroup memory at a time: all of so many, or as many as have room."""
        room = STAGED_FLOATS // (self.tb * (run + 4))
        return self.side * max(1, min(room, runs + self.side - 1) // self.side)

    @property
    def workgroup_bytes(self) -> int:
        """The memory that a workgroup has in common."""
        if self.kernel != "experts_vec":
            return 32 * (self.r + self.tb) * 4 if self.kernel == "experts_tile" else 0
        most = 0
        for shape in (self, self.summing) if self.sums else (self,):
            staged = max(shape.tb * shape.staged(run) * (run + 4) for run in (16, 32))
            sums = shape.wg // min(shape.side, shape.reach) * shape.r * shape.tb + shape.wg // shape.reach * shape.tb
            most = max(most, 4 * (staged + sums))
        return most

    @property
    def constants(self) -> dict[str, Constant]:
        """What the kernel is specialised by."""
        own: dict[str, Constant] = {"SIDE": self.side, "SUBGROUP": self.reach}
        return {"WG": self.wg, "R": self.r, "TB": self.tb, **(own if self.norms else {})}

    @property
    def parts(self) -> tuple[str, ...]:
        """What it links, whatever it multiplies."""
        reach = "reach/subgroup" if self.reach > 1 else "reach/lane"
        own = {
            "experts_vec": ("experts/stage", "reach/meet", "reach/squares", reach),
            "experts_row": ("reach/squares", reach),
            "experts_lane": ("lanes/spread",),
        }
        return ("lanes/plain", *own.get(self.kernel, ()))


EXPERT_TILE = ExpertShape("experts_tile", wg=128, r=64, tb=32)


def expert_vec(
    wg: int, side: int, r: int, tb: int, *, reach: int = 1, summing: tuple[int, int] = (0, 0)
) -> ExpertShape:
    """Lanes share rows and reduce; `summing` are the lanes and rows where all products of a row are summed."""
    return ExpertShape("experts_vec", wg, r, tb, side, reach, *summing)


def expert_row(wg: int, side: int, r: int, *, reach: int, summing: tuple[int, int] = (0, 0)) -> ExpertShape:
    """Workgroups stage the x of one choice as integers; `summing` as above."""
    return ExpertShape("experts_row", wg, r, 1, side, reach, *summing)


def expert_lane(r: int, tb: int) -> ExpertShape:
    """A lane for a row, on subgroups of 8."""
    return ExpertShape("experts_lane", 8, r, tb)
