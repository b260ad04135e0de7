"""The constants that a device starts from, before anybody has tuned it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace

from ..gpu.device import Capabilities
from .amd import is_amd, within_registers
from .expert_config import (
    ExpertConfig,
    ExpertMatrixTile,
    expert_gemm_lane,
    expert_gemm_matrix,
    expert_gemv,
    expert_gemv_int,
)
from .gemm_config import (
    FILL,
    INT8_TILE,
    MANY,
    TILE,
    WIDE_TILE,
    GemmConfig,
    MatrixTile,
    gemm_lane,
    gemm_matrix,
    gemv,
    gemv_int,
    line_gemm,
    skinny_gemm,
    skinny_gemm_matrix,
    subgroup_gemm,
)
from .rwkv import BY_CHUNKS
from .tuning import Size, Tuning, expert_ladder

WHOLE_TILE = MatrixTile(along_k=2)
HALF_TILE = MatrixTile(along_t=1)  # where workgroups have 32 KiB
# Workgroups that tiles want: one for each multiprocessor of an H200, two where a short matrix has few blocks of rows
# and so many columns that another dispatch, which adds up parts, is worth it.
MATRIX_FILL, SHORT_MATRIX_FILL = 128, 240


def default_tuning(can: Capabilities) -> Tuning:
    """What to start from on a device that nobody has tuned."""
    plain = _without_matrix_units(can)
    return on_matrix_units(plain, can) if can.fragment else plain


def on_matrix_units(tuning: Tuning, can: Capabilities) -> Tuning:
    """The same with products of many rows, of many choices, attention and Mamba-2 of prompts on matrix units."""
    fill, short_fill = (0, 0) if can.software else (MATRIX_FILL, SHORT_MATRIX_FILL)
    many = gemm_matrix(can.fragment, can.subgroup_size, WHOLE_TILE, fill=fill)
    if not many.runs_on(can):
        many = gemm_matrix(can.fragment, can.subgroup_size, HALF_TILE, fill=fill)
    # Few columns of floats, as second halves of LoRAs have, are too few for tiles that go through 64 at a time.
    # A matrix of few rows has few tiles, each of which goes through all columns: more workgroups share these out.
    rest = (
        (Size(MANY, out=1024, packed=True, more_than=32), replace(many, fill=fill)),
        (Size(MANY, out=2048, width=4096, packed=True, more_than=32), replace(many, fill=fill // 2)),
        (Size(MANY, out=3072, width=4096, packed=True, more_than=32), replace(many, fill=0)),
        (Size(MANY, out=3072, packed=True, more_than=32), replace(many, fill=short_fill)),
        (Size(MANY, packed=True, more_than=32), many),
        (Size(MANY, width=512, more_than=64), tuning.linear[-1][1]),
    )
    few = tuple(one for one in tuning.linear_sized if one[0].rows < MANY)
    if not can.software:
        few = (*batches_on_matrix_units(can), *few)
    short = tuning.linear_short and (*tuning.linear_short[:-1], (MANY, many))
    packed = tuning.linear_packed and (*tuning.linear_packed[:-1], (MANY, many))
    every = [(most, expert_gemm_matrix(can.fragment, can.subgroup_size, tile)) for most, tile in EXPERT_TILES]
    if can.software or not all(config.runs_on(can) for _, config in every):
        every = [(MANY, expert_gemm_matrix(can.fragment, can.subgroup_size, SMALL_EXPERT_TILE))]
    return replace(
        tuning,
        heads=heads_on_matrix_units(tuning, can),
        linear=(*tuning.linear[:-1], (MANY, many)),
        linear_short=short,
        linear_packed=packed,
        linear_sized=(*few, *rest),
        experts=(*few_choices(tuning.experts, can), *every),
        experts_short=tuning.experts_short and (*few_choices(tuning.experts_short, can), *every),
        float_choices=MANY if can.software or is_amd(can) else FEW_FLOAT_CHOICES,
        attention_on_matrix_units=True,
        decode_matrix_least=0 if can.software or is_amd(can) else DECODE_LEAST,
        state_space_on_matrix_units=True,
        merged_batch_rows=tuning.merged_batch_rows if can.software or is_amd(can) else MERGED_BATCH_ROWS,
    )


def few_choices(
    ladder: tuple[tuple[float, ExpertConfig], ...], can: Capabilities
) -> Iterator[tuple[float, ExpertConfig]]:
    """What of a ladder stays where the rest is done on matrix units."""
    for most, config in ladder[:-1]:
        if can.software or most <= FEW_CHOICES:
            yield most, config
        elif config.kernel == "moe/expert_gemv_int":
            yield FEW_CHOICES, config


def heads_on_matrix_units(tuning: Tuning, can: Capabilities) -> tuple[tuple[float, ExpertConfig], ...]:
    """Kernels for products by head: as before for few rows of x, then a tile for all rows of a batch."""
    tiles = [(most, expert_gemm_matrix(can.fragment, can.subgroup_size, tile)) for most, tile in HEAD_TILES]
    if can.software or is_amd(can) or not all(config.runs_on(can) for _, config in tiles):
        return tuning.heads
    few = ((min(most, FEW_ROWS), config) for most, config in tuning.heads)
    return (*few, *few_choices(tuning.experts, can), *tiles)


MERGED_BATCH_ROWS = 32  # gain 6% of GLM-4.7-Flash by 16: not tried on AMD
DECODE_LEAST = 2048  # positions of all sequences, from which decode attends on matrix units: not tried on AMD
FEW_CHOICES = 3  # of an expert, on average, up to which matrix units gain nothing
# The same of MXFP4. By 16 rows, two choices of an expert, gpt-oss 20B gains 37%. Of Q4_K, whose bytes are multiplied as
# such, GLM-4.7-Flash loses 15% by as many, and Qwen3-30B-A3B 43%. Not tried on AMD.
FEW_FLOAT_CHOICES = 1.5
# Up to so many choices of an expert: the tile. It has room for more, as experts are not chosen evenly. Two steps on the
# way gain 21% of a step of gpt-oss 20B by 16 rows on an H200, four 11%.
EXPERT_TILES = (
    (12, ExpertMatrixTile(1, 1, 4, ahead=2)),
    (20, ExpertMatrixTile(2, 2, 4, 2)),
    (40, ExpertMatrixTile(1, 4, 4)),
    (MANY, ExpertMatrixTile(2, 4, 4, 2)),
)
FEW_ROWS = 8  # of x, up to which products do not use matrix units
# Of products by head, up to so many rows of x. Rows of heads are short: all steps of them are on their way at once.
HEAD_TILES = (
    (16, ExpertMatrixTile(1, 1, 2, 4, columns=256, ahead=2)),
    (32, ExpertMatrixTile(1, 2, 2, 4, columns=256)),
)
SMALL_EXPERT_TILE = ExpertMatrixTile(2, 2, 4)  # where workgroups have 32 KiB


MOST_FRAGMENTS = 4  # of x that a subgroup has sums of


@dataclass(frozen=True, kw_only=True)
class Few:
    """Products of few rows of x by subgroups, and which rows and matrices they are for."""

    kernel: Callable[..., GemmConfig]
    subgroups: int  # of a workgroup at most
    workgroups: int  # that are wanted: one or two for each multiprocessor of an H200
    block: int = 32  # rows of x at a time
    more_than: int
    rows: int  # of x at most
    out: int = MANY  # of W at most
    width: int = MANY
    least: int = 0  # rows and columns of W
    floats_above: int = 0  # rows of x; up to so many have to be rounded by whatever makes them
    joins: bool = False  # whether columns are cut into as many parts as gain

    def sizes(self) -> Iterator[Size]:
        """Those that it is for, x rounded by whatever makes it first."""
        whole = Size(self.rows, self.out, self.width, packed=True, more_than=self.more_than, least=self.least)
        if self.floats_above:
            yield replace(whole, rounded=True)
        if self.floats_above < self.rows:
            yield replace(whole, more_than=max(self.more_than, self.floats_above))

    def config(self, can: Capabilities) -> GemmConfig:
        """Its shape on a device."""
        fragments = min(MOST_FRAGMENTS, -(-min(self.rows, self.block) // can.fragment))
        return self.kernel(
            can.fragment,
            can.subgroup_size,
            self.subgroups,
            fragments,
            max_workgroups=self.workgroups,
            joined_parts=0 if self.joins else 1,
        )


def batches_on_matrix_units(can: Capabilities) -> list[tuple[Size, GemmConfig]]:
    """Of formats of small integers by 5 to 128 rows."""
    found = []
    for few in () if is_amd(can) else FEW_ON_MATRIX_UNITS:  # not tried there
        config = few.config(can)
        if config.runs_on(can):
            found += [(size, config) for size in few.sizes()]
    for more_than, rows, out, width, least, kernel, tile, fill in BATCHES:
        config = kernel(can.fragment, can.subgroup_size, tile, fill=fill)
        if config.runs_on(can):
            found.append((Size(rows, out, width, packed=True, more_than=more_than, least=least), config))
    return found


# Beside subgroup_gemm, line_gemm gains 15% of a step of Llama 8B by 16 rows and 16% by 32, of Phi-4 15 and
# 21, of Qwen3.5 9B 20 and 29. Models of shorter rows lose by it: RWKV-7 2.9B 4% by 16, LFM2 1.2B 12 by 32.
# Beside what served before, subgroup_gemm gains 9% of Llama 8B by 16 rows and 5% by 32, of RWKV-7 2.9B 5 and 19, of
# Gemma 3 12B 0 and 26, of LFM2 1.2B 9 and 40; of Falcon-H1 3B, whose attention is 1,280 wide, 5 more by 16. Models
# 1,024 wide gain by 32 rows too, but lost by 16 when rounding was a dispatch of its own: Qwen3 0.6B 20%, RWKV-7 0.4B 9.
# So rows as short are multiplied so only where whatever makes them rounds them: Qwen3 0.6B gains 21% by 16, RWKV-7 0.1B
# 9 to 30%, and adapters of Llama 8B, whose v of other bits then reads what q and k read, cost 16.2% in place of 17.8.
# With matrices of 512 rows, too, Granite 4 H Tiny lost 1.3%. Where two workgroups of eight subgroups would want another
# round, one of as many as memory holds does not: Phi-4 gained 15%.
# A fragment has 16 rows, but from five on that beats kernels without: steps of 5 and 8 rows of Phi-4 gain 37 and 38%,
# of Gemma 3 12B 23, of Qwen3.5 9B 18, of Llama 8B 15, of gpt-oss 20B 13 and 10, of LFM2 1.2B 7; of Falcon-H1 3B 0 and
# -2. There, too, short rows have to be rounded by whatever makes them: RWKV-7 2.9B lost 20%.
# By more rows than 32, blocks of 32 or of 64 decode the same weights again, and still beat tiles, which are few:
# prompts of 64 gain 28% of Llama 8B, 33 of Falcon-H1 3B, 36 of RWKV-7 2.9B, 75 of Qwen3 0.6B and 80 of LFM2 1.2B, 64
# sequences 28% of Llama 8B and 48 of RWKV-7 2.9B. By 128 rows small matrices do: 40 to 50% of a prompt of Falcon-H1 3B;
# by 256 4 to 10, not taken up.
# Parts of columns that are joined gain 10% of Phi-4 by 16 rows, 12 by 32 and 13 by 64, 4 of Gemma 3 12B by 16 and 7 by
# 64, 3 of Llama 8B by 16 and 5 by 64, 3 of Ministral 3 8.5B and 5 of LFM2 1.2B by 16, and 10 of RWKV-7 2.9B by 32. Of
# subgroup_gemm they gain nothing by more rows than 32.
LONG = 3584
FEW_ON_MATRIX_UNITS = (
    Few(more_than=4, rows=16, least=LONG, kernel=line_gemm, subgroups=17, workgroups=132, joins=True),
    Few(more_than=16, rows=32, least=LONG, kernel=line_gemm, subgroups=17, workgroups=132, joins=True),
    Few(more_than=32, rows=64, least=LONG, kernel=line_gemm, subgroups=17, workgroups=132, joins=True),
    Few(more_than=8, rows=16, out=16383, least=2048, kernel=subgroup_gemm, subgroups=16, workgroups=132, joins=True),
    Few(
        more_than=4, rows=16, out=16383, least=768, floats_above=16,
        kernel=subgroup_gemm, subgroups=16, workgroups=132, joins=True,
    ),
    Few(
        more_than=4, rows=16, out=33792, least=2048, floats_above=8,
        kernel=subgroup_gemm, subgroups=8, workgroups=264,
    ),
    Few(
        more_than=4, rows=16, out=40128, least=2048, floats_above=8,
        kernel=subgroup_gemm, subgroups=19, workgroups=132,
    ),
    Few(more_than=4, rows=16, least=2048, floats_above=8, kernel=subgroup_gemm, subgroups=8, workgroups=264),
    Few(more_than=16, rows=32, kernel=subgroup_gemm, subgroups=16, workgroups=132, joins=True),
    Few(more_than=32, rows=64, least=2560, kernel=subgroup_gemm, subgroups=8, workgroups=132, block=64),
    Few(more_than=32, rows=64, out=4096, kernel=subgroup_gemm, subgroups=16, workgroups=132),
    Few(more_than=32, rows=64, kernel=subgroup_gemm, subgroups=8, workgroups=132, block=64),
    Few(
        more_than=64, rows=128, out=12288, width=12288, least=2560,
        kernel=subgroup_gemm, subgroups=8, workgroups=132, block=64,
    ),
    Few(more_than=64, rows=128, out=4096, width=12288, kernel=subgroup_gemm, subgroups=16, workgroups=132),
)  # fmt: skip
# More than so many rows of x and up to so many, by matrices of up to so many rows and columns, and of so many at least:
# the kernel, its tile, and how many workgroups are wanted. Short matrices have few blocks of rows, so that more
# subgroups share out their columns.
BATCHES = (
    # Where subgroup_gemm is not used, as on AMD:
    (8, 16, MANY, MANY, 4096, skinny_gemm_matrix, MatrixTile(1, 1, 1, 1, 4, columns=64), 0),
    (16, 32, 5120, 8192, 0, gemm_matrix, MatrixTile(2, 2, 1, 1, 8, columns=256), 0),
    (16, 32, 5120, MANY, 0, gemm_matrix, MatrixTile(2, 2, 1, 1, 8, columns=256), 264),
    (16, 32, 20480, MANY, 0, gemm_matrix, MatrixTile(2, 2, 1, 1, 8, columns=256), 0),
    (16, 32, MANY, MANY, 4096, skinny_gemm_matrix, MatrixTile(1, 2, 4, 1, 1, columns=64), 0),
    (16, 32, MANY, MANY, 0, gemm_matrix, MatrixTile(2, 2, 1, 1, 8, columns=256), 0),
    (32, 64, 20480, MANY, 0, gemm_matrix, MatrixTile(2, 4, 1, 1, 4, columns=128), 0),
    (32, 64, MANY, MANY, 4096, skinny_gemm_matrix, MatrixTile(1, 4, 4, 1, 1, columns=64), 0),
    (32, 64, MANY, MANY, 0, gemm_matrix, MatrixTile(2, 4, 1, 1, 4, columns=128), 0),
)


# Rows of W and of x for a lane of software Vulkan, by up to so many rows of x. Two short runs to a step fill twice the
# registers.
SOFTWARE_LANES = (1, 4, 1), (2, 2, 2), (4, 2, 4), (8, 4, 8), (MANY, 4, 16)
SOFTWARE_LANES_SHORT = (1, 2, 1), (2, 2, 2), (4, 2, 4), (8, 2, 8), (MANY, 2, 16)


def _without_matrix_units(can: Capabilities) -> Tuning:
    if not can.subgroup:
        rows = ((tb, gemv(64, lanes_per_row, 4, tb)) for tb, lanes_per_row in ((1, 16), (2, 16), (4, 8)))
        return Tuning(64, 64, "workgroup", (*rows, (MANY, TILE)))
    if can.software and can.subgroup_size == 8:  # barriers are slow in software, and so is every load
        ladder, short = (
            tuple((rows, gemm_lane(r, tb)) for rows, r, tb in way) for way in (SOFTWARE_LANES, SOFTWARE_LANES_SHORT)
        )
        experts, experts_short = (
            tuple((bound, expert_gemm_lane(r, tb)) for bound, tb in ((1.5, 1), (3, 2), (6, 4), (MANY, 8)))
            for r in (4, 2)
        )
        return Tuning(8, 64, "one_subgroup", ladder, short, experts, experts_short, attention_lanes=16)
    return hardware(can)


def reductions(can: Capabilities) -> dict[str, Tuning]:
    """Every way that a device can share a row among lanes, for trials."""
    default = default_tuning(can)
    ways = {"workgroup": replace(default, row_lanes=64, reduce="workgroup")}
    if can.subgroup:
        ways["subgroup"] = replace(default, row_lanes=4 * can.subgroup_width, reduce="subgroup")
    if can.subgroup_size:
        ways["one subgroup"] = replace(default, row_lanes=can.subgroup_size, reduce="one_subgroup")
    return ways


def in_chunks(can: Capabilities) -> dict[str, Tuning]:
    """Ways to compute the recurrences of prompts by chunks of tokens, for trials."""
    if not BY_CHUNKS.met(can):
        return {}
    floats = replace(default_tuning(can), state_space_on_matrix_units=False, state_space_chunks=True)
    chunked = replace(floats, chunk_tokens=16, chunk_least_rows=1, chunks_without_removal=True)
    ways = {
        "chunks": chunked,
        "chunks, two rows for eight lanes": replace(chunked, chunk_rows_per_lane=2, chunk_lanes_per_row=8),
    }
    return ways | {"chunks, a lane a row": replace(chunked, reduce="workgroup", row_lanes=64)}


FEW_BYTES = 48 << 10  # of workgroup memory


def few_rows(subgroup_width: int) -> list[tuple[Size, GemmConfig]]:
    """Of formats of small integers by 2 to 32 rows, where 48 KiB of memory hold whole rows of 5,120 columns."""
    found = []
    for rows, out, width, run, (wg, lanes_per_row, r, tb), most, how in FEW:
        shape = skinny_gemm(
            wg,
            lanes_per_row,
            r,
            tb,
            staged=640 // tb,
            subgroup_width=subgroup_width,
            max_workgroups=most,
            copies=how == "copied",
        )
        while shape.workgroup_bytes > FEW_BYTES:  # many short subgroups have a sum each
            shape = replace(shape, staged=shape.staged - 1)
        found.append((Size(rows, out, width, packed=True, run=run), shape))
    return found


# Up to so many rows of x by matrices of so many rows and columns, in formats whose runs are so long: lanes, those of a
# row, rows of W and of x at a time; workgroups; and whether each of them rounds x or copies it. Where runs are of 16,
# four rows of W want more registers than there are.
FEW = (
    (2, 3072, 2048, 0, (640, 32, 1, 2), MANY, "rounded"),
    (2, 3072, 3072, 0, (320, 32, 1, 2), 264, "rounded"),
    (2, 3072, 5120, 0, (640, 32, 1, 2), MANY, "rounded"),
    (2, 4096, 5120, 0, (512, 32, 1, 2), MANY, "rounded"),
    (2, 8192, 5120, 0, (640, 32, 2, 2), MANY, "rounded"),
    (2, 12288, 5120, 0, (640, 16, 2, 2), 264, "rounded"),
    (2, 65536, 3072, 0, (640, 16, 1, 2), 264, "rounded"),
    (2, MANY, 5120, 0, (640, 16, 2, 2), 264, "rounded"),
    (2, MANY, 10240, 0, (640, 32, 1, 2), MANY, "rounded"),
    (2, MANY, MANY, 0, (512, 32, 2, 2), MANY, "rounded"),
    (4, 3072, 5120, 0, (320, 32, 1, 4), MANY, "rounded"),
    (4, 4096, 5120, 0, (640, 16, 1, 4), MANY, "rounded"),
    (4, 12288, 5120, 0, (640, 16, 2, 4), 264, "rounded"),
    (4, MANY, 5120, 32, (640, 16, 2, 4), 132, "rounded"),
    (4, MANY, 5120, 0, (640, 16, 2, 4), 264, "rounded"),
    (4, MANY, 10240, 0, (640, 32, 2, 2), MANY, "rounded"),
    (4, MANY, MANY, 0, (512, 32, 2, 4), MANY, "rounded"),
    (8, 3072, 5120, 0, (320, 16, 2, 4), MANY, "copied"),
    (8, 3072, 5120, 0, (320, 32, 1, 4), MANY, "rounded"),
    (8, 5120, 5120, 0, (640, 16, 2, 4), 132, "rounded"),
    (8, 8192, 3072, 32, (640, 16, 4, 4), 264, "rounded"),
    (8, 8192, 5120, 0, (640, 16, 2, 4), 132, "rounded"),
    (8, MANY, 5120, 0, (640, 16, 2, 4), 132, "copied"),
    (8, MANY, 5120, 0, (640, 16, 2, 4), 132, "rounded"),
    (8, MANY, 12288, 0, (640, 32, 2, 4), 132, "copied"),
    (8, MANY, MANY, 0, (512, 16, 2, 4), MANY, "rounded"),
    (32, 3072, 5120, 0, (320, 16, 2, 4), MANY, "copied"),
    (32, 3072, 5120, 0, (320, 32, 2, 4), MANY, "rounded"),
    (32, 5120, 5120, 0, (640, 16, 2, 4), 264, "rounded"),
    (32, 8192, 5120, 32, (640, 16, 4, 4), 132, "rounded"),
    (32, 8192, 5120, 0, (640, 16, 2, 4), 264, "rounded"),
    (32, MANY, 5120, 0, (640, 16, 2, 4), 132, "copied"),
    (32, MANY, 5120, 32, (640, 16, 4, 4), 264, "rounded"),
    (32, MANY, 5120, 0, (640, 16, 2, 4), 264, "rounded"),
    (32, MANY, 12288, 0, (640, 16, 2, 4), 132, "copied"),
    (32, MANY, MANY, 0, (512, 16, 2, 4), MANY, "rounded"),
)


def hardware(can: Capabilities) -> Tuning:
    """A GPU with subgroups; the sizes are those that were best on an NVIDIA H200 (profiles/nvidia-h200.md)."""

    def rows(tb: int, wg: int, lanes_per_row: int, r: int, prefetch_depth: int = 1) -> GemmConfig:
        return gemv(wg, min(lanes_per_row, wg), r, tb, prefetch_depth=prefetch_depth, subgroup_width=can.subgroup_width)

    def once(wg: int, lanes_per_row: int, prefetch_depth: int, r: int = 1, subgroups_per_row: int = 1) -> GemmConfig:
        return gemv_int(
            wg,
            lanes_per_row,
            r,
            subgroup_width=can.subgroup_width,
            max_workgroups=132 * r,
            prefetch_depth=prefetch_depth,
            subgroups_per_row=subgroups_per_row,
        )

    def several(wg: int, lanes_per_row: int, max_workgroups: int = 264) -> GemmConfig:
        return gemv_int(wg, lanes_per_row, 2, subgroup_width=can.subgroup_width, max_workgroups=max_workgroups)

    gap = int(can.max_workgroup_memory >= WIDE_TILE.workgroup_bytes)
    packed: list[tuple[int, GemmConfig]] = []
    narrow, onces, by_size, tiles = [], [], [], []
    if can.integer_dot:
        way = several(512, 32) if can.max_invocations >= 512 else several(256, 16, 528)
        packed.append((1, way))
        if can.max_invocations >= 1024 and can.max_workgroup_memory >= FEW_BYTES:
            # Matrices of 768 columns or rows keep what the next would lose by: 7% of a step of RWKV-7 0.1B.
            narrow += [
                (Size(1, out=3072, width=768, packed=True, run=32), once(512, 16, 5)),
                (Size(1, out=1024, width=3072, packed=True, run=32), once(256, 32, 3)),
                (Size(1, out=1024, width=4096, packed=True, run=32), once(512, 32, 2, 2, subgroups_per_row=2)),
                (Size(1, out=2048, width=4096, packed=True, run=32), once(512, 32, 2)),
                (Size(1, out=2048, width=5632, packed=True, run=32), once(256, 16, 2)),
                (Size(1, out=2048, width=8192, packed=True, run=32), once(512, 32, 2)),
                (Size(1, out=4096, width=1024, packed=True, run=32), once(512, 32, 2, 2)),
            ]
            onces += [
                (Size(1, out=2640, width=3072, packed=True, run=32), once(320, 16, 5)),
                (Size(1, out=3072, width=3072, packed=True, run=32), once(512, 16, 5)),
                (Size(1, out=2640, width=18432, packed=True, run=32), once(640, 32, 3, 2, subgroups_per_row=2)),
            ]
            long = gemv_int(1024, 32, 1, subgroup_width=can.subgroup_width, max_workgroups=132)
            by_size += [
                (Size(1, out=4096, width=4096, packed=True), long),
                (Size(1, out=4096, width=18432, packed=True, run=32), once(1024, 32, 2)),
                (Size(1, out=4096, width=18432, packed=True), long),
                (Size(1, out=6144, width=2048, packed=True, run=32, least=2048), once(768, 32, 2, 2)),
                (Size(1, out=6144, packed=True), way),
                (Size(1, out=8192, width=2048, packed=True, run=32), once(512, 32, 2, 2)),
                (Size(1, out=8192, width=3072, packed=True), once(768, 16, 2, 2)),
                (Size(1, out=8192, packed=True), way),
                (Size(1, out=12288, width=2048, packed=True), several(896, 16)),
                (Size(1, out=12288, width=3072, packed=True, run=32), once(640, 16, 2, 2)),
                (Size(1, out=12288, width=3072, packed=True), several(768, 16)),
                (Size(1, out=12288, packed=True), several(1024, 32)),
                (Size(1, out=16384, width=2048, packed=True, run=32, least=2048), once(512, 16, 2, 2)),
            ]
            by_size += [(Size(1, packed=True), way), *few_rows(can.subgroup_width)]
        dotted = (
            INT8_TILE if can.max_workgroup_memory >= INT8_TILE.workgroup_bytes else replace(INT8_TILE, prefetch_depth=1)
        )
        tiles.append((Size(MANY, out=1024, packed=True), dotted))
    plain = rows(1, min(256, can.max_invocations), 32, 1)
    sized = (
        (Size(1, width=512), rows(1, 128, 16, 2)),
        (Size(2, width=512), rows(2, 128, 4, 2)),
        (Size(64, width=512), rows(4, 128, 2, 2)),
        (Size(1, out=256), rows(1, 128, 64, 1)),
        (Size(1, out=768, width=4096), rows(1, 128, 32, 2)),
        *narrow,
        (Size(1, out=2048, width=4096), rows(1, 128, 32, 2)),
        (Size(1, out=2048), rows(1, 128, 64, 4)),
        *onces,
        (Size(1, out=4096, width=3072), rows(1, 128, 32, 2)),
        *by_size,
        (Size(1, out=4096, width=4096), rows(1, 128, 32, 2)),
        (Size(1, out=4096), plain),
        (Size(2, out=4096), rows(2, 128, 32, 2)),
        (Size(4, out=2048, width=4096), rows(4, min(512, can.max_invocations), 32, 1)),
        (Size(4, out=4096), rows(4, 128, 32, 4)),
        (Size(64, out=256), rows(4, 128, 32, 1)),
        (Size(16, out=1024), rows(4, 128, 32, 2)),
        (Size(64, out=1024), rows(4, 128, 16, 4)),
        (Size(16, out=4096, width=4096), rows(4, 128, 16, 4)),
        (Size(16, out=4096), rows(4, 128, 32, 4)),
        *tiles,
        (Size(MANY, out=1024), replace(TILE, gap=gap, fill=FILL)),
    )
    eight = rows(8, 128, 16, 4)
    ladder = (
        (1, plain),
        (2, rows(2, 128, 16, 2)),
        (4, rows(4, 128, 16, 2)),
        (8, rows(4, 128, 16, 4)),
        (64, eight if eight.workgroup_bytes <= can.max_workgroup_memory else rows(4, 128, 16, 4)),
        (MANY, replace(WIDE_TILE if gap else TILE, fill=FILL)),
    )
    if can.integer_dot:
        packed += [*ladder[1:4], (32, ladder[4][1]), (MANY, dotted)]
    norms = min(1024, can.max_invocations)
    tuning = Tuning(
        norms,
        128,
        "subgroup",
        ladder,
        experts=_mixtures(can),
        heads=_heads(can),
        attention_run=32,
        attention_groups=512,
        decode_lanes_per_key=16,
        decode_prefetch=4,
        decode_prefetched=96,
        last_workgroup_joins=True,
        fuses_token_shift=True,
        token_shift_rows=4,
        state_lanes_per_row=8,
        state_rows_per_lane=2,
        chunk_tokens=8,
        chunk_least_rows=128,
        chunks_without_removal=True,
        lora_fusion_rows=32,
        quantising_recurrences=4096,  # 2,560 columns are rounded as fast by the product: RWKV-6 3B would lose 1%
        fuses_routing=True,
        merged_rows=2,
        merged_batch_rows=2,
        linear_sized=sized,
        linear_packed=tuple(packed),
    )
    return within_registers(tuning) if is_amd(can) else tuning


def _heads(can: Capabilities) -> tuple[tuple[float, ExpertConfig], ...]:
    """Kernels for products by head of few rows, whose matrices are small."""
    if not can.integer_dot:
        return ()
    [one] = [config for _, config in _mixtures(can)[2:3]]
    lanes, summing = min(8, can.subgroup_width), (min(16, can.subgroup_width), 1)
    few = expert_gemv_int(min(256, can.max_invocations), lanes, 2, subgroup_width=can.subgroup_width, summing=summing)
    return (1.5, one), (24, few)


# Of the first products with experts: two for each multiprocessor of an H200, each of which has several blocks of rows.
# Those of a layer of Qwen3-30B-A3B and of GLM-4.7-Flash take a fourth less by 16 rows than with one for each block.
EXPERT_WORKGROUPS = 264


def _mixtures(can: Capabilities) -> tuple[tuple[float, ExpertConfig], ...]:
    """Kernels for products with experts: with x as integers, where that is fast and W is such, for few choices."""
    wide = min(64, 2 * can.subgroup_width)
    floats = expert_gemv(128, 16, 2, 1, subgroup_width=can.subgroup_width, summing=(wide, 2))
    every = ((0.25, floats), *expert_ladder(128, 16, can.subgroup_width, (wide, 4)))
    if not can.integer_dot:
        return every
    lanes, lanes_per_row = min(512, can.max_invocations), min(16, can.subgroup_width)
    ways = (
        (0.1, 2, (can.subgroup_width, 1), MANY),
        (0.25, 2, (lanes_per_row, 1), MANY),
        (5, 4, (lanes_per_row, 2), EXPERT_WORKGROUPS),
    )
    integers = (
        (
            most,
            expert_gemv_int(
                lanes, lanes_per_row, r, subgroup_width=can.subgroup_width, summing=summing, max_workgroups=groups
            ),
        )
        for most, r, summing, groups in ways
    )
    return *integers, *every
