"""The shape of chunked recurrences of prompts, if the tuning asks for chunks and the device has the memory."""

from dataclasses import dataclass

from ..kernels.rwkv import BY_CHUNKS
from .graph import StepShape
from .target import Target
from .values import ALIGN, Value

PIECES = (8, 4, 2)  # vec4s of channels that are multiplied at a time: the largest that fits in memory is used
OUTPUT_LANES = 256  # lanes of a workgroup that norms and gates; any device can run it
KEPT_SLOTS = 10  # maximum chunks of a sequence if a state is saved after each of its tokens (at most 9)
MIN_LANES = 4  # minimum lanes that share rows of a state by subgroup sums: each lane completes one of 4 tokens


@dataclass(frozen=True)
class Form:
    """A recurrence S diag(w) + v kᵀ + (S a) bᵀ by head, S [size, size]."""

    heads: int
    size: int
    same_key: bool = True  # whether b is k
    removes: bool = True  # whether there is an a
    reads_old: bool = False  # whether r reads S before its token
    by_channel: bool = False  # whether decays differ by channel, and are held in workgroup memory

    @property
    def parts(self) -> int:
        """The number of vectors stored per row: keys, then values."""
        return 3 + self.removes + 2 * (not self.same_key)


@dataclass(frozen=True)
class ChunkShape:
    """The tokens of a chunk, and the distribution of a head over lanes."""

    form: Form
    tokens: int
    piece: int  # vec4s of channels of the key that are multiplied at a time
    rows_of_state: int  # rows of a state per workgroup that carries it from chunk to chunk
    rows_per_lane: int
    split: int  # lanes that share rows of a state

    @property
    def walk_lanes(self) -> int:
        """Lanes of a workgroup that carries a state from chunk to chunk."""
        return self.rows_of_state // self.rows_per_lane * self.split

    @property
    def output_rows(self) -> int:
        """Lanes of a workgroup that norms and gates."""
        return min(self.tokens, OUTPUT_LANES * 4 // self.form.size)

    def slots(self, shape: StepShape) -> int:
        """The maximum number of chunks of a step: every sequence may end with a partial one."""
        return shape.rows // self.tokens + shape.max_segments

    def stack(self, shape: StepShape) -> Value:
        """Memory for the chunks of a step: vectors by row, then the decays of whole chunks."""
        parts, width = self.form.parts, self.form.heads * self.form.size
        each = -(-shape.rows * width * 4 // ALIGN) * ALIGN
        decays = shape.rows // self.tokens + KEPT_SLOTS * shape.max_segments
        return Value((shape.rows, parts * width), size=parts * each + decays * width * 4)

    @property
    def workgroup_bytes(self) -> int:
        """Bytes of workgroup memory of the kernel that needs the most."""
        size, tokens = self.form.size, self.tokens
        pieces = 5 * tokens * (self.piece + 1) * 16 + 4 * 4 * tokens**2  # five vectors, and four matrices
        sums = 16 * size + 32 * tokens
        solve = pieces + sums + self.form.by_channel * 4 * tokens * size
        return max(solve, 2 * 4 * tokens * (size + self.rows_of_state))


def chunk_shape(form: Form, shape: StepShape, target: Target) -> ChunkShape | None:
    """The shape of a chunked recurrence; None if it is computed token by token."""
    can, tuning = target.can, target.tuning
    tokens = tuning.recurrence.chunk_tokens
    whole = form.size % 32 == 0 and 2 * form.size <= can.max_invocations
    if not tokens or not BY_CHUNKS.met(can) or not (form.removes or tuning.recurrence.chunks_without_removal):
        return None
    if shape.row_each or shape.rows < max(tokens, tuning.recurrence.chunk_min_rows) or not whole:
        return None
    shared = can.subgroup_width >= MIN_LANES and tuning.lanes.reduce != "workgroup"
    split = min(tuning.recurrence.chunk_lanes_per_row, can.subgroup_width, form.size // 4) if shared else 1
    rows = min(tuning.recurrence.chunk_state_rows, form.size)
    for count in (tokens, tokens // 2):
        for piece in PIECES:
            found = ChunkShape(form, count, piece, rows, min(tuning.recurrence.chunk_rows_per_lane, rows), split)
            if found.workgroup_bytes <= can.max_workgroup_memory and found.stack(shape).nbytes <= can.max_binding:
                return found
    return None
