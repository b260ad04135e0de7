"""The constants that kernels are specialised by, chosen for a device."""

from dataclasses import dataclass, replace

from .device import Capabilities
from .shader import Constant


@dataclass(frozen=True)
class LinearShape:
    """One way to spread a matrix product over workgroups."""

    kernel: str  # linear_vec, linear_dot, linear_lane, linear_tile, linear_coop
    lanes: str  # the part that reduces, or plain
    wg: int  # lanes of a workgroup
    r: int  # rows of W: for a workgroup, of linear_lane for a lane
    tb: int  # rows of x for a workgroup
    tile: str = "f32"  # what linear_tile keeps in workgroup memory: f16 halves it, and rounds

    @property
    def norms(self) -> bool:
        """Whether it can norm x on the way: each workgroup sees whole rows of it."""
        return self.kernel in ("linear_vec", "linear_lane")

    @property
    def block(self) -> int:
        """Rows of W for a workgroup."""
        return self.r * self.wg if self.kernel == "linear_lane" else self.r


@dataclass(frozen=True)
class ExpertShape:
    """One way to spread products with experts over workgroups."""

    kernel: str  # experts_vec, experts_lane, experts_tile
    lanes: str  # the part that reduces, or plain
    wg: int  # lanes of a workgroup
    r: int  # rows of an expert's matrices: for a workgroup, of experts_lane for a lane; even, as gate and up take turns
    tb: int  # choices of one expert for a workgroup; with 1 they are taken as they come, with more they are sorted

    @property
    def block(self) -> int:
        """Rows of an expert's matrices for a workgroup."""
        return self.r * self.wg if self.kernel == "experts_lane" else self.r

    @property
    def sums(self) -> bool:
        """Whether the products of one row can be summed where they are computed."""
        return self.kernel == "experts_vec" and self.tb == 1

    @property
    def constants(self) -> dict[str, Constant]:
        """What the kernel is specialised by."""
        return {"WG": self.wg, "R": self.r, "TB": self.tb}


EXPERT_TILE = ExpertShape("experts_tile", "plain", wg=128, r=64, tb=32)
MANY = 1 << 30


def expert_vec(lanes: str, wg: int, r: int, tb: int) -> ExpertShape:
    """Lanes stride over a row and reduce."""
    return ExpertShape("experts_vec", lanes, wg, r, tb)


def expert_lane(r: int, tb: int) -> ExpertShape:
    """A lane for a row, on subgroups of 8."""
    return ExpertShape("experts_lane", "plain", 8, r, tb)


def expert_ladder(lanes: str, wg: int) -> tuple[tuple[float, ExpertShape], ...]:
    """Choices as they come, then a few to a tile, then tiles of decoded weights."""
    few = [(bound, expert_vec(lanes, wg, 4, tb)) for bound, tb in ((1.5, 1), (3, 2), (6, 4))]
    return (*few, (MANY, EXPERT_TILE))


@dataclass(frozen=True)
class Tuning:
    """How work is spread over lanes. Every choice gives the same answer; some are faster."""

    row_lanes: int  # lanes that share one row of a norm, a softmax
    map_lanes: int  # lanes of a workgroup that maps element by element
    reduce: str  # the part that sums over lanes: workgroup, subgroup, one_subgroup
    linear: tuple[tuple[int, LinearShape], ...]  # up to so many rows, this shape; ascending
    linear_short: tuple[tuple[int, LinearShape], ...] = ()  # the same for formats whose runs are of 16 weights
    experts: tuple[tuple[float, ExpertShape], ...] = expert_ladder("workgroup", 64)  # up to so many choices of each
    experts_short: tuple[
        tuple[float, ExpertShape], ...
    ] = ()  # as linear_short; of equal tb, so that one sort serves all
    attend_lanes: int = 64  # of a workgroup that attends

    def linear_shape(self, rows: int, run: int = 32) -> LinearShape:
        """The shape for a plan of so many rows; beyond the last bound, the last."""
        ladder = self.linear_short if run < 32 and self.linear_short else self.linear
        return next((shape for bound, shape in ladder if rows <= bound), ladder[-1][1])

    def expert_shape(self, choices: float, run: int = 32) -> ExpertShape:
        """The shape for so many choices for each expert, on average."""
        ladder = self.experts_short if run < 32 and self.experts_short else self.experts
        return next((shape for bound, shape in ladder if choices <= bound), ladder[-1][1])


TILE = LinearShape("linear_tile", "plain", wg=128, r=64, tb=64)
COOP = LinearShape("linear_coop", "plain", wg=128, r=64, tb=64)  # matrix units; only after `self_test`
TILE_F16 = replace(TILE, tile="f16")


def vec(lanes: str, wg: int, r: int, tb: int) -> LinearShape:
    """Lanes stride over a row and reduce."""
    return LinearShape("linear_vec", lanes, wg, r, tb)


def dot(lanes: str, wg: int, r: int, tb: int) -> LinearShape:
    """As `vec`, with x quantised to bytes: products are integers, and x is rounded."""
    return LinearShape("linear_dot", lanes, wg, r, tb)


def lane(r: int, tb: int) -> LinearShape:
    """A lane for a row, on subgroups of 8."""
    return LinearShape("linear_lane", "one_subgroup", 8, r, tb)


def default_tuning(can: Capabilities) -> Tuning:
    """What to start from on a device that nobody has tuned."""
    if not can.subgroup:
        few = [(tb, vec("workgroup", 64, 4, tb)) for tb in (1, 2, 4, 8)]
        return Tuning(64, 64, "workgroup", (*few, (MANY, TILE)))
    if can.software and can.subgroup_size == 8:  # barriers are slow in software, and so is every load
        ladder = ((1, lane(4, 1)), (2, lane(2, 2)), (4, lane(2, 4)), (8, lane(4, 8)), (MANY, lane(4, 16)))
        # Two short runs to a step fill twice the registers.
        short = ((1, lane(2, 1)), (2, lane(2, 2)), (4, lane(2, 4)), (8, lane(2, 8)), (MANY, lane(2, 16)))
        experts, experts_short = (
            tuple((bound, expert_lane(r, tb)) for bound, tb in ((1.5, 1), (3, 2), (6, 4), (MANY, 8))) for r in (4, 2)
        )
        return Tuning(8, 64, "one_subgroup", ladder, short, experts, experts_short, attend_lanes=16)
    few = [(tb, vec("subgroup", can.subgroup_size, 4, tb)) for tb in (1, 2, 4, 8)]
    experts = expert_ladder("subgroup", can.subgroup_size)
    return Tuning(128, 128, "subgroup", (*few, (MANY, TILE)), experts=experts)
