"""One way to run a matrix product: a kernel of `linear/` and the constants that it is specialised by.

What follows from these constants, such as workgroup memory, differs from kernel to kernel: each says so in its own
entry of the registry, and a configuration asks that.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple, Protocol, cast

from ..gpu.device import Capabilities
from ..gpu.shader import Constant
from ..gpu.weights import Shard
from .kernel import EXACT, Kernel, Tolerance
from .parts import RMS_NORM, VEC4_ROWS

PART = 256  # columns that a part of a product has at least
FILL = 600  # workgroups that are enough for the last ones to matter little
MANY = 1 << 30
SUMS_WITHIN = 32 << 10  # bytes of workgroup memory that a tile on matrix units may have for its sums to leave at once
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
        from .registry import KERNELS  # which lists configurations, and so comes after this class

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


class MatrixConfig(Protocol):
    """What products and products with experts say alike of their tiles on matrix units."""

    @property
    def wg(self) -> int: ...
    @property
    def r(self) -> int: ...
    @property
    def tb(self) -> int: ...
    @property
    def subgroup_width(self) -> int: ...
    @property
    def fragment(self) -> int: ...
    @property
    def fragments_of_w(self) -> int: ...
    @property
    def fragments_of_x(self) -> int: ...
    @property
    def columns(self) -> int: ...
    @property
    def prefetch_depth(self) -> int: ...


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


def fragments_of(rows: int, fragment: int) -> int:
    """How many so high hold as many rows: one, two or fours, as products take them."""
    least = -(-rows // fragment)
    return least if least <= 2 else -(-least // 4) * 4


MOST_PARTS = 8


class Waits(NamedTuple):
    """What takes as long as an H200 decodes and multiplies so many fragments of W by 256 columns, 0.17 us each."""

    stage: float  # each stage, whatever its subgroups do
    x: float  # and each further x of it, where subgroups share out columns
    joining: float = 0  # parts, for each fragment of x
    part: float = 0  # and each part
    fragment: float = 0  # and each fragment of W in a workgroup


def fit_subgroups(config: GemmConfig, matrices: Matrices) -> Fitted:
    """A config of subgroup_gemm for some matrices."""
    rows = [shard.rows for shard in matrices.shards]
    return spread_rows(config, rows, max(matrices.widths), matrices.memory), None


def fit_lines(config: GemmConfig, matrices: Matrices) -> Fitted:
    """A config of line_gemm for some matrices."""
    rows, run = [shard.rows for shard in matrices.shards], matrices.shards[0].run
    return spread_lines(config, rows, max(matrices.widths), run, matrices.memory), None


def spread_rows(config: GemmConfig, rows: Sequence[int], width: int, memory: int) -> GemmConfig:
    """Such a config for matrices of so many rows: each workgroup has as many, so that all have about the same work.

    Where these are few, several subgroups share out the columns of each.
    """
    most = config.wg // config.subgroup_width
    stage = 2 * max(64, 32 * config.subgroup_width // config.fragment)  # columns of a subgroup, in two steps

    def shapes(high: int) -> Iterator[GemmConfig]:
        for along_k in (4, 2, 1):
            lanes = config.subgroup_width * high * along_k
            found = replace(config, wg=lanes, r=high * config.fragment, columns=stage * along_k)
            if high * along_k <= most and found.workgroup_bytes <= memory:
                yield found

    return _spread(config, rows, width, Waits(stage=3.75, x=0.25, part=10), shapes)


def _spread(
    config: GemmConfig,
    rows: Sequence[int],
    width: int,
    waits: Waits,
    shapes: Callable[[int], Iterator[GemmConfig]],
) -> GemmConfig:
    """The best for so many rows; `shapes` are those for so many fragments of W in a workgroup, the best first."""
    blocks = [-(-count // config.fragment) for count in rows]
    found = []
    for parts in (config.joined_parts,) if config.joined_parts else range(1, MOST_PARTS + 1):
        for rounds in range(1, parts * sum(blocks) + 1):
            high = _high(blocks, config.max_workgroups * rounds // parts)
            shape = next(shapes(high), None) if high else None
            if shape is not None:
                found.append((_work(shape, high, width, parts, rounds, waits), parts, shape))
                break
    assert found, f"{config} wants too much memory"
    _, parts, shape = min(found, key=lambda one: one[:2])
    return replace(shape, joined_parts=parts, max_workgroups=MANY)


def _high(blocks: Sequence[int], workgroups: int) -> int:
    """The fewest fragments of W for each of so many workgroups, none of which has some of two matrices; or 0."""
    if workgroups < len(blocks):
        return 0
    high = -(-sum(blocks) // workgroups)
    while sum(-(-count // high) for count in blocks) > workgroups:
        high += 1
    return high


def _work(config: GemmConfig, high: int, width: int, parts: int, rounds: int, waits: Waits) -> float:
    """What a multiprocessor has to do, in the unit of `Waits`, so that ways to share can be compared."""
    along_k = _along_k(config)
    stages = -(-width // (config.columns * parts))
    a_stage = high * config.columns / LINE + waits.stage + waits.x * (along_k - 1)
    joining = waits.joining + waits.part * parts + waits.fragment * high if parts > 1 else 0
    return rounds * (stages * a_stage + joining * config.fragments_of_x)


def subgroup_tile(config: GemmConfig) -> dict[str, Constant]:
    """What subgroup_gemm is specialised by."""
    return {**_by_subgroups(config), "STEP": config.columns // _along_k(config) // 2}


def subgroup_bytes(config: GemmConfig) -> int:
    """The memory of its workgroup: 32 columns of W for each subgroup, a stage of x, sums, with gaps, scales, bounds."""
    of_w = config.wg // config.subgroup_width * config.fragment * 80
    return of_w + config.columns // 64 * config.tb * 144 + _fragment_bytes(config) + _words_bytes(config)


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


LINE = 256  # columns of a row of W that a subgroup has at a time: 128 bytes where weights have four bits
# How the subgroups of a workgroup share up to so many fragments of W, the best first: how many share out columns, how
# many fragments each has, and how many pairs of fours of x are staged at a time, in so many copies.
SHARES = (
    (1, 4, 1, 4, 1),
    (1, 4, 1, 2, 1),
    (2, 2, 1, 4, 2),
    (2, 2, 1, 4, 1),
    (3, 4, 1, 2, 1),
    (5, 2, 1, 4, 1),
    (MANY, 1, 1, 4, 2),
    (MANY, 1, 1, 4, 1),
    (MANY, 1, 2, 4, 1),
    (MANY, 1, 1, 2, 1),
    (MANY, 1, 1, 1, 1),
)
MOST_EIGHTS = 16  # vec4s of x of a lane: with more, registers spill


def spread_lines(config: GemmConfig, rows: Sequence[int], width: int, run: int, memory: int) -> GemmConfig:
    """Such a config for matrices of so many rows: each workgroup has as many, so that all have about the same work.

    Two fragments of W want many registers, above all in short runs, and gain where they share several of x.
    """
    most_own = 2 if config.fragments_of_x == 2 and run >= 32 else 1
    most = config.wg // config.subgroup_width

    def shapes(high: int) -> Iterator[GemmConfig]:
        for highest, along_k, own, pairs, copies in SHARES:
            subgroups = high // own * along_k
            found = replace(
                config,
                wg=config.subgroup_width * subgroups,
                r=high * config.fragment,
                fragments_of_w=own,
                columns=LINE * along_k,
                pairs=pairs,
                prefetch_depth=copies,
            )
            eights = along_k * 8 * pairs * config.tb  # of x, that all lanes have on their way
            fits = high <= highest and high % own == 0 and own <= most_own and subgroups <= most
            if fits and eights <= MOST_EIGHTS * found.wg and found.workgroup_bytes <= memory:
                yield found

    return _spread(config, rows, width, Waits(stage=1, x=0.9, joining=3, fragment=1), shapes)


def line_tile(config: GemmConfig) -> dict[str, Constant]:
    """What line_gemm is specialised by."""
    return {**_by_subgroups(config), "PAIRS": config.pairs, "COPIES": config.prefetch_depth}


def _by_subgroups(config: GemmConfig) -> dict[str, Constant]:
    """The same of both kernels whose subgroups have rows of W of their own."""
    return {
        **matrix_units(config.fragment, config.subgroup_width),
        "FM": config.fragments_of_w,
        "FT": config.fragments_of_x,
        "ALONG_K": _along_k(config),
        "STAGE": config.columns,
        "PARTS": config.joined_parts,
        "AT_ONCE": 1,
    }


def line_bytes(config: GemmConfig) -> int:
    """The memory of its workgroup: 32 columns of W, a unit of x and sums, with gaps, scales, whether it is needed."""
    of_w = config.r * _along_k(config) * 80
    of_x = config.columns // LINE * config.pairs * config.prefetch_depth * (config.tb * 144 + 16)
    return of_w + of_x + _fragment_bytes(config) + _words_bytes(config)


def _words_bytes(config: GemmConfig) -> int:
    """Of scales of x, of whether a workgroup is needed, and of whether it is the last of those that have parts."""
    return 4 * config.tb + (16 if config.joined_parts == 1 else 32)


def matrix_units(fragment: int, subgroup_width: int) -> dict[str, Constant]:
    """What a kernel on matrix units is specialised by: fragments as types, and the lanes that have one together."""
    side = f"coop_mat{fragment}x{fragment}"
    types = {"Sums": f"{side}<f32, C>", "Left": f"{side}<f16, A>", "Right": f"{side}<f16, B>"}
    return {"S": fragment, "SUBGROUP": subgroup_width, **types}


def matrix_tile(config: "MatrixConfig") -> dict[str, Constant]:
    """The same for a kernel of tiles."""
    return {
        **matrix_units(config.fragment, config.subgroup_width),
        "FM": config.fragments_of_w,
        "FT": config.fragments_of_x,
        "ALONG_K": _along_k(config),
        "COLUMNS": config.columns,
        "DEPTH": config.prefetch_depth,
        "AT_ONCE": _fragments_at_once(config, _staged_bytes(config)),
    }


def matrix_tile_bytes(config: "MatrixConfig") -> int:
    """The memory of a workgroup: a step of W and of x, sums on their way out, and the bounds of its columns."""
    staged = _staged_bytes(config)
    return staged + _fragments_at_once(config, staged) * _fragment_bytes(config) + 16


def skinny_matrix_tile(config: GemmConfig) -> dict[str, Constant]:
    """What skinny_gemm_matrix is specialised by."""
    return {**matrix_tile(config), "AT_ONCE": _fragments_at_once(config, _own_staged_bytes(config))}


def skinny_matrix_bytes(config: GemmConfig) -> int:
    """The memory of its workgroup: a step of W for each subgroup, sums on their way out, the bounds of its columns."""
    staged = _own_staged_bytes(config)
    return staged + _fragments_at_once(config, staged) * _fragment_bytes(config) + 16


def _own_staged_bytes(config: GemmConfig) -> int:
    return 2 * config.prefetch_depth * _along_k(config) * (config.r + config.tb) * (config.columns + 8)


def _fragments_at_once(config: "MatrixConfig", staged: int) -> int:
    """Of each subgroup, how many have their sums leave together: all that it has, or one where these want much room."""
    every = config.fragments_of_w * config.fragments_of_x
    return every if staged + every * _fragment_bytes(config) <= SUMS_WITHIN else 1


def _fragment_bytes(config: "MatrixConfig") -> int:
    """Of the sums of a fragment of each subgroup."""
    return 4 * config.wg // config.subgroup_width * config.fragment**2


def _staged_bytes(config: "MatrixConfig") -> int:
    return 2 * (config.r + config.tb) * (config.columns // 64 * 72)


def _along_k(config: "MatrixConfig") -> int:
    sides = config.fragments_of_w * config.fragments_of_x * config.fragment**2
    return config.wg // config.subgroup_width * sides // (config.r * config.tb)
