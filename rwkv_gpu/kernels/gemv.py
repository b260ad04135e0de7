"""Kernels of matrix products with few rows of x, whose lanes stride over rows of W."""

from collections.abc import Iterator

from ..gpu.device import MIN_SUBGROUP, Capabilities
from .gemm_config import INT16, UNLIMITED, GemmConfig, GemmKernel, SelfTest, gemm_lane, gemv, gemv_int
from .kernel import Hole, Needs
from .parts import (
    BIAS,
    COLUMNS,
    DECODING,
    EMIT,
    EPILOGUE,
    FORMAT,
    JOINED_ROWS,
    LANE_PRODUCTS,
    LANES,
    NORM,
    NORMED_ROW,
    PACKED,
    PLAIN,
    PRODUCT,
    PROLOGUE,
    RESIDUAL,
    ROWS,
    SCALED,
    STATISTICS,
    STRIDING,
    SUM,
    SUMS,
    TABLE,
    WORDS,
)
from .staging import fit_rows

MAX_GEMV_ROWS = 64  # rows of x up to which `tune` tries gemv
INT_WAYS = (  # gemv_int: lanes, lanes per row, rows of W, workgroups
    (256, 16, 2, 528),
    (256, 32, 2, 528),
    (512, 16, 2, 264),
    (512, 32, 2, 264),
    (1024, 32, 2, 264),
    (1024, 32, 1, 132),
)
SINGLE_PASS_WAYS = (  # gemv_single_pass: the same, then prefetch depth and subgroups per row
    (256, 16, 1, 132, 2, 1),
    (320, 16, 1, 132, 5, 1),
    (512, 16, 1, 132, 5, 1),
    (512, 32, 1, 132, 2, 1),
    (640, 32, 1, 132, 2, 1),
    (512, 32, 2, 264, 2, 1),
    (640, 16, 2, 264, 2, 1),
    (768, 16, 2, 264, 2, 1),
    (512, 32, 2, 264, 2, 2),
    (640, 32, 2, 264, 3, 2),
)
STAGING = Hole("staging", ("linear/staging/integers", "linear/staging/floats"))
STAGED = "linear/staging/integer_products", "lib/dot16", "lib/quantise"  # parts used by integer kernels that stage x

UNWORDED = {"formats/vec4s": Needs(fewer_buffers=16)}  # only with few buffers: otherwise planes are bound as words


def sum_part(subgroup_width: int) -> str:
    """The part that adds up the lanes of a row."""
    return "lib/sum/subgroup" if subgroup_width > 1 else "lib/sum/single_lane"


def activations(precision: str) -> tuple[str, ...]:
    """The integer types that rows of x may be quantised to for packed W, given a precision."""
    return ("int16", "int8") if precision == "int8" else ("int16",)


