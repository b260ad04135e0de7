"""What could serve each purpose on a device: the shapes and constants that tuning tries."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product

from ..gpu.device import Capabilities
from ..kernels.expert_config import EXPERT_TILE, ExpertConfig, expert_gemm_lane, expert_gemv, expert_gemv_int
from ..kernels.tuning import (
    COOP,
    FILL,
    MANY,
    TILE,
    WIDE_TILE,
    GemmConfig,
    gemm_int8,
    gemm_lane,
    gemv,
    gemv_int,
    skinny_gemm,
)

PRECISIONS = ("float32", "float16", "int8")  # what products may be rounded to, each with those before it
ROW_WAYS = (  # of linear_row: lanes, those of a row, rows, workgroups; of linear_once: chunks ahead, subgroups of a row
    (256, 16, 2, 528, 1, 1),
    (256, 32, 2, 528, 1, 1),
    (512, 16, 2, 264, 1, 1),
    (512, 32, 2, 264, 1, 1),
    (1024, 32, 2, 264, 1, 1),
    (1024, 32, 1, 132, 1, 1),
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
FEW_WAYS = (  # of linear_few: lanes, those of a row, rows of W, and whether rows of x are rounded, copied or read there
    (320, 32, 1, "rounded"),
    (640, 32, 1, "rounded"),
    (640, 32, 2, "rounded"),
    (640, 16, 1, "rounded"),
    (640, 16, 2, "rounded"),
    (640, 16, 4, "rounded"),
    (512, 16, 2, "rounded"),
    (512, 32, 2, "rounded"),
    (320, 16, 2, "copied"),
    (640, 16, 2, "copied"),
    (640, 32, 2, "copied"),
    (128, 32, 2, "read"),
    (128, 32, 4, "read"),
)
EXPERT_WAYS = ((256, 16, 2), (512, 16, 2), (512, 16, 4), (1024, 16, 2))  # of experts_row: lanes, those of a row, rows
DOT_WAYS = (  # of linear_dot: lanes, those along W, rows of W and of x, chunks
    (128, 16, 128, 64, 2),
    (128, 8, 64, 128, 2),
    (128, 8, 64, 128, 1),
    (256, 16, 128, 128, 2),
    (64, 16, 64, 16, 2),
)
FEW = 64  # rows up to which lanes may stride over W


def gemm_configs(
    can: Capabilities, rows: int, precision: str = "float32", packed: bool = False
) -> Iterator[GemmConfig]:
    """Matrix kernels for so many rows, as far as their memory is there; for formats of small integers some more."""
    integers = (*_several(can, rows, precision), *_dots(can, rows, precision)) if packed else ()
    every = (*integers, *_few(can, rows, precision), *_many(can, rows, precision))
    yield from (shape for shape in every if shape.workgroup_bytes <= can.max_workgroup_memory)


def _few(can: Capabilities, rows: int, precision: str) -> Iterator[GemmConfig]:
    if can.subgroup_size == 8:
        wide = next((size for size in (1, 2, 4, 8, 16) if size >= rows), 16)
        yield from (gemm_lane(r, wide) for r in (1, 2, 4))
    if rows > FEW:
        return
    most = next((size for size in (1, 2, 4, 8) if size >= rows), 8)
    ways = [(64, 16, 2), (64, 16, 4), (64, 8, 4)]  # lanes, those of a row, rows
    if can.software and can.subgroup_size == 8:  # compiling takes long, and barriers never pay
        ways = [(8, 8, 4), (8, 8, 8)]
    elif can.subgroup:
        ways = [(128, lanes_per_row, r) for lanes_per_row in (8, 16, 32, 64) for r in (2, 4)] + [
            (256, 16, 4),
            (256, 32, 4),
        ]
    for tb in sorted({most, min(most, 4)}):
        yield from (gemv(wg, lanes_per_row, r, tb, subgroup_width=can.subgroup_width) for wg, lanes_per_row, r in ways)
    if rows == 1 and can.subgroup:
        yield from _row(can, precision)


def _row(can: Capabilities, precision: str) -> Iterator[GemmConfig]:
    """For one row of x."""
    forms = _forms(precision)
    if can.software:
        yield from (
            gemv_int(
                can.subgroup_width,
                can.subgroup_width,
                4,
                subgroup_width=can.subgroup_width,
                max_workgroups=MANY,
                activations=x,
            )
            for x in forms
        )
        return
    for wg, lanes_per_row, r, most, prefetch_depth, subgroups_per_row in ROW_WAYS:
        if lanes_per_row <= can.subgroup_width and wg <= can.max_invocations:
            ways = (
                gemv_int(
                    wg,
                    lanes_per_row,
                    r,
                    subgroup_width=can.subgroup_width,
                    max_workgroups=most,
                    prefetch_depth=prefetch_depth,
                    subgroups_per_row=subgroups_per_row,
                    activations=x,
                )
                for x in forms
            )
            yield from ways


def _several(can: Capabilities, rows: int, precision: str) -> Iterator[GemmConfig]:
    """For some rows of x as integers, of which as many chunks are staged as 48 KiB hold."""
    if not can.subgroup or can.software or not 1 < rows <= 32:
        return
    tb = min(4, 1 << (rows - 1).bit_length())
    for (wg, lanes_per_row, r, how), x in product(FEW_WAYS, _forms(precision)):
        if wg <= can.max_invocations and lanes_per_row <= can.subgroup_width:
            staged = 640 // tb if how != "read" else 0
            copies = how == "copied"
            yield skinny_gemm(
                wg,
                lanes_per_row,
                r,
                tb,
                staged=staged,
                subgroup_width=can.subgroup_width,
                max_workgroups=264,
                activations=x,
                copies=copies,
            )


def _dots(can: Capabilities, rows: int, precision: str) -> Iterator[GemmConfig]:
    """Tiles of integers."""
    if can.subgroup and not can.software and rows > 4:
        for (wg, lanes_per_row, r, tb, prefetch_depth), x in product(DOT_WAYS, _forms(precision)):
            if wg <= can.max_invocations:
                yield gemm_int8(
                    wg, lanes_per_row, r, tb, activations=x, prefetch_depth=prefetch_depth, fill=FILL * 256 // wg
                )


def _forms(precision: str) -> tuple[str, ...]:
    """What rows of x may be rounded to, where W is small integers."""
    return ("int16", "int8") if precision == "int8" else ("int16",)


def _many(can: Capabilities, rows: int, precision: str) -> Iterator[GemmConfig]:
    if rows <= 4:
        return
    every = (TILE, replace(TILE, gap=1), WIDE_TILE, replace(WIDE_TILE, wg=128, tb=64))
    tiles = [replace(tile, fill=0 if can.software else FILL) for tile in every]
    yield from tiles
    if can.f16 and precision != "float32":
        yield from (replace(tile, tile="f16") for tile in tiles)
        if can.cooperative_matrix:
            yield COOP


def expert_configs(can: Capabilities) -> Iterator[ExpertConfig]:
    """Kernels for products with experts, for few choices of each and for many."""
    if can.subgroup_size == 8:
        for r, tb in ((2, 1), (4, 1), (2, 2), (4, 2), (2, 4), (4, 4), (2, 8), (4, 8), (2, 16), (4, 16)):
            yield expert_gemm_lane(r, tb)
    for tb in (1, 2, 4, 8):
        yield expert_gemv(64, 16, 4, tb, summing=(64, 4))
        if can.subgroup:
            ways = ((8, 4, 32, 2), (16, 2, 32, 4), (16, 4, 64, 2), (16, 8, 64, 4), (32, 2, 128, 2), (32, 4, 128, 4))
            for lanes_per_row, r, sum_lanes_per_row, sum_r in ways:
                shape = expert_gemv(
                    128, lanes_per_row, r, tb, subgroup_width=can.subgroup_width, summing=(sum_lanes_per_row, sum_r)
                )
                if shape.workgroup_bytes <= can.max_workgroup_memory:
                    yield shape
    if can.subgroup and not can.software:
        for (wg, lanes_per_row, r), (sum_lanes_per_row, sum_r) in product(EXPERT_WAYS, ((16, 1), (16, 2), (32, 1))):
            if wg <= can.max_invocations and sum_lanes_per_row <= can.subgroup_width:
                yield expert_gemv_int(
                    wg, lanes_per_row, r, subgroup_width=can.subgroup_width, summing=(sum_lanes_per_row, sum_r)
                )
    yield EXPERT_TILE


def lanes(can: Capabilities, current: int) -> list[int]:
    """Counts of lanes beside the current one, that the device can run."""
    tried = (8, 16, 32, 64, 128, 256, 512, 1024)
    return [count for count in tried if count != current and can.subgroup_size <= count <= can.max_invocations]


def in_ladder(
    ladder: tuple[tuple[int, GemmConfig], ...], bounds: tuple[int, ...]
) -> tuple[tuple[int, GemmConfig], ...]:
    """The same choices by other bounds."""

    def at(bound: int) -> GemmConfig:
        return next((shape for limit, shape in ladder if bound <= limit), ladder[-1][1])

    return tuple((bound, at(bound)) for bound in bounds)
