"""Recurrences of prompts by chunks: all chunks are solved, states go from chunk to chunk, rows are normed and gated."""

from collections.abc import Mapping
from dataclasses import dataclass

from ...gpu.cost import ContextCost
from ...gpu.shader import Constant
from ..chunked import ChunkShape
from ..graph import Node
from ..values import Operand, Value
from ..vocabulary import State
from .context import Lowering

SAME_KEY, TWO_KEYS = 4, 6  # parts of the stack beside decays


@dataclass(frozen=True)
class Stage:
    """What one of the dispatches has of its own."""

    parts: tuple[str, ...]
    constants: Mapping[str, Constant]
    operands: Mapping[str, Operand]
    fixed_bytes: int = 0


@dataclass(frozen=True)
class Chunked:
    """A recurrence S diag(w) + v kᵀ + (S a) bᵀ: where its inputs come from, and what becomes of S r."""

    state: State
    y: Value
    inputs: Stage
    output: Stage
    parts: int  # SAME_KEY where b is k
    removes: bool  # whether there is an a


def chunked(to: Lowering, node: Node, how: Chunked, shape: ChunkShape) -> None:
    """Three dispatches: chunks side by side, states from chunk to chunk, norms and gates row by row."""
    heads, size, tokens = shape.heads, shape.size, shape.tokens
    stack = shape.stack(to.shape, how.parts)
    same = {"H": heads, "N": size, "ONE_KEY": how.parts == SAME_KEY, "REMOVES": how.removes}
    common: dict[str, Operand] = {"chunks": stack, "segments": to.segments, "y": how.y}
    token_sum = "recurrence/token_sum/subgroup" if shape.split > 1 else "recurrence/token_sum/lane"
    piece = min(shape.piece, size // 4)
    to.emit(
        node,
        how.state.name,
        ("recurrence/chunk_solve", *how.inputs.parts, "lib/lanes/plain"),
        {**same, **how.inputs.constants, "BLOCK": tokens, "PIECE4": piece, "WG": 2 * size},
        {**common, **how.inputs.operands},
        groups=shape.slots(to.shape) * heads,
        fixed_bytes=how.inputs.fixed_bytes,
        row_flops=heads * size * tokens * 12,
    )
    to.emit(
        node,
        how.state.name,
        ("recurrence/chunk_walk", token_sum, "lib/lanes/plain"),
        {
            **same, "BLOCK": tokens, "SLICE": shape.rows_of_state, "ROWS": shape.rows_per_lane, "SPLIT": shape.split,
            "WG": shape.walk_lanes,
        },
        {**common, "state": to.memory.states[how.state.name]},
        groups=to.shape.max_segments * heads * (size // shape.rows_of_state),
        fixed_bytes=0,
        row_flops=heads * size * size * (6 if how.parts == SAME_KEY else 8),
        context_cost=ContextCost(sequence_bytes=2 * 4 * heads * size * size),
    )  # fmt: skip
    rows = shape.output_rows
    to.emit(
        node,
        how.state.name,
        ("recurrence/chunk_output", *how.output.parts, "lib/lanes/plain"),
        {"H": heads, "N": size, **how.output.constants, "BLOCK": rows, "WG": rows * size // 4},
        {"y": how.y, **how.output.operands},
        groups=-(-node.rows // rows) * heads,
        fixed_bytes=how.output.fixed_bytes,
    )
