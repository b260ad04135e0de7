"""What could serve each purpose on a device: the shapes and constants that tuning tries."""

from collections.abc import Iterator

from ..gpu.device import Capabilities
from ..gpu.tuning import (
    COOP,
    EXPERT_TILE,
    TILE,
    TILE_F16,
    ExpertShape,
    LinearShape,
    dot,
    expert_lane,
    expert_vec,
    lane,
    vec,
)

PRECISIONS = ("float32", "float16", "int8")  # what products may be rounded to, each with those before it
FEW = 32  # rows up to which lanes may stride over W


def linear_shapes(can: Capabilities, rows: int, precision: str = "float16") -> Iterator[LinearShape]:
    """Matrix kernels for so many rows."""
    tb = next((size for size in (1, 2, 4, 8) if size >= rows), 8)
    if can.subgroup_size == 8:
        wide = next((size for size in (1, 2, 4, 8, 16) if size >= rows), 16)
        yield from (lane(r, wide) for r in (1, 2, 4))
    if rows <= FEW:
        yield from _vec_shapes(can, tb, precision)
    if rows > 4:
        yield TILE
        if can.f16 and precision != "float32":
            yield TILE_F16
            if can.cooperative_matrix:
                yield COOP


def _vec_shapes(can: Capabilities, tb: int, precision: str) -> Iterator[LinearShape]:
    ways = [("workgroup", 64, r) for r in (2, 4)]
    if can.software and can.subgroup_size == 8:  # compiling takes long, and barriers never pay
        ways = [("one_subgroup", 8, r) for r in (4, 8)]
    elif can.subgroup:
        size = can.subgroup_size
        ways += [("one_subgroup", size, r) for r in (1, 2, 4, 8)]
        ways += [("subgroup", lanes, r) for lanes in (size, 2 * size, 4 * size) for r in (2, 4)]
    for lanes, wg, r in ways:
        yield vec(lanes, wg, r, tb)
        if precision == "int8":
            yield dot(lanes, wg, r, tb)


def expert_shapes(can: Capabilities) -> Iterator[ExpertShape]:
    """Kernels for products with experts, for few choices of each and for many."""
    if can.subgroup_size == 8:
        for r, tb in ((2, 1), (4, 1), (2, 2), (4, 2), (2, 4), (4, 4), (2, 8), (4, 8), (2, 16), (4, 16)):
            yield expert_lane(r, tb)
    for tb in (1, 2, 4, 8):
        yield expert_vec("workgroup", 64, 4, tb)
        if can.subgroup:
            yield from (expert_vec("one_subgroup", can.subgroup_size, r, tb) for r in (2, 4, 8))
            yield expert_vec("subgroup", 2 * can.subgroup_size, 4, tb)
    yield EXPERT_TILE


def lanes(can: Capabilities, current: int) -> list[int]:
    """Counts of lanes beside the current one, that the device can run."""
    tried = (8, 16, 32, 64, 128, 256)
    return [count for count in tried if count != current and can.subgroup_size <= count <= can.max_invocations]


def in_ladder(
    ladder: tuple[tuple[int, LinearShape], ...], bounds: tuple[int, ...]
) -> tuple[tuple[int, LinearShape], ...]:
    """The same choices by other bounds."""

    def at(bound: int) -> LinearShape:
        return next((shape for limit, shape in ladder if bound <= limit), ladder[-1][1])

    return tuple((bound, at(bound)) for bound in bounds)
