"""The constants that kernels are specialised by, chosen for a device."""

from dataclasses import dataclass, replace

from .expert_shape import EXPERT_TILE, ExpertShape, expert_vec
from .shader import Constant

PART = 256  # columns that a part of a product has at least
FILL = 600  # workgroups that are enough for the last ones to matter little
MANY = 1 << 30
BYTES = {"int16": 2, "int8": 1}  # of an integer that x becomes


@dataclass(frozen=True)
class LinearShape:
    """One way to spread a matrix product over workgroups."""

    kernel: str  # linear_vec, linear_row, linear_once, linear_few, linear_lane, linear_tile, linear_dot, linear_coop
    wg: int  # lanes of a workgroup
    r: int  # rows of W: for a workgroup; of linear_vec for a group of its lanes, of linear_lane for a lane
    tb: int  # rows of x for a workgroup
    lanes: str = "plain"  # the part that reduces over a workgroup, where the kernel wants one
    side: int = 1  # lanes of linear_vec, linear_row and linear_few that share a row of W, of tiles along the rows of W
    ahead: int = 1  # chunks of a row at a time, for a lane, or a workgroup of linear_dot; of linear_row see `row`
    reach: int = 1  # lanes that shuffles can sum over: those of a subgroup, or one
    tile: str = "f32"  # what linear_tile keeps in workgroup memory: f16 halves it, and rounds
    gap: int = 0  # between its columns, where there is room for one
    fill: int = 0  # workgroups that tiles want: columns are cut into parts until there are as many
    most: int = MANY  # workgroups of linear_row and linear_few
    x: str = "f32"  # what linear_row, linear_few and linear_dot make of x where W is packed: int16 or int8
    staged: int = 0  # chunks of 32 columns of x that linear_few stages at a time; with none, x is rounded before
    copies: bool = False  # whether linear_few stages what is integers already

    @property
    def norms(self) -> bool:
        """Whether it can norm x on the way: each workgroup sees whole rows of it."""
        return self.kernel in ("linear_vec", "linear_row", "linear_once", "linear_few", "linear_lane", "linear_dot")

    @property
    def rounds(self) -> bool:
        """Whether x is made integers of before it."""
        given = self.kernel == "linear_few" and (self.copies or not self.staged)
        return given or self.kernel == "linear_dot"

    @property
    def integers(self) -> bool:
        """Whether it multiplies nothing else."""
        return self.kernel in ("linear_few", "linear_dot")

    @property
    def block(self) -> int:
        """Rows of W for a workgroup."""
        groups = {"linear_lane": self.wg} | dict.fromkeys(
            ("linear_vec", "linear_row", "linear_once", "linear_few"), self.wg // self.side
        )
        return self.r * groups.get(self.kernel, 1)

    @property
    def by_row(self) -> "LinearShape":
        """That of linear_row for what linear_once does not multiply: the lanes of a row are of one subgroup."""
        return replace(self, kernel="linear_row", side=min(self.side, self.reach), ahead=1)

    def cuts(self, groups: int, width: int) -> int:
        """How many parts columns are cut into, where workgroups for whole columns are so many."""
        return max(1, min(-(-self.fill // groups), width // PART))

    @property
    def constants(self) -> dict[str, Constant]:
        """What the kernel is specialised by."""
        own: dict[str, dict[str, Constant]] = {
            "linear_vec": {"SIDE": self.side, "AHEAD": self.ahead, "SUBGROUP": self.reach},
            "linear_tile": {"SIDE": self.side, "GAP": self.gap, "Tile": self.tile},
            "linear_row": {"SIDE": self.side, "SUBGROUP": self.reach},
            "linear_once": {"SIDE": self.side, "AHEAD": self.ahead, "SUBGROUP": self.reach},
            "linear_few": {
                "SIDE": self.side,
                "SUBGROUP": self.reach,
                "BYTES": BYTES.get(self.x, 1),
                "AHEAD": self.ahead,
            },
            "linear_lane": {"SUBGROUP": self.wg},
            "linear_dot": {"SIDE": self.side, "AHEAD": self.ahead, "BYTES": BYTES.get(self.x, 1)},
        }
        return {"WG": self.wg, "R": self.r, "TB": self.tb, **own.get(self.kernel, {})}

    @property
    def workgroup_bytes(self) -> int:
        """The memory that a workgroup has in common."""
        floats = 2 if self.tile == "f16" else 4
        columns = self.r + self.tb + 8 * self.gap
        staged = 36 * self.side * self.ahead * self.tb
        partial = self.wg // min(self.side, self.reach) * self.r * self.tb + self.wg // self.reach * self.tb
        chunks = self.staged * (32 * BYTES.get(self.x, 1) + 12) * self.tb
        dotted = (2 + 1) * self.r + (2 * BYTES.get(self.x, 1) + 1) * self.tb
        return {
            "linear_dot": 16 * self.ahead * dotted,
            "linear_vec": 4 * (staged + partial),
            "linear_row": 4 * (self.wg // self.reach),
            "linear_once": 4 * (self.wg // self.reach * (1 + self.r)),
            "linear_few": chunks + 4 * (self.wg // self.reach) * self.tb,
            "linear_tile": 32 * columns * floats,
            "linear_coop": (27 << 10),
        }.get(self.kernel, 4 * self.wg)

    @property
    def parts(self) -> tuple[str, ...]:
        """What it links, whatever it multiplies."""
        reach = "reach/subgroup" if self.reach > 1 else "reach/lane"
        rounding = "few/staged", "few/shared", "staged/rounded", "reach/squares"
        kept = ("few/copied", "few/integers", "few/shared") if self.copies else rounding
        staging = kept if self.staged else ("few/given", "few/integers")
        own = {
            "linear_vec": (reach, "reach/meet", "reach/squares"),
            "linear_row": (reach, "reach/squares"),
            "linear_once": (reach, "reach/squares"),
            "linear_few": (reach, "staged/bytes", "staged/dot16", *staging),
            "linear_dot": ("staged/dot16",),
            "linear_lane": ("lanes/spread", "reach/subgroup"),
        }
        return (f"lanes/{self.lanes}", *own.get(self.kernel, ()))


def expert_ladder(
    wg: int, side: int, reach: int, summing: tuple[int, int] = (0, 0)
) -> tuple[tuple[float, ExpertShape], ...]:
    """Choices as they come, then a few to a tile, then tiles of decoded weights."""
    few = [
        (bound, expert_vec(wg, side, 4, tb, reach=reach, summing=summing)) for bound, tb in ((1.5, 1), (3, 2), (6, 4))
    ]
    return (*few, (MANY, EXPERT_TILE))


@dataclass(frozen=True)
class Size:
    """Products of up to so many rows of x with so many rows and columns of W."""

    rows: int
    out: int = MANY
    width: int = MANY
    packed: bool = False  # whether only of formats of small integers
    run: int = 0  # that so many weights at least share a scale


@dataclass(frozen=True)
class Tuning:
    """How work is spread over lanes. Every choice gives the same answer; some are faster."""

    row_lanes: int  # lanes that share one row of a norm, a softmax
    map_lanes: int  # lanes of a workgroup that maps element by element
    reduce: str  # the part that sums over lanes: workgroup, subgroup, one_subgroup
    linear: tuple[tuple[int, LinearShape], ...]  # up to so many rows, this shape; ascending
    linear_short: tuple[tuple[int, LinearShape], ...] = ()  # the same for formats whose runs are of 16 weights
    experts: tuple[tuple[float, ExpertShape], ...] = expert_ladder(64, 16, 1, (64, 4))  # up to so many choices of each
    experts_short: tuple[
        tuple[float, ExpertShape], ...
    ] = ()  # as linear_short; of equal tb, so that one sort serves all
    attend_lanes: int = 64  # of a workgroup that attends
    attend_run: int = 256  # positions that it sees at least, in decode
    attend_groups: int = 4096  # workgroups that decode is cut into at most, for so many keep any device busy
    one_side: int = 0  # lanes that share a key in decode, within a subgroup; with none, each lane has keys of its own
    one_lanes: int = 128  # of a workgroup of such lanes
    one_ahead: int = 2  # keys that such a lane loads at a time
    one_joins: bool = (
        False  # whether the last workgroup joins the runs, where the device allows it, or another dispatch
    )
    mixes_ahead: bool = False  # whether products of few rows norm, shift and mix x themselves, or another dispatch
    mixes_rows: int = 1  # rows of a step, each of a sequence of its own, up to which they may
    head_side: int = 0  # lanes that share a row of an RWKV state in decode; with none, it is as in prompts
    head_rows: int = 1  # rows that such lanes share, at least
    late_rows: int = 0  # rows of a step up to which they compute the second halves of LoRAs, too
    ranks_late: bool = False  # whether products of each choice rank experts themselves, or another dispatch
    beside_rows: int = 0  # rows of a step up to which products of several formats share a dispatch
    # what is better for smaller matrices: the first that fits
    linear_sized: tuple[tuple[Size, LinearShape], ...] = ()
    linear_packed: tuple[tuple[int, LinearShape], ...] = ()  # else for formats of small integers, as far as it goes

    def linear_shape(
        self,
        rows: int,
        run: int = 32,
        out: int = MANY,
        width: int = MANY,
        packed: bool = False,
        rounded: bool = False,
    ) -> LinearShape:
        """The shape for a plan of so many rows and matrices of a size; beyond the last bound, the last.

        Where x can be staged whole, it is copied only if what writes it may write integers: `rounded`.
        """
        for size, shape in self.linear_sized:
            format_fits = packed >= size.packed and run >= size.run
            able = rounded or not shape.copies or width > 32 * shape.staged
            if rows <= size.rows and out <= size.out and width <= size.width and format_fits and able:
                return shape
        for bound, shape in self.linear_packed if packed else ():
            if rows <= bound:
                return shape
        ladder = self.linear_short if run < 32 and self.linear_short else self.linear
        return next((shape for bound, shape in ladder if rows <= bound), ladder[-1][1])

    def only(self, shape: LinearShape) -> "Tuning":
        """The same with one shape for all products."""
        return replace(self, linear=((MANY, shape),), linear_short=(), linear_packed=(), linear_sized=())

    def beside(self, lead: LinearShape, own: LinearShape, packed: bool) -> LinearShape:
        """The shape of less work that shares a dispatch with that of `lead`: workgroups of as many lanes."""
        if own.wg == lead.wg or lead.wg % own.reach:
            return own
        if packed and lead.kernel in ("linear_row", "linear_once"):
            return replace(lead.by_row, r=1)  # few rows: for more workgroups
        if own.kernel == "linear_vec":  # about as many rows for a workgroup as before
            side = max(1, own.side * lead.wg // (own.wg * own.r))
            return replace(own, wg=lead.wg, side=1 << (side.bit_length() - 1), r=1)
        return replace(own, wg=lead.wg) if own.kernel in ("linear_row", "linear_few") and lead.wg >= own.side else own

    def expert_shape(self, choices: float, run: int = 32, integers: bool = False) -> ExpertShape:
        """The shape for so many choices for each expert, on average; `integers` where x may become such."""
        ladder = self.experts_short if run < 32 and self.experts_short else self.experts
        able = (shape for bound, shape in ladder if choices <= bound and (integers or shape.kernel != "experts_row"))
        shape = next(able, ladder[-1][1])
        return shape if integers else shape.of_floats


TILE = LinearShape("linear_tile", wg=64, r=64, tb=64, side=8)
WIDE_TILE = LinearShape("linear_tile", wg=256, r=128, tb=128, side=16, gap=1)
COOP = LinearShape("linear_coop", wg=128, r=64, tb=64)  # matrix units; only after `self_test`
TILE_F16 = replace(TILE, tile="f16")


def vec(wg: int, side: int, r: int, tb: int, *, ahead: int = 1, reach: int = 1) -> LinearShape:
    """Lanes share rows and reduce."""
    return LinearShape("linear_vec", wg, r, tb, side=side, ahead=ahead, reach=reach)


def row(
    wg: int, side: int, r: int, *, reach: int, most: int, ahead: int = 1, crews: int = 1, x: str = "int16"
) -> LinearShape:
    """Workgroups stage x once, and each goes through many rows.

    With chunks ahead, linear_once multiplies where each has but one block of rows; then a row may have several crews of
    such lanes.
    """
    side = min(side, reach) * crews
    return LinearShape("linear_row", wg, r, 1, side=side, ahead=ahead, reach=reach, most=most, x=x)


def few(
    wg: int,
    side: int,
    r: int,
    tb: int,
    *,
    staged: int = 0,
    ahead: int = 1,
    reach: int,
    most: int = MANY,
    x: str = "int16",
    copies: bool = False,
) -> LinearShape:
    """Workgroups stage some rows of x for many rows of W; where they copy it, or stage nothing, x is rounded before."""
    side = min(side, reach)
    return LinearShape(
        "linear_few", wg, r, tb, side=side, ahead=ahead, reach=reach, most=most, x=x, staged=staged, copies=copies
    )


def dot(wg: int, side: int, r: int, tb: int, *, x: str, ahead: int = 2, fill: int = 0) -> LinearShape:
    """Tiles of integers, x rounded once for all workgroups."""
    return LinearShape("linear_dot", wg, r, tb, side=side, ahead=ahead, fill=fill, x=x)


DOT = dot(128, 16, 128, 64, x="int16", fill=2 * FILL)


def lane(r: int, tb: int) -> LinearShape:
    """A lane for a row, on subgroups of 8."""
    return LinearShape("linear_lane", 8, r, tb, lanes="one_subgroup")
