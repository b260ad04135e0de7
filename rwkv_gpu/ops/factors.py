"""The bindings of adapter factors on the device."""

from collections.abc import Sequence
from dataclasses import dataclass

from ..gguf.planes import plane_row_bytes
from ..gpu.plan import Slice
from .target import Target
from .vocabulary import Weight

VEC4, FOUR = 16, 8  # bytes that kernels read at once: eight numbers, or four


@dataclass(frozen=True)
class Factors:
    """Some factors of one width, in one binding."""

    slice: Slice
    starts: tuple[int, ...]  # start of each factor, in bytes
    stride: int  # bytes per row


def together(factors: Sequence[Weight], target: Target) -> Factors | None:
    """The factors as one binding with rows of whole vec4s; None if their layout does not allow it."""
    shards = target.shards(factors)
    fmt, width = target.weights[factors[0].name].format, factors[0].shape[1]
    start = min(shard.slice.offset for shard in shards)
    nbytes = max(shard.slice.offset + shard.slice.nbytes for shard in shards) - start
    one_buffer = len(shards) == len(factors) and len({shard.slice.buffer for shard in shards}) == 1
    if not one_buffer or nbytes > target.can.max_binding or width % 4 or fmt.name != "F16":
        return None
    [row_bytes] = plane_row_bytes(fmt, width)
    starts = tuple(shard.slice.offset - start for shard in shards)
    return Factors(Slice(shards[0].slice.buffer, start, nbytes), starts, row_bytes)
