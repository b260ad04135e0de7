"""Distributes rows and columns of matrices over workgroups on matrix units, so that all have about the same work."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import NamedTuple

from .gemm_config import LINE, MANY, Fitted, GemmConfig, Matrices
from .matrix_tiles import subgroups_along_k

MOST_PARTS = 8


class Waits(NamedTuple):
    """Costs. The unit is 0.17 us: an H200 decodes and multiplies a fragment of W over 256 columns in that time."""

    stage: float  # per stage
    x: float  # per further x of a stage, if subgroups divide the columns
    joining: float = 0  # per fragment of x, for adding up parts
    part: float = 0  # per part
    fragment: float = 0  # per fragment of W in a workgroup
    unit: float = 0  # per further unit of x that a stage is staged in


def fit_subgroups(config: GemmConfig, matrices: Matrices) -> Fitted:
    """Adapts a config of subgroup_gemm to some matrices."""
    rows = [shard.rows for shard in matrices.shards]
    return spread_rows(config, rows, max(matrices.widths), matrices.memory), None


def fit_lines(config: GemmConfig, matrices: Matrices) -> Fitted:
    """Adapts a config of line_gemm to some matrices."""
    rows, run = [shard.rows for shard in matrices.shards], matrices.shards[0].run
    return spread_lines(config, rows, max(matrices.widths), run, matrices.memory), None


def spread_rows(config: GemmConfig, rows: Sequence[int], width: int, memory: int) -> GemmConfig:
    """The config of subgroup_gemm for matrices of `rows[i]` rows each, with equal numbers of rows per workgroup.

    If a workgroup has few rows, its subgroups divide their columns.
    """
    most = config.wg // config.subgroup_width
    stage = 2 * max(64, 32 * config.subgroup_width // config.fragment)  # columns per subgroup, in two steps

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
    """The cheapest config for the rows. `shapes(n)` yields configs with n fragments of W per workgroup, best first."""
    blocks = [-(-count // config.fragment) for count in rows]
    found = []
    for parts in (config.joined_parts,) if config.joined_parts else range(1, MOST_PARTS + 1):
        for rounds in range(1, parts * sum(blocks) + 1):
            high = _high(blocks, config.max_workgroups * rounds // parts)
            shape = next(shapes(high), None) if high else None
            if shape is not None:
                found.append((_work(shape, high, width, parts, rounds, waits), parts, shape))
                break
    assert found, f"{config} needs too much memory"
    _, parts, shape = min(found, key=lambda one: one[:2])
    return replace(shape, joined_parts=parts, max_workgroups=MANY)


def _high(blocks: Sequence[int], workgroups: int) -> int:
    """The minimum fragments of W per workgroup if no workgroup may have rows of two matrices; 0 if impossible."""
    if workgroups < len(blocks):
        return 0
    high = -(-sum(blocks) // workgroups)
    while sum(-(-count // high) for count in blocks) > workgroups:
        high += 1
    return high


def _work(config: GemmConfig, high: int, width: int, parts: int, rounds: int, waits: Waits) -> float:
    """The estimated cost per multiprocessor, in the unit of `Waits`."""
    along_k = subgroups_along_k(config)
    stages = -(-width // (config.columns * parts))
    units = waits.unit * (4 // config.pairs - 1)
    a_stage = high * config.columns / LINE + waits.stage + waits.x * (along_k - 1) + units
    joining = waits.joining + waits.part * parts + waits.fragment * high if parts > 1 else 0
    return rounds * (stages * a_stage + joining * config.fragments_of_x)


# Shapes of a workgroup by its maximum number of fragments of W, best first: the number of subgroups that divide the
# columns, fragments per subgroup, pairs of vec4s of x staged at a time, and their number of copies.
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
MOST_EIGHTS = 16  # maximum vec4s of x (eight float16 each) per lane: with more, registers spill

WAITS_OF_LINES = Waits(stage=1, x=0.9, joining=3, fragment=1)
# Four fragments of x: the unit is 0.29 us. Fitted to 23 products; nearly all are within 10%.
WAITS_OF_HIGH_LINES = Waits(stage=3.4, x=0.9, joining=2.1, part=0.5, fragment=0.7, unit=1.8)


def spread_lines(config: GemmConfig, rows: Sequence[int], width: int, run: int, memory: int) -> GemmConfig:
    """The config of line_gemm for matrices of `rows[i]` rows each, with equal numbers of rows per workgroup.

    Two fragments of W need many registers, above all with short runs. They pay off if they share several fragments of
    x.
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
            eights = along_k * 8 * pairs * config.tb  # vec4s of x in flight, over all lanes
            fits = high <= highest and high % own == 0 and own <= most_own and subgroups <= most
            if fits and eights <= MOST_EIGHTS * found.wg and found.workgroup_bytes <= memory:
                yield found

    waits = WAITS_OF_LINES if config.fragments_of_x < 4 else WAITS_OF_HIGH_LINES
    return _spread(config, rows, width, waits, shapes)
