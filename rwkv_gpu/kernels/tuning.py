"""The constants that kernels are specialised by, chosen for a device."""

from dataclasses import dataclass, replace

from ..gpu.shader import Constant
from .expert_config import EXPERT_TILE, ExpertConfig, expert_gemv

PART = 256  # columns that a part of a product has at least
FILL = 600  # workgroups that are enough for the last ones to matter little
MANY = 1 << 30
BYTES = {"int16": 2, "int8": 1}  # of an integer that x becomes


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
    activations: str = "f32"  # what the kernel quantises x to where W is packed: int16 or int8
    staged: int = 0  # chunks of 32 columns of x that skinny_gemm stages at a time; with none, it reads quantised rows
    copies: bool = False  # whether skinny_gemm stages rows that are quantised already

    @property
    def norms(self) -> bool:
        """Whether it can norm x on the way: each workgroup sees whole rows of it."""
        return self.kernel in (
            "linear/gemv",
            "linear/gemv_int",
            "linear/gemv_single_pass",
            "linear/skinny_gemm",
            "linear/gemm_lane",
            "linear/gemm_int8",
        )

    @property
    def reads_quantised(self) -> bool:
        """Whether x is made integers of before it."""
        given = self.kernel == "linear/skinny_gemm" and (self.copies or not self.staged)
        return given or self.kernel == "linear/gemm_int8"

    @property
    def integers(self) -> bool:
        """Whether it multiplies nothing else."""
        return self.kernel in ("linear/skinny_gemm", "linear/gemm_int8")

    @property
    def block(self) -> int:
        """Rows of W for a workgroup."""
        groups = {"linear/gemm_lane": self.wg} | dict.fromkeys(
            ("linear/gemv", "linear/gemv_int", "linear/gemv_single_pass", "linear/skinny_gemm"),
            self.wg // self.lanes_per_row,
        )
        return self.r * groups.get(self.kernel, 1)

    @property
    def multi_pass(self) -> "GemmConfig":
        """That of linear_row for what linear_once does not multiply: the lanes of a row are of one subgroup."""
        return replace(
            self, kernel="linear/gemv_int", lanes_per_row=min(self.lanes_per_row, self.subgroup_width), prefetch_depth=1
        )

    def cuts(self, groups: int, width: int) -> int:
        """How many parts columns are cut into, where workgroups for whole columns are so many."""
        return max(1, min(-(-self.fill // groups), width // PART))

    @property
    def constants(self) -> dict[str, Constant]:
        """What the kernel is specialised by."""
        own: dict[str, dict[str, Constant]] = {
            "linear/gemv": {
                "LANES_PER_ROW": self.lanes_per_row,
                "PREFETCH": self.prefetch_depth,
                "SUBGROUP": self.subgroup_width,
            },
            "linear/gemm_tile": {"LANES_ALONG_M": self.lanes_per_row, "GAP": self.gap, "Tile": self.tile},
            "linear/gemv_int": {"LANES_PER_ROW": self.lanes_per_row, "SUBGROUP": self.subgroup_width},
            "linear/gemv_single_pass": {
                "LANES_PER_ROW": self.lanes_per_row,
                "PREFETCH": self.prefetch_depth,
                "SUBGROUP": self.subgroup_width,
            },
            "linear/skinny_gemm": {
                "LANES_PER_ROW": self.lanes_per_row,
                "SUBGROUP": self.subgroup_width,
                "BYTES": BYTES.get(self.activations, 1),
                "PREFETCH": self.prefetch_depth,
            },
            "linear/gemm_lane": {"SUBGROUP": self.wg},
            "linear/gemm_int8": {
                "LANES_ALONG_M": self.lanes_per_row,
                "PREFETCH": self.prefetch_depth,
                "BYTES": BYTES.get(self.activations, 1),
            },
        }
        return {"WG": self.wg, "R": self.r, "TB": self.tb, **own.get(self.kernel, {})}

    @property
    def workgroup_bytes(self) -> int:
        """The memory that a workgroup has in common."""
        floats = 2 if self.tile == "f16" else 4
        columns = self.r + self.tb + 8 * self.gap
        staged = 36 * self.lanes_per_row * self.prefetch_depth * self.tb
        partial = (
            self.wg // min(self.lanes_per_row, self.subgroup_width) * self.r * self.tb
            + self.wg // self.subgroup_width * self.tb
        )
        chunks = self.staged * (32 * BYTES.get(self.activations, 1) + 12) * self.tb
        dotted = (2 + 1) * self.r + (2 * BYTES.get(self.activations, 1) + 1) * self.tb
        return {
            "linear/gemm_int8": 16 * self.prefetch_depth * dotted,
            "linear/gemv": 4 * (staged + partial),
            "linear/gemv_int": 4 * (self.wg // self.subgroup_width),
            "linear/gemv_single_pass": 4 * (self.wg // self.subgroup_width * (1 + self.r)),
            "linear/skinny_gemm": chunks + 4 * (self.wg // self.subgroup_width) * self.tb,
            "linear/gemm_tile": 32 * columns * floats,
            "linear/gemm_coop": (27 << 10),
        }.get(self.kernel, 4 * self.wg)

    @property
    def parts(self) -> tuple[str, ...]:
        """What it links, whatever it multiplies."""
        subgroup_width = "lib/sum/subgroup" if self.subgroup_width > 1 else "lib/sum/single_lane"
        rounding = "linear/skinny/quantise_x", "linear/skinny/shared_x", "lib/quantise", "lib/sum/squares"
        kept = (
            ("linear/skinny/copy_x", "linear/skinny/quantised_x", "linear/skinny/shared_x") if self.copies else rounding
        )
        staging = kept if self.staged else ("linear/skinny/read_x", "linear/skinny/quantised_x")
        own = {
            "linear/gemv": (subgroup_width, "lib/sum/across_subgroups", "lib/sum/squares"),
            "linear/gemv_int": (subgroup_width, "lib/sum/squares"),
            "linear/gemv_single_pass": (subgroup_width, "lib/sum/squares"),
            "linear/skinny_gemm": (subgroup_width, "linear/staging/integer_products", "lib/dot16", *staging),
            "linear/gemm_int8": ("lib/dot16",),
            "linear/gemm_lane": ("lib/lanes/broadcast", "lib/sum/subgroup"),
        }
        return (f"lib/lanes/{self.lanes}", *own.get(self.kernel, ()))


def expert_ladder(
    wg: int, lanes_per_row: int, subgroup_width: int, summing: tuple[int, int] = (0, 0)
) -> tuple[tuple[float, ExpertConfig], ...]:
    """Choices as they come, then a few to a tile, then tiles of decoded weights."""
    few = [
        (bound, expert_gemv(wg, lanes_per_row, 4, tb, subgroup_width=subgroup_width, summing=summing))
        for bound, tb in ((1.5, 1), (3, 2), (6, 4))
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
    linear: tuple[tuple[int, GemmConfig], ...]  # up to so many rows, this shape; ascending
    linear_short: tuple[tuple[int, GemmConfig], ...] = ()  # the same for formats whose runs are of 16 weights
    experts: tuple[tuple[float, ExpertConfig], ...] = expert_ladder(64, 16, 1, (64, 4))  # up to so many choices of each
    experts_short: tuple[
        tuple[float, ExpertConfig], ...
    ] = ()  # as linear_short; of equal tb, so that one sort serves all
    attention_lanes: int = 64  # of a workgroup that attends
    attention_run: int = 256  # positions that it sees at least, in decode
    attention_groups: int = 4096  # workgroups that decode is cut into at most, for so many keep any device busy
    decode_lanes_per_key: int = (
        0  # lanes that share a key in decode, within a subgroup; with none, each lane has keys of its own
    )
    decode_lanes: int = 128  # of a workgroup of such lanes
    decode_prefetch: int = 2  # keys that such a lane loads at a time
    last_workgroup_joins: bool = (
        False  # whether the last workgroup joins the runs, where the device allows it, or another dispatch
    )
    fuses_token_shift: bool = (
        False  # whether products of few rows norm, shift and mix x themselves, or another dispatch
    )
    token_shift_rows: int = 1  # rows of a step, each of a sequence of its own, up to which they may
    state_lanes_per_row: int = 0  # lanes that share a row of an RWKV state in decode; with none, it is as in prompts
    state_rows_per_lane: int = 1  # rows that such lanes share, at least
    lora_fusion_rows: int = 0  # rows of a step up to which they compute the second halves of LoRAs, too
    fuses_routing: bool = False  # whether products of each choice rank experts themselves, or another dispatch
    merged_rows: int = 0  # rows of a step up to which products of several formats share a dispatch
    # what is better for smaller matrices: the first that fits
    linear_sized: tuple[tuple[Size, GemmConfig], ...] = ()
    linear_packed: tuple[tuple[int, GemmConfig], ...] = ()  # else for formats of small integers, as far as it goes

    def gemm_config(
        self,
        rows: int,
        run: int = 32,
        out: int = MANY,
        width: int = MANY,
        packed: bool = False,
        rounded: bool = False,
    ) -> GemmConfig:
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

    def only(self, shape: GemmConfig) -> "Tuning":
        """The same with one shape for all products."""
        return replace(self, linear=((MANY, shape),), linear_short=(), linear_packed=(), linear_sized=())

    def merged(self, lead: GemmConfig, own: GemmConfig, packed: bool) -> GemmConfig:
        """The shape of less work that shares a dispatch with that of `lead`: workgroups of as many lanes."""
        if own.wg == lead.wg or lead.wg % own.subgroup_width:
            return own
        if packed and lead.kernel in ("linear/gemv_int", "linear/gemv_single_pass"):
            return replace(lead.multi_pass, r=1)  # few rows: for more workgroups
        if own.kernel == "linear/gemv":  # about as many rows for a workgroup as before
            lanes_per_row = max(1, own.lanes_per_row * lead.wg // (own.wg * own.r))
            return replace(own, wg=lead.wg, lanes_per_row=1 << (lanes_per_row.bit_length() - 1), r=1)
        return (
            replace(own, wg=lead.wg)
            if own.kernel in ("linear/gemv_int", "linear/skinny_gemm") and lead.wg >= own.lanes_per_row
            else own
        )

    def expert_config(self, choices: float, run: int = 32, integers: bool = False) -> ExpertConfig:
        """The shape for so many choices for each expert, on average; `integers` where x may become such."""
        ladder = self.experts_short if run < 32 and self.experts_short else self.experts
        able = (
            shape for bound, shape in ladder if choices <= bound and (integers or shape.kernel != "moe/expert_gemv_int")
        )
        shape = next(able, ladder[-1][1])
        return shape if integers else shape.of_floats


TILE = GemmConfig("linear/gemm_tile", wg=64, r=64, tb=64, lanes_per_row=8)
WIDE_TILE = GemmConfig("linear/gemm_tile", wg=256, r=128, tb=128, lanes_per_row=16, gap=1)
COOP = GemmConfig("linear/gemm_coop", wg=128, r=64, tb=64)  # matrix units; only after `self_test`
TILE_F16 = replace(TILE, tile="f16")


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

    With chunks ahead, linear_once multiplies where each has but one block of rows; then a row may have several crews of
    such lanes.
    """
    lanes_per_row = min(lanes_per_row, subgroup_width) * subgroups_per_row
    return GemmConfig(
        "linear/gemv_int",
        wg,
        r,
        1,
        lanes_per_row=lanes_per_row,
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
    """Workgroups stage some rows of x for many rows of W; where they copy it, or stage nothing, x is rounded before."""
    lanes_per_row = min(lanes_per_row, subgroup_width)
    return GemmConfig(
        "linear/skinny_gemm",
        wg,
        r,
        tb,
        lanes_per_row=lanes_per_row,
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
    """Tiles of integers, x rounded once for all workgroups."""
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


DOT = gemm_int8(128, 16, 128, 64, activations="int16", fill=2 * FILL)


def gemm_lane(r: int, tb: int) -> GemmConfig:
    """A lane for a row, on subgroups of 8."""
    return GemmConfig("linear/gemm_lane", 8, r, tb, lanes="one_subgroup")
