"""Lowering of chunked recurrences: solve all chunks, carry states from chunk to chunk, norm and gate rows."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...gpu.cost import ContextCost
from ...gpu.shader import Constant
from ..chunked import ChunkShape
from ..graph import Node
from ..values import Operand
from ..vocabulary import State
from .context import Lowering
from .states import state_part


@dataclass(frozen=True)
class Stage:
    """The parts, constants and operands of one of the dispatches."""

    parts: tuple[str, ...]
    constants: Mapping[str, Constant]
    operands: Mapping[str, Operand]
    fixed_bytes: int = 0


def chunked(to: Lowering, node: Node, state: State, shape: ChunkShape, inputs: Stage, output: Stage | None) -> None:
    """Emits three dispatches: all chunks in parallel, states from chunk to chunk, norms and gates row by row.

    `inputs` states where r, w, k, v, a and b come from. `output`, if given, states how S r is processed.
    """
    form, tokens = shape.form, shape.tokens
    heads, size = form.heads, form.size
    own: dict[str, Constant] = {"H": heads, "N": size}
    how: dict[str, Constant] = {**own, "BLOCK": tokens, "ONE_KEY": form.same_key, "REMOVES": form.removes}
    chunks: dict[str, Operand] = {"chunks": shape.stack(to.shape)}
    piece = min(shape.piece, size // 4)
    to.emit(
        node,
        state.name,
        ("recurrence/chunk_solve", *inputs.parts, "lib/lanes/plain"),
        {**how, **inputs.constants, "READS_OLD": form.reads_old, "PIECE4": piece, "WG": 2 * size},
        {**chunks, **inputs.operands},
        groups=shape.slots(to.shape) * heads,
        fixed_bytes=inputs.fixed_bytes,
        row_flops=heads * 2 * size * tokens * 6,
    )
    token_sum = "recurrence/token_sum/subgroup" if shape.split > 1 else "recurrence/token_sum/lane"
    rows = shape.rows_of_state
    spread = {"SLICE": rows, "ROWS": shape.rows_per_lane, "SPLIT": shape.split, "WG": shape.walk_lanes}
    to.emit(
        node,
        state.name,
        ("recurrence/chunk_walk", token_sum, state_part(to, state), "lib/lanes/plain"),
        how | spread,
        chunks,
        groups=to.shape.max_segments * heads * (size // rows),
        fixed_bytes=0,
        row_flops=2 * heads * size * size * form.parts,
        context_cost=ContextCost(sequence_bytes=2 * state.nbytes(to.memory.state_type)),
    )
    if output is None:
        return
    rows = shape.output_rows
    to.emit(
        node,
        state.name,
        ("recurrence/chunk_output", *output.parts, "lib/lanes/plain"),
        {**own, **output.constants, "BLOCK": rows, "WG": rows * size // 4},
        output.operands,
        groups=-(-node.rows // rows) * heads,
        fixed_bytes=output.fixed_bytes,
    )
