"""How attention over latents is partitioned over workgroups: queries, and runs of the context.

All heads of a row look at the same latents, so a workgroup takes as many queries as it has registers for the sums of.
"""

from dataclasses import dataclass

from ..gpu.device import Capabilities
from ..gpu.shader import Constant
from ..kernels.tuning import Tuning
from .attention_partition import NO_WINDOW, SHORT_RUNS
from .vocabulary import PAGE, Cache

PROMPT_QUERIES, DECODE_QUERIES = 16, 20  # of a workgroup at most; 20 heads are those of GLM-4.7-Flash
MOST_RUNS = 256  # of a context, in decode
CHUNK = 32  # dims of queries and keys that are staged at a time
LANES_PER_QUERIES = 16  # lanes that 4 queries have at least


@dataclass(frozen=True)
class LatentPartition:
    """What a workgroup has of the queries and the context of a layer."""

    heads: int
    cache: Cache
    queries: int  # of a workgroup: heads of one row, or of neighbouring rows
    keys: int  # positions that it looks at a time
    lanes: int
    grain: int = PAGE  # a run of the context is a multiple of so many positions
    runs: int = 1  # at most

    @property
    def constants(self) -> dict[str, Constant]:
        """What kernels are specialised by."""
        return {
            "H": self.heads, "N": self.cache.latent, "WIDTH": self.cache.size, "PAGE": PAGE, "Q": self.queries,
            "KEYS": self.keys, "WG": self.lanes,
        }  # fmt: skip

    @property
    def split(self) -> dict[str, Constant]:
        """What kernels know that attend, or reduce partial results."""
        return {"GRAIN": self.grain, "RUNS": self.runs, "WINDOW": NO_WINDOW}


def prompt_partition(heads: int, cache: Cache, tuning: Tuning, can: Capabilities) -> LatentPartition:
    """For a plan whose sequences have many rows."""
    return _partition(heads, cache, PROMPT_QUERIES, tuning, can)


def decode_partition(
    heads: int, cache: Cache, rows: int, pages: int, tuning: Tuning, can: Capabilities
) -> LatentPartition:
    """For a plan whose sequences have one row, and so many pages at most: split into runs where that is worth it."""
    splits = -(-heads // DECODE_QUERIES)
    queries = -(-heads // (4 * splits)) * 4
    grain = -(-tuning.attention_run // PAGE) * PAGE
    wanted = min(MOST_RUNS, max(4, tuning.attention_groups // (rows * splits)))
    runs = min(wanted, -(-pages * PAGE // grain))
    return _partition(heads, cache, queries, tuning, can, grain, runs if runs > SHORT_RUNS else 1)


def _partition(
    heads: int,
    cache: Cache,
    queries: int,
    tuning: Tuning,
    can: Capabilities,
    grain: int = PAGE,
    runs: int = 1,
) -> LatentPartition:
    lanes = max(min(256, 4 * tuning.attention_lanes), LANES_PER_QUERIES * queries // 4)
    lanes = min(can.max_invocations, 1 << (lanes - 1).bit_length())
    keys = PAGE if latent_bytes(queries, PAGE) <= can.max_workgroup_memory else PAGE // 2
    return LatentPartition(heads, cache, queries, keys, lanes, grain, runs)


def latent_bytes(queries: int, keys: int) -> int:
    """Of workgroup memory: chunks of keys and queries, scores, and what is known of each query."""
    return 4 * (CHUNK * (keys + 1) + CHUNK * queries + keys * queries + 3 * queries)
