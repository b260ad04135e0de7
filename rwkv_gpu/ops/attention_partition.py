"""Partitions attention over workgroups and lanes: heads, rows, runs of the context, and lanes that share a key."""

from dataclasses import dataclass, replace

from ..gpu.device import Capabilities
from ..gpu.shader import Constant
from ..kernels.tuning import Tuning
from .run_shares import MAX_RUNS, ONE, ROWS_BYTES, SPLIT_PAGES, RunShares
from .vocabulary import PAGE, Attention, Cache

QUERY_FLOATS = 2048  # floats of all queries of a workgroup: half of the minimum workgroup memory
MAX_QUERIES = 16
LANE_FLOATS = 32  # if lanes share keys: query floats per lane, and sums per lane; more would not stay in registers
USUAL_SIZE = 128  # head size to which the tuned lanes per key apply; larger heads get more lanes
NO_WINDOW = 1 << 31
DRAFT_ROWS = 16  # maximum rows of a step that verifies drafts
SHORT_RUNS = 2  # up to this many runs, no separate dispatch reduces them
# Up to this many positions, one workgroup is faster than several runs. Measured on an H200, for a layer of Llama 8B: 2
# µs faster at 50 positions, 0.5 to 1 µs faster at 100, and 1 µs slower at 200.
ONE_RUN = 128
MAX_FRAGMENTS = 8  # maximum fragments of a head on matrix units, or of each of two pieces of it in prompts
MAX_LOADS = 16  # on matrix units: maximum loads of keys in flight per lane
JOINED_BUFFERS = 10  # storage buffers of a kernel that attends and reduces


