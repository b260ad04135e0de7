"""Matrix products of many rows of x: tiles, and what stands before and after them."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from ..gpu.device import LEAST_SUBGROUP, Capabilities
from .gemm_config import (
    F16,
    FILL,
    INT16,
    MANY,
    TILE,
    TILE_F16,
    WIDE_TILE,
    GemmConfig,
    GemmKernel,
    MatrixTile,
    SelfTest,
    fit_lines,
    fit_subgroups,
    gemm_int8,
    gemm_matrix,
    line_bytes,
    line_gemm,
    line_tile,
    matrix_tile,
    matrix_tile_bytes,
    skinny_gemm,
    skinny_gemm_matrix,
    skinny_matrix_bytes,
    skinny_matrix_tile,
    subgroup_bytes,
    subgroup_gemm,
    subgroup_tile,
)
from .gemv import UNWORDED, activations
from .kernel import Hole, Kernel, Needs
from .parts import (
    BIAS,
    COLUMNS_OF_SUMS,
    DECODED_FOUR,
    DECODED_WEIGHTS,
    DECODING,
    EPILOGUE,
    FLOAT_SUMS,
    FORMAT,
    FURTHER_COLUMNS,
    HALVES,
    KEPT_SUMS,
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
    RESIDUAL_TO_NORM,
    RESULTS,
    ROUNDING,
    ROUNDING_IN_UNITS,
    ROWS,
    STATISTICS,
    SUM,
    SUMS_LEFT,
    SUMS_OF_WORKGROUP,
    TABLE,
    TILE_OF_SUBGROUP,
    TILE_OF_WORKGROUP,
    TILED,
    TO_NORM,
    UNIT,
    WORDS,
)
from .staging import fit_pieces

SKINNY_WAYS = (  # of skinny_gemm: lanes, those of a row, rows of W, and how rows of x come: quantised, copied or read
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
INT8_WAYS = (  # of gemm_int8: lanes, those along W, rows of W and of x, prefetch depth
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
    """As many chunks are staged as 48 KiB hold."""
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
    needs=Needs(lanes=LEAST_SUBGROUP),
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
    self_test=SelfTest(rows=3, kind=_skinny_links),  # which says how x is read: compiling takes most of the time
)


def _tile_trials(can: Capabilities) -> dict[str, GemmConfig]:
    every = {
        "tile": TILE,
        "tile_split": replace(TILE, wg=128, fill=200),  # each lane has half of the sums
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
    needs=Needs(lanes=LEAST_SUBGROUP),  # of quantise_rows, before it
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


def _matrix_trials(can: Capabilities) -> dict[str, GemmConfig]:
    """Fragments alone, in twos and in fours along both sides, and subgroups that share out columns."""
    tiles = {
        "matrix": MatrixTile(),
        "matrix_columns": MatrixTile(1, 1, 1, 1, 4, columns=256),
        "matrix_columns_ahead": MatrixTile(2, 2, 1, 1, 2, columns=128, prefetch_depth=2),
        "matrix_wide": MatrixTile(4, 1, 2, 1, 2, columns=128),
        "matrix_high": MatrixTile(1, 4, 2, 1, 2, columns=64),
    }
    every = {name: gemm_matrix(can.fragment, can.subgroup_size, tile) for name, tile in tiles.items()}
    return {**every, "matrix_split": replace(every["matrix"], fill=200)}


def _matrix_candidates(can: Capabilities, rows: int, _precision: str) -> Iterator[GemmConfig]:
    """Whatever the precision: whoever opened the device with matrix units has agreed to float16."""
    for most, tiles in MATRIX_TILES:
        if can.fragment and 4 < rows <= most:
            for tile, fill in product(tiles, MATRIX_FILLS if rows > 64 else MATRIX_FILLS[::2]):
                config = gemm_matrix(can.fragment, can.subgroup_size, tile, fill=fill)
                if config.runs_on(can):
                    yield config
            return


MATRIX_FILLS = 0, 132, 264  # workgroups that gemm_matrix wants
MATRIX_TILES = (  # that `tune` tries by so many rows of x
    (
        16,
        (
            MatrixTile(1, 1, 1, 1, 4, columns=256),
            MatrixTile(1, 1, 1, 1, 4, columns=512),
            MatrixTile(1, 1, 1, 1, 8, columns=512),
            MatrixTile(2, 1, 1, 1, 4, columns=256),
            MatrixTile(2, 1, 1, 1, 8, columns=256),
            MatrixTile(2, 1, 1, 1, 8, columns=256, prefetch_depth=2),
            MatrixTile(4, 1, 1, 1, 4, columns=128),
        ),
    ),
    (
        32,
        (
            MatrixTile(1, 2, 1, 1, 4, columns=256),
            MatrixTile(2, 2, 1, 1, 4, columns=128),
            MatrixTile(2, 2, 1, 1, 8, columns=256),
            MatrixTile(2, 2, 1, 1, 8, columns=256, prefetch_depth=2),
            MatrixTile(4, 2, 1, 1, 4, columns=128),
        ),
    ),
    (
        64,
        (
            MatrixTile(2, 4, 1, 1, 4, columns=128),
            MatrixTile(2, 2, 1, 2, 4, columns=128),
            MatrixTile(4, 2, 1, 2, 2, columns=128),
        ),
    ),
    (
        MANY,
        (
            MatrixTile(),
            MatrixTile(along_k=2),
            MatrixTile(2, 4),
            MatrixTile(2, 4, 4, 2),
        ),
    ),
)
GEMM_MATRIX = GemmKernel(
    name="linear/gemm_matrix",
    op="linear",
    holes=(
        FORMAT,
        *(EPILOGUE.but("quantise") if hole.name == EPILOGUE.name else hole for hole in TILED),
        BIAS,
        DECODED_WEIGHTS,
        Hole("fragments of a subgroup", ("lib/matrix_units/fragments",)),
        FURTHER_COLUMNS,
    ),
    shared=(*DECODING, *PRODUCT, "lib/matrix_units/tile", "lib/matrix_units/sums", HALVES, TILE_OF_WORKGROUP),
    core=(SUMS_LEFT, SUMS_OF_WORKGROUP),
    needs=Needs(f16=True, matrix_units=True),
    tolerance=F16,
    trials=_matrix_trials,
    candidates=_matrix_candidates,
    constants=matrix_tile,
    workgroup_bytes=matrix_tile_bytes,
    block=lambda c: c.r,
    links=lambda _: ("lib/matrix_units/tile", "lib/matrix_units/fragments", "lib/matrix_units/sums"),
    reads_quantised=lambda _: True,
)


def _skinny_matrix_trials(can: Capabilities) -> dict[str, GemmConfig]:
    """One, two and four fragments along both sides, and columns that are cut into parts."""
    tiles = {
        "skinny_matrix": MatrixTile(1, 1, 1, 1, 4, columns=64),
        "skinny_matrix_ahead": MatrixTile(2, 2, 1, 1, 3, columns=64, prefetch_depth=2),
        "skinny_matrix_wide": MatrixTile(4, 1, 1, 1, 2, columns=128),
        "skinny_matrix_rows": MatrixTile(1, 1, 4, 1, 1, columns=128),
        "skinny_matrix_high": MatrixTile(1, 4, 1, 1, 2, columns=64),
    }
    every = {name: skinny_gemm_matrix(can.fragment, can.subgroup_size, tile) for name, tile in tiles.items()}
    return {**every, "skinny_matrix_split": replace(every["skinny_matrix"], fill=200)}


def _skinny_matrix_candidates(can: Capabilities, rows: int, _precision: str) -> Iterator[GemmConfig]:
    for most, tiles in SKINNY_MATRIX_TILES:
        if can.fragment and 4 < rows <= most:
            for tile in tiles:
                config = skinny_gemm_matrix(can.fragment, can.subgroup_size, tile)
                if config.runs_on(can):
                    yield config
            return


SKINNY_MATRIX_TILES = (  # that `tune` tries by so many rows of x
    (16, (MatrixTile(1, 1, 1, 1, 4), MatrixTile(2, 1, 1, 1, 6), MatrixTile(1, 1, 4, 1, 1, columns=128))),
    (32, (MatrixTile(2, 2, 1, 1, 4), MatrixTile(1, 2, 4, 1, 1, columns=128))),
)
SKINNY_GEMM_MATRIX = GemmKernel(
    name="linear/skinny_gemm_matrix",
    op="linear",
    holes=(FORMAT, *TILED, BIAS, DECODED_WEIGHTS),
    shared=(*DECODING, *PRODUCT, "lib/matrix_units/sums"),
    core=(HALVES, SUMS_LEFT, SUMS_OF_WORKGROUP),
    needs=Needs(f16=True, matrix_units=True),
    tolerance=F16,
    trials=_skinny_matrix_trials,
    candidates=_skinny_matrix_candidates,
    constants=skinny_matrix_tile,
    workgroup_bytes=skinny_matrix_bytes,
    block=lambda c: c.r,
    links=lambda _: ("lib/matrix_units/sums",),
    reads_quantised=lambda _: True,
    x_order="fragments",
)


SUBGROUP_BARRIER, WORKGROUP_BARRIER = "lib/matrix_units/subgroup_barrier", "lib/matrix_units/workgroup_barrier"
ORDERED_SUBGROUP = 32  # lanes of subgroups whose barrier orders workgroup memory: NVIDIA's


def _barrier(config: GemmConfig) -> str:
    """How the lanes of a subgroup wait for each other."""
    apart = config.subgroup_width == ORDERED_SUBGROUP < config.wg
    return SUBGROUP_BARRIER if apart else WORKGROUP_BARRIER


def _subgroup_trials(can: Capabilities) -> dict[str, GemmConfig]:
    """Subgroups with rows of their own, that share out columns, in one round of workgroups and several, in parts."""
    every = {
        "subgroup": (8, 1, 2, 1),
        "subgroup_columns": (8, 1, MANY, 1),
        "subgroup_rounds": (3, 2, 1, 1),
        "subgroup_high": (2, 4, 4, 1),
        "subgroup_single": (1, 1, 2, 1),
        "subgroup_parts": (8, 1, 6, 3),
        "subgroup_high_parts": (2, 4, 4, 2),
    }
    return _by_subgroups(subgroup_gemm, can, every)


def _by_subgroups(
    kernel: Callable[..., GemmConfig], can: Capabilities, every: Mapping[str, tuple[int, int, int, int]]
) -> dict[str, GemmConfig]:
    """Configurations of so many subgroups, fragments of x, workgroups at most, and parts of columns."""
    return {
        name: kernel(can.fragment, can.subgroup_size, subgroups, fragments, max_workgroups=most, joined_parts=parts)
        for name, (subgroups, fragments, most, parts) in every.items()
        if parts == 1 or can.coherent
    }


def _subgroup_candidates(can: Capabilities, rows: int, _precision: str) -> Iterator[GemmConfig]:
    return _candidates_by_subgroups(subgroup_gemm, can, rows, ((16, 132), (8, 264)))


def _candidates_by_subgroups(
    kernel: Callable[..., GemmConfig], can: Capabilities, rows: int, ways: Sequence[tuple[int, int]]
) -> Iterator[GemmConfig]:
    """Those that a device runs, by so many subgroups and workgroups at most."""
    if can.fragment and 4 < rows <= 4 * can.fragment:
        fragments = 1 << (-(-rows // can.fragment) - 1).bit_length()
        for subgroups, most in ways:
            config = kernel(can.fragment, can.subgroup_size, subgroups, fragments, max_workgroups=most, joined_parts=0)
            if config.runs_on(can):
                yield config


def _whole(hole: Hole) -> Hole:
    """A hole of a kernel whose columns are never cut, and whose matrices are known when it is compiled."""
    if hole is RESIDUAL:
        return RESIDUAL.also(RESIDUAL_TO_NORM)
    if hole is TABLE:
        return TABLE.only("constant")
    return hole.but("partial_sums") if hole.name == EPILOGUE.name else hole


SUBGROUP_GEMM = replace(
    SKINNY_GEMM_MATRIX,
    name="linear/subgroup_gemm",
    holes=(
        *(_whole(hole) for hole in SKINNY_GEMM_MATRIX.holes),
        Hole("barrier", (SUBGROUP_BARRIER, WORKGROUP_BARRIER)),
        UNIT,
        COLUMNS_OF_SUMS,
        KEPT_SUMS,
        FURTHER_COLUMNS,
    ),
    shared=(*SKINNY_GEMM_MATRIX.shared, *ROUNDING_IN_UNITS, TO_NORM, TILE_OF_SUBGROUP),
    core=(HALVES,),
    part_needs={**SKINNY_GEMM_MATRIX.part_needs, SUBGROUP_BARRIER: Needs(subgroup_size=ORDERED_SUBGROUP)},
    trials=_subgroup_trials,
    candidates=_subgroup_candidates,
    constants=subgroup_tile,
    fit=fit_subgroups,
    workgroup_bytes=subgroup_bytes,
    links=lambda config: ("lib/matrix_units/sums", _barrier(config)),
)


def _line_trials(can: Capabilities) -> dict[str, GemmConfig]:
    """Each way to share columns, fragments of W and of x, in one round of workgroups and in several, in parts."""
    every = {
        "line_columns": (8, 1, MANY, 1),
        "line_pairs": (8, 1, 2, 1),
        "line_rounds": (3, 2, 1, 1),
        "line_two": (16, 2, 2, 1),
        "line_high": (2, 4, 4, 1),
        "line_single": (1, 1, 2, 1),
        "line_parts": (8, 1, 6, 3),
        "line_high_parts": (2, 4, 4, 2),
    }
    return _by_subgroups(line_gemm, can, every)


def _line_candidates(can: Capabilities, rows: int, _precision: str) -> Iterator[GemmConfig]:
    return _candidates_by_subgroups(line_gemm, can, rows, ((17, 132),))


LINE_GEMM = replace(
    SUBGROUP_GEMM,
    name="linear/line_gemm",
    holes=(
        *(hole for hole in SUBGROUP_GEMM.holes if hole is not DECODED_WEIGHTS),
        DECODED_WEIGHTS.maybe(),
        DECODED_FOUR,
    ),
    trials=_line_trials,
    candidates=_line_candidates,
    constants=line_tile,
    fit=fit_lines,
    workgroup_bytes=line_bytes,
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
    needs=Needs(lanes=LEAST_SUBGROUP),
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
