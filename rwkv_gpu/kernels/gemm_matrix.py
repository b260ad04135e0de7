"""Kernels of matrix products on matrix units: tiles for many rows of x, and kernels for few rows."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

from ..gpu.device import Capabilities
from .gemm_config import (
    F16,
    UNLIMITED,
    GemmConfig,
    GemmKernel,
    MatrixTile,
    gemm_matrix,
    line_gemm,
    subgroup_gemm,
)
from .gemm_partition import fit_lines, fit_subgroups
from .kernel import Hole, Needs
from .matrix_tiles import (
    line_bytes,
    line_tile,
    matrix_tile,
    matrix_tile_bytes,
    subgroup_bytes,
    subgroup_tile,
)
from .parts import (
    BIAS,
    BLOCK,
    COLUMNS_OF_SUMS,
    DECODED_FOUR,
    DECODED_WEIGHTS,
    DECODING,
    EPILOGUE,
    FORMAT,
    FURTHER_COLUMNS,
    HALVES,
    KEPT_SUMS,
    LAST_WORKGROUP,
    ORDERED_SUBGROUP,
    PRODUCT,
    RESIDUAL,
    RESIDUAL_TO_NORM,
    ROUNDING_IN_UNITS,
    SUMS_LEFT,
    SUMS_OF_WORKGROUP,
    TABLE,
    TILE_OF_SUBGROUP,
    TILE_OF_WORKGROUP,
    TILED,
    TO_NORM,
    UNIT,
)


def _matrix_trials(can: Capabilities) -> dict[str, GemmConfig]:
    """One, two and four fragments along both sides, and subgroups that divide the columns."""
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
    """Ignores the precision: a user who opens a device with matrix units accepts float16."""
    for most, tiles in MATRIX_TILES:
        if can.fragment and 4 < rows <= most:
            for tile, fill in product(tiles, MATRIX_FILLS if rows > 64 else MATRIX_FILLS[::2]):
                config = gemm_matrix(can.fragment, can.subgroup_size, tile, fill=fill)
                if config.runs_on(can):
                    yield config
            return


MATRIX_FILLS = 0, 132, 264  # values of `fill` for gemm_matrix
MATRIX_TILES = (  # tiles that `tune` tries, by rows of x
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
        UNLIMITED,
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
    core=(SUMS_LEFT, SUMS_OF_WORKGROUP, BLOCK),
    needs=Needs(f16=True, matrix_units=True),
    tolerance=F16,
    trials=_matrix_trials,
    candidates=_matrix_candidates,
    constants=matrix_tile,
    workgroup_bytes=lambda c: matrix_tile_bytes(c) + 4 * c.tb,
    block=lambda c: c.r,
    links=lambda _: ("lib/matrix_units/tile", "lib/matrix_units/fragments", "lib/matrix_units/sums"),
    reads_quantised=lambda _: True,
)


SUBGROUP_BARRIER, WORKGROUP_BARRIER = "lib/matrix_units/subgroup_barrier", "lib/matrix_units/workgroup_barrier"


def _barrier(config: GemmConfig) -> str:
    """The part that synchronises the lanes of a subgroup."""
    apart = config.subgroup_width == ORDERED_SUBGROUP < config.wg
    return SUBGROUP_BARRIER if apart else WORKGROUP_BARRIER


def _subgroup_trials(can: Capabilities) -> dict[str, GemmConfig]:
    """Trials: subgroups divide rows or columns, workgroups have one block or several, and columns may be split."""
    every = {
        "subgroup": (8, 1, 2, 1),
        "subgroup_columns": (8, 1, UNLIMITED, 1),
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
    """Trial configurations, given subgroups, fragments of x, maximum workgroups, and parts of columns of each."""
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
    """Candidates that a device can run, over numbers of subgroups and maximum workgroups."""
    if can.fragment and 4 < rows <= 4 * can.fragment:
        fragments = 1 << (-(-rows // can.fragment) - 1).bit_length()
        for subgroups, most in ways:
            config = kernel(can.fragment, can.subgroup_size, subgroups, fragments, max_workgroups=most, joined_parts=0)
            if config.runs_on(can):
                yield config


def _whole(hole: Hole) -> Hole:
    """A hole for a kernel without split columns, and with a constant table of matrices."""
    if hole is RESIDUAL:
        return RESIDUAL.also(RESIDUAL_TO_NORM)
    if hole is TABLE:
        return TABLE.only("constant")
    return hole.but("partial_sums") if hole.name == EPILOGUE.name else hole


SUBGROUP_GEMM = GemmKernel(
    name="linear/subgroup_gemm",
    op="linear",
    holes=(
        *(_whole(hole) for hole in (FORMAT, *TILED, BIAS, DECODED_WEIGHTS)),
        Hole("barrier", (SUBGROUP_BARRIER, WORKGROUP_BARRIER)),
        UNIT,
        COLUMNS_OF_SUMS,
        KEPT_SUMS,
        FURTHER_COLUMNS,
    ),
    shared=(
        *(*DECODING, *PRODUCT, "lib/matrix_units/sums"),
        *(*ROUNDING_IN_UNITS, TO_NORM, TILE_OF_SUBGROUP, LAST_WORKGROUP),
    ),
    core=(HALVES, BLOCK),
    needs=Needs(f16=True, matrix_units=True),
    part_needs={SUBGROUP_BARRIER: Needs(subgroup_size=ORDERED_SUBGROUP)},
    tolerance=F16,
    trials=_subgroup_trials,
    candidates=_subgroup_candidates,
    constants=subgroup_tile,
    fit=fit_subgroups,
    workgroup_bytes=subgroup_bytes,
    block=lambda c: c.r,
    links=lambda config: ("lib/matrix_units/sums", _barrier(config)),
    reads_quantised=lambda _: True,
    x_order="fragments",
)


def _line_trials(can: Capabilities) -> dict[str, GemmConfig]:
    """Each way to divide columns and fragments of W and x, one block per workgroup or several, with split columns."""
    every = {
        "line_columns": (8, 1, UNLIMITED, 1),
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
