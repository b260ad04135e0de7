"""How the recurrence of a prompt is computed in chunks of tokens, where the tuning says so and the device has room."""

from dataclasses import dataclass

from .graph import StepShape
from .target import Target
from .values import ALIGN, Value

PIECES = (8, 4, 2)  # vec4s of channels that are multiplied at a time: the most that memory holds
OUTPUT_LANES = 256  # of a workgroup that norms and gates, which any device can run
SHARED_LANES = 4  # lanes that share rows of a state, where subgroups can sum over them


@dataclass(frozen=True)
class ChunkShape:
    """Tokens of a chunk, and how a head of size N is spread over lanes."""

    heads: int
    size: int  # of a head
    tokens: int
    piece: int  # vec4s of channels
    rows_of_state: int  # of a workgroup that goes from chunk to chunk
    rows_per_lane: int
    split: int  # lanes that share rows of a state

    @property
    def walk_lanes(self) -> int:
        """Of such a workgroup."""
        return self.rows_of_state // self.rows_per_lane * self.split

    @property
    def output_rows(self) -> int:
        """Of a workgroup that norms and gates."""
        return min(self.tokens, OUTPUT_LANES * 4 // self.size)

    def slots(self, shape: StepShape) -> int:
        """Chunks of a step at most: every sequence may end with one that is not whole."""
        return shape.rows // self.tokens + shape.max_segments

    def stack(self, shape: StepShape, parts: int) -> Value:
        """What a step stores of its chunks: parts by row, then the decays of whole chunks."""
        width = self.heads * self.size
        part = -(-shape.rows * width * 4 // ALIGN) * ALIGN
        return Value((shape.rows, parts * width), size=parts * part + self.slots(shape) * width * 4)


def chunk_shape(
    heads: int, size: int, shape: StepShape, target: Target, parts: int, *, by_channel: bool = False
) -> ChunkShape | None:
    """The shape in which a recurrence is computed by chunks, or None where it is computed token by token."""
    can, tuning = target.can, target.tuning
    tokens = tuning.chunk_tokens
    if not tokens or shape.row_each or shape.rows < tokens or size % 32 or 2 * size > can.max_invocations:
        return None
    split = SHARED_LANES if can.subgroup_width >= SHARED_LANES and tuning.reduce != "workgroup" else 1
    for count in (tokens, tokens // 2):
        rows = min(tuning.chunk_state_rows, size)
        for piece in PIECES:
            found = ChunkShape(heads, size, count, piece, rows, min(tuning.chunk_rows_per_lane, rows), split)
            fits = _solve_bytes(found, by_channel) <= can.max_workgroup_memory
            fits &= _walk_bytes(found) <= can.max_workgroup_memory
            if fits and found.stack(shape, parts).nbytes <= can.max_binding:
                return found
    return None


def _solve_bytes(shape: ChunkShape, by_channel: bool) -> int:
    """Of workgroup memory: pieces of five vectors, four matrices, sums of a token, and decays by channel."""
    pieces = 5 * shape.tokens * (shape.piece + 1) * 16
    own = 16 * shape.size + 32 * shape.tokens
    return pieces + 4 * 4 * shape.tokens**2 + own + by_channel * 4 * shape.tokens * shape.size


def _walk_bytes(shape: ChunkShape) -> int:
    return 2 * 4 * shape.tokens * (shape.size + shape.rows_of_state)
