"""Distributes rows and columns of matrices over workgroups on matrix units, so that all have about the same work."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from .gemm_config import LINE, UNLIMITED, Fitted, GemmConfig, Matrices
from .matrix_tiles import subgroups_along_k

MAX_PARTS = 8


class Costs(NamedTuple):
    """Costs. The unit is 0.17 us: an H200 decodes and multiplies a fragment of W over 256 columns in that time."""

    stage: float  # per stage
    x: float  # per further x of a stage, if subgroups divide the columns
    reduction: float = 0  # per fragment of x, for adding up parts
    part: float = 0  # per part
    fragment: float = 0  # per fragment of W in a workgroup
    unit: float = 0  # per further unit of x that a stage is staged in


def fit_subgroups(config: GemmConfig, matrices: Matrices) -> Fitted:
    """Adapts a config of subgroup_gemm to some matrices."""
    rows = [shard.rows for shard in matrices.shards]
    return partition_rows(config, rows, max(matrices.widths), matrices.memory), None


def fit_lines(config: GemmConfig, matrices: Matrices) -> Fitted:
    """Adapts a config of line_gemm to some matrices."""
    rows, run = [shard.rows for shard in matrices.shards], matrices.shards[0].run
    return partition_lines(config, rows, max(matrices.widths), run, matrices.memory), None


def partition_rows(config: GemmConfig, rows: Sequence[int], width: int, memory: int) -> GemmConfig:
    """The config of subgroup_gemm for matrices of `rows[i]` rows each, with equal numbers of rows per workgroup.

    If a workgroup has few rows, its subgroups divide their columns.
    """
    most = config.wg // config.subgroup_width
    stage = 2 * max(64, 32 * config.subgroup_width // config.fragment)  # columns per subgroup, in two steps

    def shapes(height: int) -> Iterator[GemmConfig]:
        for along_k in (4, 2, 1):
            lanes = config.subgroup_width * height * along_k
            found = replace(config, wg=lanes, r=height * config.fragment, columns=stage * along_k)
            if height * along_k <= most and found.workgroup_bytes <= memory:
                yield found

    return _partition(config, rows, width, Costs(stage=3.75, x=0.25, part=10), shapes)


def _partition(
    config: GemmConfig,
    rows: Sequence[int],
    width: int,
    costs: Costs,
    shapes: Callable[[int], Iterator[GemmConfig]],
) -> GemmConfig:
    """The cheapest config for the rows. `shapes(n)` yields configs with n fragments of W per workgroup, best first."""
    blocks = [-(-count // config.fragment) for count in rows]
    found = []
    for parts in (config.joined_parts,) if config.joined_parts else range(1, MAX_PARTS + 1):
        for rounds in range(1, parts * sum(blocks) + 1):
            height = _fewest_fragments(blocks, config.max_workgroups * rounds // parts)
            shape = next(shapes(height), None) if height else None
            if shape is not None:
                found.append((_cost(shape, height, width, parts, rounds, costs), parts, shape))
                break
    assert found, f"{config} needs too much memory"
    _, parts, shape = min(found, key=lambda one: one[:2])
    return replace(shape, joined_parts=parts, max_workgroups=UNLIMITED)


def _fewest_fragments(blocks: Sequence[int], workgroups: int) -> int:
    """The minimum fragments of W per workgroup if no workgroup may have rows of two matrices; 0 if impossible."""
    if workgroups < len(blocks):
        return 0
    height = -(-sum(blocks) // workgroups)
    while sum(-(-count // height) for count in blocks) > workgroups:
        height += 1
    return height


def _cost(config: GemmConfig, height: int, width: int, parts: int, rounds: int, costs: Costs) -> float:
    """The estimated cost per multiprocessor, in the unit of `Costs`."""
    along_k = subgroups_along_k(config)
    stages = -(-width // (config.columns * parts))
    units = costs.unit * (4 // config.pairs - 1)
    stage_cost = height * config.columns / LINE + costs.stage + costs.x * (along_k - 1) + units
    reduction = costs.reduction + costs.part * parts + costs.fragment * height if parts > 1 else 0
    return rounds * (stages * stage_cost + reduction * config.fragments_of_x)


# Shapes of a workgroup by its maximum number of fragments of W, best first: the number of subgroups that divide the
# columns, fragments per subgroup, pairs of vec4s of x staged at a time, and their number of copies.
WORKGROUP_SHAPES = (
    (1, 4, 1, 4, 1),
    (1, 4, 1, 2, 1),
    (2, 2, 1, 4, 2),
    (2, 2, 1, 4, 1),
    (3, 4, 1, 2, 1),
    (5, 2, 1, 4, 1),
    (UNLIMITED, 1, 1, 4, 2),
    (UNLIMITED, 1, 1, 4, 1),
    (UNLIMITED, 1, 2, 4, 1),
    (UNLIMITED, 1, 1, 2, 1),
    (UNLIMITED, 1, 1, 1, 1),
)
MAX_STAGED_VECTORS = 16  # maximum vec4s of x (eight float16 each) per lane: with more, registers spill

LINE_COSTS = Costs(stage=1, x=0.9, reduction=3, fragment=1)
# Four fragments of x: the unit is 0.29 us. Fitted to 23 products; nearly all are within 10%.
TALL_LINE_COSTS = Costs(stage=3.4, x=0.9, reduction=2.1, part=0.5, fragment=0.7, unit=1.8)


def partition_lines(config: GemmConfig, rows: Sequence[int], width: int, run: int, memory: int) -> GemmConfig:
    """The config of line_gemm for matrices of `rows[i]` rows each, with equal numbers of rows per workgroup.

    Two fragments of W need many registers, above all with short runs. They pay off if they share several fragments of
    x.
    """
    max_own = 2 if config.fragments_of_x == 2 and run >= 32 else 1
    most = config.wg // config.subgroup_width

    def shapes(height: int) -> Iterator[GemmConfig]:
        for max_height, along_k, own, pairs, copies in WORKGROUP_SHAPES:
            subgroups = height // own * along_k
            found = replace(
                config,
                wg=config.subgroup_width * subgroups,
                r=height * config.fragment,
                fragments_of_w=own,
                columns=LINE * along_k,
                pairs=pairs,
                prefetch_depth=copies,
            )
            eights = along_k * 8 * pairs * config.tb  # vec4s of x in flight, over all lanes
            fits = height <= max_height and height % own == 0 and own <= max_own and subgroups <= most
            if fits and eights <= MAX_STAGED_VECTORS * found.wg and found.workgroup_bytes <= memory:
                yield found

    costs = LINE_COSTS if config.fragments_of_x < 4 else TALL_LINE_COSTS
    return _partition(config, rows, width, costs, shapes)
