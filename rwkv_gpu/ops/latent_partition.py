"""How attention over latents is partitioned over workgroups: queries, and runs of the context.

All heads of a row look at the same latents, so a workgroup takes as many queries as it has registers for the sums of.
"""

from dataclasses import dataclass, replace

from ..gpu.device import Capabilities
from ..gpu.shader import Constant
from ..kernels.amd import is_amd
from ..kernels.tuning import Tuning
from .attention_partition import NO_WINDOW, SHORT_RUNS
from .run_shares import ONE, ROWS_BYTES, RunShares
from .vocabulary import PAGE, Cache

PROMPT_QUERIES, DECODE_QUERIES = 16, 20  # of a workgroup at most; 20 heads are those of GLM-4.7-Flash
MOST_RUNS = 256  # of a context, in decode
# Of long rows. A workgroup fills a multiprocessor: as many as there are for rows alike, though all but empty, cost 3 us
# of a layer of GLM-4.7-Flash by 16 rows at 4,096.
FURTHER_RUNS = 32
PROMPT_CHUNK = 8  # vec4s of queries and keys that are staged at a time
DECODE_CHUNKS = 24, 16, 8  # the same: few workgroups run, and each waits for every chunk
DECODE_KEYS = 32
DECODE_BYTES = 24 << 10  # of a workgroup there, so that processors have room for several
QUERY_FRAGMENTS, SUM_FRAGMENTS = 18, 8  # of a subgroup on matrix units: more do not stay in registers
AMD_QUERY_FRAGMENTS = 9  # 18 spill 59 of a Radeon RX 7900's, whose lanes have each number of a fragment twice
LANES_PER_QUERIES = 16  # lanes that 4 queries have at least


@dataclass(frozen=True)
class LatentPartition:
    """What a workgroup has of the queries and the context of a layer."""

    heads: int
    cache: Cache
    queries: int  # of a workgroup: heads of one row, or of neighbouring rows
    keys: int  # positions that it looks at a time
    chunk: int  # vec4s of the width that are staged at a time; 0 on matrix units, where all are
    lanes: int
    grain: int = PAGE  # a run of the context is a multiple of so many positions
    shares: RunShares = ONE
    width_parts: int = 0  # subgroups that share out the width of a query tile on matrix units; 0 without those

    @property
    def constants(self) -> dict[str, Constant]:
        """What kernels are specialised by."""
        return {
            "H": self.heads, "N": self.cache.latent, "WIDTH": self.cache.size, "PAGE": PAGE, "Q": self.queries,
            "WG": self.lanes,
        }  # fmt: skip

    @property
    def runs(self) -> int:
        """Of a row at most."""
        return self.shares.most

    @property
    def split(self) -> dict[str, Constant]:
        """What kernels know that attend, or reduce partial results."""
        return {"GRAIN": self.grain, "ONE_RUN": 0, "WINDOW": NO_WINDOW, **self.shares.constants}


def prompt_partition(heads: int, cache: Cache, tuning: Tuning, can: Capabilities) -> LatentPartition:
    """For a plan whose sequences have many rows."""
    keys = PAGE if latent_bytes(PROMPT_QUERIES, PAGE, PROMPT_CHUNK) <= can.max_workgroup_memory else PAGE // 2
    lanes = _lanes(PROMPT_QUERIES, tuning, can)
    return LatentPartition(heads, cache, PROMPT_QUERIES, keys, PROMPT_CHUNK, lanes)


