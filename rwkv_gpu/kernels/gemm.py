"""Kernels of matrix products with many rows of x: tiles, and the kernels that quantise before and reduce after them."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ..gpu.device import MIN_SUBGROUP, Capabilities
from .gemm_config import (
    F16,
    FILL,
    INT16,
    TILE,
    TILE_F16,
    WIDE_TILE,
    GemmConfig,
    GemmKernel,
    SelfTest,
    gemm_int8,
    skinny_gemm,
)
from .gemv import UNWORDED, activations
from .kernel import Hole, Kernel, Needs
from .parts import (
    BIAS,
    DECODING,
    EPILOGUE,
    FLOAT_SUMS,
    FORMAT,
    LANES,
    NORM,
    NORMED_ROW,
    PACKED_FORMAT,
    PLAIN,
    PLAIN_ROWS,
    PLAIN_STATISTICS,
    PRODUCT,
    PROLOGUE,
    QUANTISED_SUMS,
    QUANTISING,
    QUANTISING_ROWS,
    RESIDUAL,
    RESULTS,
    ROUNDING,
    ROWS,
    STATISTICS,
    SUM,
    TABLE,
    TILED,
    WORDS,
)
from .staging import fit_pieces

SKINNY_WAYS = (  # skinny_gemm: lanes, lanes per row, rows of W, and whether x is quantised, copied or read
    (320, 32, 1, "quantise"),
    (640, 32, 1, "quantise"),
    (640, 32, 2, "quantise"),
    (640, 16, 1, "quantise"),
    (640, 16, 2, "quantise"),
    (640, 16, 4, "quantise"),
    (512, 16, 2, "quantise"),
    (512, 32, 2, "quantise"),
    (320, 16, 2, "copy"),
    (640, 16, 2, "copy"),
    (640, 32, 2, "copy"),
    (128, 32, 2, "read"),
    (128, 32, 4, "read"),
)
INT8_WAYS = (  # gemm_int8: lanes, lanes along W, rows of W and of x, prefetch depth
    (128, 16, 128, 64, 2),
    (128, 8, 64, 128, 2),
    (128, 8, 64, 128, 1),
    (256, 16, 128, 128, 2),
    (64, 16, 64, 16, 2),
)
QUANTISE_X = "linear/skinny/quantise_x"
SKINNY_ROWS = Hole("x", (QUANTISE_X, "linear/skinny/copy_x", "linear/skinny/read_x"))


def _skinny_trials(can: Capabilities) -> dict[str, GemmConfig]:
    size = can.subgroup_width
    return {
        "skinny": skinny_gemm(2 * size, size, 2, 2, staged=size, subgroup_width=size, max_workgroups=3),
        "skinny_whole_rows": skinny_gemm(
            2 * size, size // 2, 4, 4, staged=2 * size, prefetch_depth=2, subgroup_width=size, max_workgroups=2
        ),
        "skinny_read": skinny_gemm(2 * size, size // 2, 2, 2, subgroup_width=size),
        "skinny_copied": skinny_gemm(
            2 * size, size, 2, 4, staged=size, subgroup_width=size, max_workgroups=3, copies=True
        ),
        "skinny_quantises": skinny_gemm(4 * size, size // 2, 4, 2, staged=3 * size, subgroup_width=size, copies=True),
    }


def _skinny_candidates(can: Capabilities, rows: int, precision: str) -> Iterator[GemmConfig]:
    """Returns configurations that stage as many chunks as fit in 48 KiB."""
    if can.software or not 1 < rows <= 32:
        return
    tb = min(4, 1 << (rows - 1).bit_length())
    for (wg, lanes, r, how), x in product(SKINNY_WAYS, activations(precision)):
        if lanes <= can.subgroup_width:
            yield skinny_gemm(
                wg,
                lanes,
                r,
                tb,
                staged=640 // tb if how != "read" else 0,
                subgroup_width=can.subgroup_width,
                max_workgroups=264,
                activations=x,
                copies=how == "copy",
            )


def _skinny_links(config: GemmConfig) -> tuple[str, ...]:
    products = "lib/sum/subgroup", "linear/staging/integer_products", "lib/dot16"
    if not config.staged:
        return (*products, "linear/skinny/read_x", "linear/skinny/quantised_x")
    if config.copies:
        return (*products, "linear/skinny/copy_x", "linear/skinny/quantised_x", "linear/skinny/shared_x")
    return (*products, QUANTISE_X, "linear/skinny/shared_x", "lib/quantise", "lib/sum/squares")


def _skinny_bytes(config: GemmConfig) -> int:
    chunks = config.staged * (32 * config.bytes_of_x + 12) * config.tb
    return chunks + 4 * (config.wg // config.subgroup_width) * config.tb


SKINNY_GEMM = GemmKernel(
    name="linear/skinny_gemm",
    op="linear",
    holes=(
        PACKED_FORMAT,
        WORDS,
        TABLE.only("constant"),
        EPILOGUE.only(*RESULTS, QUANTISED_SUMS),
        BIAS,
        RESIDUAL,
        NORM.called_by(QUANTISE_X),
        ROWS.but("scalar").called_by(QUANTISE_X),
        STATISTICS,
        NORMED_ROW,
        SKINNY_ROWS,
        Hole("quantised output", (FLOAT_SUMS,), callers=RESULTS, default=FLOAT_SUMS),
        SUM.only("subgroup"),
        PLAIN,
    ),
    shared=(
        *DECODING,
        *PRODUCT,
        *PROLOGUE,
        *QUANTISING,
        "linear/skinny/shared_x",
        "linear/skinny/quantised_x",
        "linear/staging/integer_products",
        "lib/dot16",
        "lib/sum/squares",
    ),
    needs=Needs(lanes=MIN_SUBGROUP),
    part_needs=UNWORDED,
    tolerance=INT16,
    trials=_skinny_trials,
    candidates=_skinny_candidates,
    constants=lambda c: {
        "LANES_PER_ROW": c.lanes_per_row,
        "SUBGROUP": c.subgroup_width,
        "BYTES": c.bytes_of_x,
        "PREFETCH": c.prefetch_depth,
    },
    workgroup_bytes=_skinny_bytes,
    block=lambda c: c.r * (c.wg // c.lanes_per_row),
    links=_skinny_links,
    fit=fit_pieces,
    reads_quantised=lambda c: c.copies or not c.staged,
    integers_only=True,
    packed_only=True,
    self_test=SelfTest(rows=3, kind=_skinny_links),  # one trial per way to read x, as compiling is slow
)


def _tile_trials(can: Capabilities) -> dict[str, GemmConfig]:
    every = {
        "tile": TILE,
        "tile_split": replace(TILE, wg=128, fill=200),  # half the sums per lane
        "wide_tile": WIDE_TILE,
        "tile_f16": TILE_F16,
        "wide_tile_f16": replace(WIDE_TILE, tile="f16"),
    }
    return {name: config for name, config in every.items() if config.runs_on(can)}


def _tile_candidates(can: Capabilities, rows: int, precision: str) -> Iterator[GemmConfig]:
    if rows <= 4:
        return
    every = (TILE, replace(TILE, gap=1), WIDE_TILE, replace(WIDE_TILE, wg=128, tb=64))
    tiles = [replace(tile, fill=0 if can.software else FILL) for tile in every]
    yield from tiles
    if precision != "float32":
        yield from (replace(tile, tile="f16") for tile in tiles)


def _tile_bytes(config: GemmConfig) -> int:
    return 32 * (config.r + config.tb + 8 * config.gap) * (2 if config.tile == "f16" else 4)


GEMM_TILE = GemmKernel(
    name="linear/gemm_tile",
    op="linear",
    holes=(FORMAT, *TILED, BIAS, PLAIN_ROWS, STATISTICS.only(PLAIN_STATISTICS)),
    shared=(*DECODING, *PRODUCT),
    trials=_tile_trials,
    candidates=_tile_candidates,
    constants=lambda c: {"LANES_ALONG_M": c.lanes_per_row, "GAP": c.gap, "Tile": c.tile},
    workgroup_bytes=_tile_bytes,
    block=lambda c: c.r,
    links=lambda _: (),
)


def _int8_trials(_can: Capabilities) -> dict[str, GemmConfig]:
    return {
        "int8": gemm_int8(32, 8, 32, 16, activations="int16"),
        "int8_bytes": gemm_int8(16, 8, 32, 8, activations="int8", prefetch_depth=3),
        "int8_wide": gemm_int8(16, 8, 64, 16, activations="int16"),
        "int8_split": gemm_int8(32, 8, 32, 16, activations="int16", fill=200),
    }


def _int8_candidates(can: Capabilities, rows: int, precision: str) -> Iterator[GemmConfig]:
    if not can.software and rows > 4:
        for (wg, lanes, r, tb, depth), x in product(INT8_WAYS, activations(precision)):
            yield gemm_int8(wg, lanes, r, tb, activations=x, prefetch_depth=depth, fill=FILL * 256 // wg)


GEMM_INT8 = GemmKernel(
    name="linear/gemm_int8",
    op="linear",
    holes=(PACKED_FORMAT, *TILED, BIAS),
    shared=(*DECODING, *PRODUCT, "lib/dot16"),
    needs=Needs(lanes=MIN_SUBGROUP),  # required by quantise_rows, which runs first
    tolerance=INT16,
    trials=_int8_trials,
    candidates=_int8_candidates,
    constants=lambda c: {
        "LANES_ALONG_M": c.lanes_per_row,
        "PREFETCH": c.prefetch_depth,
        "BYTES": c.bytes_of_x,
    },
    workgroup_bytes=lambda c: 16 * c.prefetch_depth * (3 * c.r + (2 * c.bytes_of_x + 1) * c.tb),
    block=lambda c: c.r,
    links=lambda _: ("lib/dot16",),
    reads_quantised=lambda _: True,
    x_order="columns",
    integers_only=True,
    packed_only=True,
    self_test=SelfTest(rows=3),
)


SPLITK_REDUCE = Kernel(
    "linear/splitk_reduce",
    "linear",
    (EPILOGUE.only(*RESULTS), BIAS, RESIDUAL, TABLE, PLAIN),
    PRODUCT,
)
QUANTISE_ROWS = Kernel(
    "linear/quantise_rows",
    "linear",
    (LANES, NORM, ROWS.only("vec4")),
    (*QUANTISING, "lib/sum/subgroup"),
    core=(QUANTISING_ROWS,),
    needs=Needs(lanes=MIN_SUBGROUP),
    tolerance=INT16,
)
ROUND_ROWS = Kernel(
    "linear/round_rows",
    "linear",
    (LANES, NORM, PLAIN_ROWS),
    core=(ROUNDING, "lib/matrix_units/rounded"),
    needs=Needs(f16=True, matrix_units=True),
    tolerance=F16,
)