@dataclass(frozen=True)
class AttentionPartition:
    """The distribution of a layer's heads, rows and keys over workgroups and lanes."""

    heads: int
    kv_heads: int
    size: int
    window: int  # maximum positions that a row reads; 0: all
    shared: int  # heads per workgroup, all of one KV head
    rows: int = 1  # rows per workgroup
    grain: int = PAGE  # the length of a run is a multiple of this
    shares: RunShares = ONE
    one_run: int = 0  # positions up to which there is one run
    lanes_per_key: int = 0  # lanes that share a key; 0: each lane has its own keys
    lanes: int = 0  # lanes per workgroup, if lanes share keys
    prefetch_depth: int = 0  # keys that a lane loads at a time, if lanes share keys
    reach: str = "attention/reach/window"  # the part that determines which positions a row sees
    joins: bool = False  # whether the attention kernel also reduces the runs

    @classmethod
    def of(cls, cache: Cache, how: Attention, shared: int) -> "AttentionPartition":
        """The partition of a layer, with `shared` heads of a row per workgroup."""
        reach = f"attention/reach/{_sees(how)}"
        return cls(how.heads, cache.heads, cache.size, how.window or how.chunk, shared, reach=reach)

    @property
    def runs(self) -> int:
        """The maximum number of runs of a row."""
        return self.shares.most

    @property
    def sizes(self) -> dict[str, Constant]:
        """Constants of all attention kernels."""
        return {"H": self.heads, "KV": self.kv_heads, "N": self.size, "PAGE": PAGE}

    @property
    def split(self) -> dict[str, Constant]:
        """Constants of kernels that attend, or reduce partial results."""
        reach = self.window or NO_WINDOW
        return {"GRAIN": self.grain, "ONE_RUN": self.one_run, "WINDOW": reach, **self.shares.constants}

    @property
    def pack(self) -> int:
        """The number of heads processed at a time if lanes share keys."""
        return pack_of(self.shared)

    def run_pages(self, most: int) -> int:
        """The maximum number of pages that a run touches, for sequences of at most `max_pages`."""
        run = self.grain * -(-(most * PAGE + self.grain) // (self.grain * self.shares.even))
        return min(most, max(run, self.one_run) // PAGE + 2)


@dataclass(frozen=True)
class MatrixDecodePartition:
    """A partition of decode on matrix units."""

    partition: AttentionPartition
    queries: int  # rows of a fragment in use: the heads of a workgroup, rounded up to a power of two
    key_tiles: int  # fragments of keys per subgroup at a time


def _sees(how: Attention) -> str:
    """The part that determines which positions a row sees."""
    if how.bounds or how.chunk or how.after_first:
        return "bounded" if how.bounds else "chunk" if how.chunk else "after_first"
    return "window" if how.causal else "ends" if how.ends else "ahead" if how.ahead else "both"


def prompt_partition(cache: Cache, how: Attention, rows: int, pages: int, tuning: Tuning) -> AttentionPartition:
    """The partition for sequences of several rows: each workgroup has as many queries as fit.

    Few rows are usually drafts at the end of a long context, which is then split into runs as in decode.
    """
    most = min(MAX_QUERIES, QUERY_FLOATS // cache.size)
    shared = _divisor(how.heads // cache.heads, most)
    whole = AttentionPartition.of(cache, how, shared)
    if how.causal and rows <= DRAFT_ROWS and pages >= SPLIT_PAGES:
        grain = -(-tuning.attention.run_length // PAGE) * PAGE
        wanted = min(MAX_RUNS, max(4, tuning.attention.run_workgroups * shared // (rows * how.heads)))
        return replace(whole, grain=grain, shares=RunShares.all_even(min(wanted, -(-pages * PAGE // grain))))
    return replace(whole, rows=most // shared)


def in_runs(partition: AttentionPartition, groups: int, grain: int, pages: int, tuning: Tuning) -> AttentionPartition:
    """The partition of a prompt on matrix units with the context split into runs, if it has few workgroups."""
    most = min(partition.window or NO_WINDOW, pages * PAGE)
    runs = min(MAX_RUNS, tuning.attention.prompt_workgroups // groups, -(-most // grain))
    return replace(partition, grain=grain, shares=RunShares.all_even(runs)) if runs > SHORT_RUNS else partition


def decode_partition(
    cache: Cache, how: Attention, rows: int, pages: int, tuning: Tuning, can: Capabilities
) -> AttentionPartition:
    """The partition for decode, with at most `max_pages` pages per sequence; splits the context if that is faster."""
    sizes, sharing = tuning.attention, how.heads // cache.heads
    lanes, prefetch_depth = sizes.decode_lanes, sizes.prefetch_keys
    sharing_keys = None if how.biases else _sharing_keys(sharing, cache.size, tuning, can)
    if sharing_keys is not None:
        shared, lanes_per_key, lanes = sharing_keys
        grain, groups = (
            sizes.run_length,
            min(sizes.run_workgroups, sizes.decode_workgroups),
        )
        if (
            lanes_per_key == cache.size // 8 <= sizes.lanes_per_key // 2
        ):  # for small heads: half the lanes, with the same number of bytes in flight
            lanes, prefetch_depth = max(can.subgroup_width, lanes // 2), 2 * prefetch_depth
        prefetch_depth = max(1, min(prefetch_depth, sizes.prefetch_numbers * lanes_per_key // cache.size))
        prefetch_depth = 1 << (prefetch_depth.bit_length() - 1)  # a power of two, as the lanes of a key divide them
    else:
        shared, lanes_per_key = _divisor(sharing, min(MAX_QUERIES, QUERY_FLOATS // cache.size)), 0
        grain, groups = -(-sizes.run_length // PAGE) * PAGE, sizes.run_workgroups
    wanted = min(MAX_RUNS, max(1, groups * shared // (rows * how.heads)))
    runs = min(wanted, -(-pages * PAGE // grain))
    joins = (
        lanes_per_key > 0
        and tuning.fusion.last_workgroup_reduces
        and can.coherent
        and can.max_storage_buffers >= JOINED_BUFFERS
    )
    shares = RunShares.all_even(runs)
    if joins and not (how.window or how.chunk):
        shares = RunShares.by_length(runs, rows, pages)
    if shares.most <= (1 if joins else SHORT_RUNS):
        shares, joins = ONE, False
    return replace(
        AttentionPartition.of(cache, how, shared),
        grain=grain,
        shares=shares,
        one_run=ONE_RUN if joins and ONE_RUN % grain == 0 else 0,
        lanes_per_key=lanes_per_key,
        lanes=lanes,
        prefetch_depth=prefetch_depth,
        joins=joins,
    )


def matrix_decode_partition(
    cache: Cache, how: Attention, rows: int, pages: int, tuning: Tuning, can: Capabilities
) -> MatrixDecodePartition | None:
    """The partition for decode on matrix units, where the heads of a KV head are rows of a fragment.

    None if matrix units cannot be used or are not faster.
    """
    side, lanes, size, sharing = can.fragment, can.subgroup_size, cache.size, how.heads // cache.heads
    reach, most = how.window or how.chunk, pages * PAGE
    wanted = (
        0 < tuning.attention.matrix_decode_positions <= rows * most
        and tuning.attention.matrix_decode_sharing <= sharing
        and size <= tuning.attention.matrix_decode_head_size
    )
    if not wanted or not side or not lanes or size % side or size > MAX_FRAGMENTS * side:
        return None
    shared = _divisor(sharing, side)
    queries = max(side // 2, 1 << (shared - 1).bit_length())
    loads = side * size // (4 * lanes)  # loads per fragment of keys
    if loads > MAX_LOADS or side * size % (4 * lanes) or size // 4 % (lanes // queries):
        return None
    key_tiles = next(n for n in (4, 2, 1) if n == 1 or n * loads <= MAX_LOADS)
    if matrix_decode_bytes(size, side, key_tiles, queries) > can.max_workgroup_memory:
        return None
    grain = key_tiles * side
    wanted_runs = max(1, tuning.attention.matrix_decode_workgroups * shared // (rows * how.heads))
    runs = min(MAX_RUNS, wanted_runs, -(-min(reach or most, most) // (2 * grain)))
    whole = AttentionPartition.of(cache, how, shared)
    shares = RunShares.all_even(runs) if reach or runs == 1 else RunShares.by_length(runs, rows, pages)
    return MatrixDecodePartition(replace(whole, grain=grain, shares=shares, lanes=lanes), queries, key_tiles)


def matrix_decode_bytes(size: int, side: int, key_tiles: int, queries: int) -> int:
    """Bytes of workgroup memory on matrix units: keys or values, scores, exponentials, and statistics of each query."""
    keys = key_tiles * side
    return 2 * keys * (size + 8) + 4 * side * (keys + 4) + 2 * side * (keys + 8) + 12 * queries + 16 + ROWS_BYTES


def lanes_share_keys(cache: Cache, how: Attention, tuning: Tuning, can: Capabilities) -> bool:
    """True if several lanes share a key in decode."""
    return how.biases is None and _sharing_keys(how.heads // cache.heads, cache.size, tuning, can) is not None


def _sharing_keys(sharing: int, size: int, tuning: Tuning, can: Capabilities) -> tuple[int, int, int] | None:
    """Returns heads per workgroup, lanes per key, and lanes per workgroup.

    Chooses as many heads as fit in registers and memory. None if lanes cannot share keys, or if one head of one
    subgroup does not fit.
    """
    if min(tuning.attention.lanes_per_key, can.subgroup_width) <= 1:
        return None
    sides = [n for n in (1, 2, 4, 8, 16, 32) if n <= can.subgroup_width and size // 8 % n == 0]
    subgroups = tuning.attention.decode_lanes // can.subgroup_width
    most = max(1, LANE_FLOATS * sides[-1] // size)
    if _divisor(sharing, most) <= most // 2:
        most *= 2  # otherwise, three workgroups would read the same keys
    while most > 1 and decode_bytes(most, size, subgroups) > can.max_workgroup_memory:
        most -= 1
    while subgroups > 1 and decode_bytes(most, size, subgroups) > can.max_workgroup_memory:
        subgroups //= 2
    if decode_bytes(most, size, subgroups) > can.max_workgroup_memory:
        return None
    shared = _divisor(sharing, most)
    wanted = max(tuning.attention.lanes_per_key * max(1, size // USUAL_SIZE), -(-shared * size // LANE_FLOATS))
    lanes_per_key = max(count for count in sides if count <= wanted)
    return shared, lanes_per_key, min(tuning.attention.decode_lanes, subgroups * can.subgroup_width)


def decode_bytes(shared: int, size: int, subgroups: int) -> int:
    """Bytes of workgroup memory if lanes share keys.

    It holds heads before and after rotation, the row's own key and value, and the sums of each subgroup.
    """
    queries = -(-shared // pack_of(shared)) * pack_of(shared)
    return 4 * size * (shared + 1 + queries + 2 + subgroups * queries) + (8 << 10)


def pack_of(shared: int) -> int:
    """If lanes share keys: how many heads are processed at a time, so that the fewest places stay empty."""
    return min((4, 3, 2), key=lambda pack: -(-shared // pack) * pack)


def _divisor(count: int, most: int) -> int:
    return max(n for n in range(1, most + 1) if count % n == 0)