def _gemv_trials(can: Capabilities) -> dict[str, GemmConfig]:
    configs = {
        "gemv": gemv(64, 16, 2, 1),
        "gemv_rows": gemv(32, 8, 2, 4),
        "gemv_prefetch": gemv(32, 4, 2, 1, prefetch_depth=2),
    }
    if can.subgroup:
        size = can.subgroup_width
        configs["gemv_subgroups"] = gemv(4 * size, 2 * size, 2, 2, subgroup_width=size)
        configs["gemv_subgroup"] = gemv(2 * size, size, 1, 1, subgroup_width=size)
        configs["gemv_part_of_subgroup"] = gemv(size, size // 2, 2, 3, subgroup_width=size)
    return configs


def _gemv_candidates(can: Capabilities, rows: int, _precision: str) -> Iterator[GemmConfig]:
    if rows > MAX_GEMV_ROWS:
        return
    most = next((size for size in (1, 2, 4, 8) if size >= rows), 8)
    ways = [(64, 16, 2), (64, 16, 4), (64, 8, 4)]  # lanes, lanes per row, rows
    if can.software and can.subgroup_size == 8:  # fewer: compiling takes long, and barriers never pay
        ways = [(8, 8, 4), (8, 8, 8)]
    elif can.subgroup:
        ways = [(128, lanes, r) for lanes in (8, 16, 32, 64) for r in (2, 4)] + [(256, 16, 4), (256, 32, 4)]
    for tb in sorted({most, min(most, 4)}):
        yield from (gemv(wg, lanes, r, tb, subgroup_width=can.subgroup_width) for wg, lanes, r in ways)


def _gemv_bytes(config: GemmConfig) -> int:
    staged = 36 * config.lanes_per_row * config.prefetch_depth * config.tb
    groups = config.wg // min(config.lanes_per_row, config.subgroup_width)
    return 4 * (staged + groups * config.r * config.tb + config.wg // config.subgroup_width * config.tb)


GEMV = GemmKernel(
    name="linear/gemv",
    op="linear",
    holes=(FORMAT, WORDS.only("vec4s").maybe(), *STRIDING, SUM, PLAIN),
    shared=(*DECODING, *PRODUCT, *PROLOGUE, "lib/sum/across_subgroups", "lib/sum/squares"),
    trials=_gemv_trials,
    candidates=_gemv_candidates,
    constants=lambda c: {
        "LANES_PER_ROW": c.lanes_per_row,
        "PREFETCH": c.prefetch_depth,
        "SUBGROUP": c.subgroup_width,
    },
    workgroup_bytes=_gemv_bytes,
    block=lambda c: c.r * (c.wg // c.lanes_per_row),
    links=lambda c: (sum_part(c.subgroup_width), "lib/sum/across_subgroups", "lib/sum/squares"),
    any_lanes=True,
)


def _int_trials(can: Capabilities) -> dict[str, GemmConfig]:
    size = can.subgroup_width
    return {
        "gemv_int": gemv_int(4 * size, size, 2, subgroup_width=size, max_workgroups=3),
        "gemv_int_each_block": gemv_int(4 * size, size, 1, subgroup_width=size, max_workgroups=UNLIMITED),
        "gemv_int_bytes": gemv_int(2 * size, size // 2, 4, subgroup_width=size, max_workgroups=2, activations="int8"),
    }


def _int_candidates(can: Capabilities, rows: int, precision: str) -> Iterator[GemmConfig]:
    size = can.subgroup_width
    if rows > 1:
        return
    for x in activations(precision):
        if can.software:
            yield gemv_int(size, size, 4, subgroup_width=size, max_workgroups=UNLIMITED, activations=x)
            continue
        for wg, lanes, r, most in INT_WAYS:
            if lanes <= size:
                yield gemv_int(wg, lanes, r, subgroup_width=size, max_workgroups=most, activations=x)


GEMV_INT = GemmKernel(
    name="linear/gemv_int",
    op="linear",
    holes=(FORMAT, WORDS, *STRIDING, EMIT, STAGING, SUM.only("subgroup"), PLAIN),
    shared=(*DECODING, *PRODUCT, *PROLOGUE, *STAGED, "lib/sum/squares"),
    needs=Needs(lanes=MIN_SUBGROUP),
    part_needs=UNWORDED,
    tolerance=INT16,
    trials=_int_trials,
    candidates=_int_candidates,
    constants=lambda c: {"LANES_PER_ROW": c.lanes_per_row, "SUBGROUP": c.subgroup_width},
    fit=fit_rows,
    workgroup_bytes=lambda c: 4 * (c.wg // c.subgroup_width),
    block=lambda c: c.r * (c.wg // c.lanes_per_row),
    links=lambda c: (sum_part(c.subgroup_width), "lib/sum/squares"),
    self_test=SelfTest(pairs=lambda c: c.prefetch_depth == 1),  # with a larger depth it becomes gemv_single_pass
)


def _single_pass_trials(can: Capabilities) -> dict[str, GemmConfig]:
    """Trials of gemv_single_pass, which gemv_int with prefetch_depth > 1 becomes if the matrices allow it."""
    size = can.subgroup_width
    every = {
        "single_pass": gemv_int(3 * size, size, 2, subgroup_width=size, max_workgroups=UNLIMITED, prefetch_depth=2),
        "single_pass_two_subgroups": gemv_int(
            4 * size, size, 2, subgroup_width=size, max_workgroups=UNLIMITED, prefetch_depth=2, subgroups_per_row=2
        ),
        "single_pass_three_subgroups": gemv_int(
            12 * size, size, 3, subgroup_width=size, max_workgroups=UNLIMITED, prefetch_depth=2, subgroups_per_row=3
        ),
    }
    return {name: config for name, config in every.items() if config.wg <= can.max_invocations}


def _single_pass_candidates(can: Capabilities, rows: int, precision: str) -> Iterator[GemmConfig]:
    size = can.subgroup_width
    if rows > 1 or can.software:
        return
    for x in activations(precision):
        for wg, lanes, r, most, depth, subgroups in SINGLE_PASS_WAYS:
            if lanes <= size:
                yield gemv_int(
                    wg,
                    lanes,
                    r,
                    subgroup_width=size,
                    max_workgroups=most,
                    prefetch_depth=depth,
                    subgroups_per_row=subgroups,
                    activations=x,
                )


GEMV_SINGLE_PASS = GemmKernel(
    name="linear/gemv_single_pass",
    op="linear",
    holes=(
        FORMAT.only(*(fmt.shader for fmt in PACKED if fmt.run == 32)),
        WORDS,
        TABLE,
        EPILOGUE.only(SUMS, SCALED),
        BIAS,
        RESIDUAL,
        NORM,
        ROWS.but("scalar").also(JOINED_ROWS),
        COLUMNS,
        STATISTICS,
        NORMED_ROW,
        EMIT,
        STAGING.only("integers"),
        SUM.only("subgroup"),
        PLAIN,
    ),
    shared=(*DECODING, *PRODUCT, *PROLOGUE, *STAGED, "lib/sum/squares"),
    needs=Needs(lanes=MIN_SUBGROUP),
    part_needs=UNWORDED,
    tolerance=INT16,
    trials=_single_pass_trials,
    candidates=_single_pass_candidates,
    constants=lambda c: {
        "LANES_PER_ROW": c.lanes_per_row,
        "PREFETCH": c.prefetch_depth,
        "SUBGROUP": c.subgroup_width,
    },
    workgroup_bytes=lambda c: 4 * (c.wg // c.subgroup_width * (1 + c.r)),
    block=lambda c: c.r * (c.wg // c.lanes_per_row),
    links=lambda c: (sum_part(c.subgroup_width), "lib/sum/squares"),
    self_test=SelfTest(pairs=lambda _: False),
)


def _lane_candidates(can: Capabilities, rows: int, _precision: str) -> Iterator[GemmConfig]:
    wide = next((size for size in (1, 2, 4, 8, 16) if size >= rows), 16)
    yield from (gemm_lane(r, wide) for r in (1, 2, 4) if can.subgroup_size == 8)


GEMM_LANE = GemmKernel(
    name="linear/gemm_lane",
    op="linear",
    holes=(FORMAT, WORDS.only("vec4s").maybe(), *STRIDING, SUM.only("subgroup"), LANES.only("one_subgroup")),
    shared=(*DECODING, *PRODUCT, *PROLOGUE, "lib/lanes/broadcast"),
    core=(LANE_PRODUCTS,),
    needs=Needs(subgroup_size=8),
    trials=lambda _: {"gemm_lane": gemm_lane(2, 1), "gemm_lane_rows": gemm_lane(4, 16)},
    candidates=_lane_candidates,
    constants=lambda c: {"SUBGROUP": c.wg},
    workgroup_bytes=lambda c: 4 * c.wg,
    block=lambda c: c.r * c.wg,
    links=lambda _: ("lib/lanes/broadcast", "lib/sum/subgroup"),
)
