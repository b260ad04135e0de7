"""Partitions latent attention over workgroups: queries, and runs of the context.

All heads of a row attend to the same latents. A workgroup has as many queries as the registers can hold sums.
"""

from dataclasses import dataclass, replace

from ..gpu.device import Capabilities
from ..gpu.shader import Constant
from ..kernels.amd import is_amd
from ..kernels.tuning import Tuning
from .attention_partition import NO_WINDOW, SHORT_RUNS
from .run_shares import ONE, ROWS_BYTES, RunShares
from .vocabulary import PAGE, Cache

PROMPT_QUERIES, DECODE_QUERIES = 16, 20  # maximum queries per workgroup; GLM-4.7-Flash has 20 heads
MAX_RUNS = 256  # maximum runs of a context, in decode
# Limit for further runs of long rows. A workgroup fills a multiprocessor, so even workgroups that are almost idle cost
# time: twice as many cost 3 µs per layer of GLM-4.7-Flash at batch 16 and 4,096 positions.
FURTHER_RUNS = 32
PROMPT_CHUNK = 8  # vec4s of queries and keys that are staged at a time
DECODE_CHUNKS = 24, 16, 8  # the same for decode, whose few workgroups wait for each chunk
DECODE_KEYS = 32
DECODE_BYTES = 24 << 10  # maximum workgroup memory in decode, so that a multiprocessor runs several workgroups
QUERY_FRAGMENTS, SUM_FRAGMENTS = 18, 8  # maximum per subgroup on matrix units: more would not stay in registers
AMD_QUERY_FRAGMENTS = 9  # AMD: lanes hold fragments twice, so with 18, 59 registers spill (RX 7900)
LANES_PER_QUERIES = 16  # minimum number of lanes for 4 queries


@dataclass(frozen=True)
class LatentPartition:
    """The distribution of a layer's queries and context over workgroups."""

    heads: int
    cache: Cache
    queries: int  # queries per workgroup: heads of one row, or of neighbouring rows
    keys: int  # positions that a workgroup processes at a time
    chunk: int  # vec4s of the width that are staged at a time; 0: the whole width, on matrix units
    lanes: int
    grain: int = PAGE  # the length of a run is a multiple of this
    shares: RunShares = ONE
    width_parts: int = 0  # subgroups that divide the width of a query tile on matrix units; 0 without matrix units

    @property
    def constants(self) -> dict[str, Constant]:
        """Constants of all kernels."""
        return {
            "H": self.heads, "N": self.cache.latent, "WIDTH": self.cache.size, "PAGE": PAGE, "Q": self.queries,
            "WG": self.lanes,
        }  # fmt: skip

    @property
    def runs(self) -> int:
        """The maximum number of runs of a row."""
        return self.shares.most

    @property
    def split(self) -> dict[str, Constant]:
        """Constants of kernels that attend, or reduce partial results."""
        window = self.cache.window or NO_WINDOW
        return {"GRAIN": self.grain, "ONE_RUN": 0, "WINDOW": window, **self.shares.constants}


def prompt_partition(heads: int, cache: Cache, tuning: Tuning, can: Capabilities) -> LatentPartition:
    """The partition for sequences of many rows."""
    keys = PAGE if latent_bytes(PROMPT_QUERIES, PAGE, PROMPT_CHUNK) <= can.max_workgroup_memory else PAGE // 2
    lanes = _lanes(PROMPT_QUERIES, tuning, can)
    return LatentPartition(heads, cache, PROMPT_QUERIES, keys, PROMPT_CHUNK, lanes)


def decode_partition(
    heads: int, cache: Cache, rows: int, pages: int, tuning: Tuning, can: Capabilities
) -> LatentPartition:
    """The partition for decode, with at most `max_pages` pages per sequence; splits the context if that is faster."""
    splits = -(-heads // DECODE_QUERIES)
    queries = -(-heads // (4 * splits)) * 4
    grain = -(-tuning.attention.run_length // DECODE_KEYS) * DECODE_KEYS
    wanted = min(MAX_RUNS, max(4, tuning.attention.run_workgroups // (rows * splits)))
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
    """The partition for sequences of many rows on matrix units; None if these cannot be used."""
    return _on_matrix_units(heads, cache, 2, tuning, can)


def matrix_decode_partition(
    heads: int, cache: Cache, rows: int, pages: int, tuning: Tuning, can: Capabilities
) -> LatentPartition | None:
    """The partition for decode on matrix units, with at most `max_pages` pages per sequence.

    The last workgroup never reduces runs here: on an H200 it then read data that was not written yet.
    """
    whole = _on_matrix_units(heads, cache, 1 if heads <= can.fragment else 2, tuning, can)
    if whole is None or pages <= SHORT_RUNS:
        return whole
    grain = -(-tuning.attention.latent_run_length // whole.keys) * whole.keys
    blocks = rows * -(-heads // whole.queries)
    runs = max(1, min(MAX_RUNS, tuning.attention.latent_workgroups // blocks, -(-pages * PAGE // grain)))
    return replace(whole, grain=grain, shares=_shares(runs, rows, pages))


def _on_matrix_units(heads: int, cache: Cache, tiles: int, tuning: Tuning, can: Capabilities) -> LatentPartition | None:
    """Workgroups of `tiles` query tiles, else of one. As many subgroups divide the width as the device allows."""
    side, size, latent = can.fragment, cache.size, cache.latent
    wanted = tuning.attention.prompts_on_matrix_units and can.latents_on_matrix_units and not cache.window
    if not (wanted and side and can.subgroup_size):
        return None
    most = AMD_QUERY_FRAGMENTS if is_amd(can) else QUERY_FRAGMENTS
    ways = (tiles, 2), (tiles, 1), (1, 4)
    for tiles, parts in ways if size % side == latent % side == PAGE % (2 * side) == 0 else ():
        subgroups = tiles * 2 * parts  # each half of the keys has its own subgroups
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
    """Bytes of workgroup memory on matrix units: latents, sums of subgroups, pages, and statistics of queries."""
    keys = 2 * side
    stride = max(cache.size, cache.latent + keys) + 8
    return 2 * keys * stride + 4 * (subgroups * side * side + lanes) + 12 * tiles * side + 32 + ROWS_BYTES


def latent_bytes(queries: int, keys: int, chunk: int) -> int:
    """Bytes of workgroup memory: chunks of keys and queries, scores, and statistics of each query."""
    return 16 * chunk * (keys + 1 + queries) + 4 * (keys * queries + 3 * queries)