def decode_partition(
    heads: int, cache: Cache, rows: int, pages: int, tuning: Tuning, can: Capabilities
) -> LatentPartition:
    """For a plan whose sequences have one row, and so many pages at most: split into runs where that is worth it."""
    splits = -(-heads // DECODE_QUERIES)
    queries = -(-heads // (4 * splits)) * 4
    grain = -(-tuning.attention.run_length // DECODE_KEYS) * DECODE_KEYS
    wanted = min(MOST_RUNS, max(4, tuning.attention.run_workgroups // (rows * splits)))
    runs = min(wanted, -(-pages * PAGE // grain))
    room = min(DECODE_BYTES, can.max_workgroup_memory - ROWS_BYTES)
    chunk = next(n for n in DECODE_CHUNKS if latent_bytes(queries, DECODE_KEYS, n) <= room)
    lanes = _lanes(queries, tuning, can)
    shares = _shares(runs, rows, pages)
    return LatentPartition(heads, cache, queries, DECODE_KEYS, chunk, lanes, grain, shares)


def _shares(runs: int, rows: int, pages: int) -> RunShares:
    return RunShares.by_length(runs, rows, pages, FURTHER_RUNS) if runs > 1 and pages > SHORT_RUNS else ONE


def _lanes(queries: int, tuning: Tuning, can: Capabilities) -> int:
    lanes = max(min(256, 4 * tuning.attention.workgroup_lanes), LANES_PER_QUERIES * queries // 4)
    return min(can.max_invocations, 1 << (lanes - 1).bit_length())


def matrix_prompt_partition(heads: int, cache: Cache, tuning: Tuning, can: Capabilities) -> LatentPartition | None:
    """For a plan whose sequences have many rows, on matrix units; None where they do not serve."""
    return _on_matrix_units(heads, cache, 2, tuning, can)


def matrix_decode_partition(
    heads: int, cache: Cache, rows: int, pages: int, tuning: Tuning, can: Capabilities
) -> LatentPartition | None:
    """For a plan whose sequences have one row, and so many pages at most, on matrix units.

    There the last workgroup never joins runs: on an H200 it then read what was not written yet.
    """
    whole = _on_matrix_units(heads, cache, 1 if heads <= can.fragment else 2, tuning, can)
    if whole is None or pages <= SHORT_RUNS:
        return whole
    grain = -(-tuning.attention.latent_run_length // whole.keys) * whole.keys
    blocks = rows * -(-heads // whole.queries)
    runs = max(1, min(MOST_RUNS, tuning.attention.latent_workgroups // blocks, -(-pages * PAGE // grain)))
    return replace(whole, grain=grain, shares=_shares(runs, rows, pages))


def _on_matrix_units(heads: int, cache: Cache, tiles: int, tuning: Tuning, can: Capabilities) -> LatentPartition | None:
    """Workgroups of so many query tiles, or of one, whose width as many subgroups share out as there may be."""
    side, size, latent = can.fragment, cache.size, cache.latent
    wanted = tuning.attention.prompts_on_matrix_units and can.latents_on_matrix_units
    if not (wanted and side and can.subgroup_size):
        return None
    most = AMD_QUERY_FRAGMENTS if is_amd(can) else QUERY_FRAGMENTS
    ways = (tiles, 2), (tiles, 1), (1, 4)
    for tiles, parts in ways if size % side == latent % side == PAGE % (2 * side) == 0 else ():
        subgroups = tiles * 2 * parts  # by halves of the keys
        lanes = subgroups * can.subgroup_size
        if (
            size % (side * parts) == 0
            and size // (side * parts) <= most
            and tiles * -(-latent // (side * subgroups)) <= SUM_FRAGMENTS
            and lanes % (2 * side) == 0
            and lanes <= can.max_invocations
            and matrix_bytes(cache, side, tiles, subgroups, lanes) <= can.max_workgroup_memory
        ):
            return LatentPartition(heads, cache, tiles * side, 2 * side, 0, lanes, width_parts=parts)
    return None


def matrix_bytes(cache: Cache, side: int, tiles: int, subgroups: int, lanes: int) -> int:
    """Of workgroup memory there: latents, sums of a fragment for each subgroup, pages, and what is known of queries."""
    keys = 2 * side
    stride = max(cache.size, cache.latent + keys) + 8
    return 2 * keys * stride + 4 * (subgroups * side * side + lanes) + 12 * tiles * side + 32 + ROWS_BYTES


def latent_bytes(queries: int, keys: int, chunk: int) -> int:
    """Of workgroup memory: chunks of keys and queries, scores, and what is known of each query."""
    return 16 * chunk * (keys + 1 + queries) + 4 * (keys * queries + 3 * queries)
