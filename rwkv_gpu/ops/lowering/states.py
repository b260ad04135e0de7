"""Lowering helpers for dispatches that process the rows of each sequence in order, starting from its state."""

from collections.abc import Mapping, Sequence

import numpy as np

from ...gpu.cost import ContextCost
from ...gpu.shader import Constant
from ...kernels.parts import ROUNDING_IN_UNITS, STORES_QUANTISED
from ..graph import Node
from ..values import Operand, Quantised
from ..vocabulary import State
from .context import NO_OPERANDS, Lowering
from .quantising import in_units

SOFTWARE_ROWS = 2048  # software Vulkan silently stops an invocation after 65,535 loop iterations; a row takes about 20


def state_part(to: Lowering, state: State) -> str:
    """The part that loads and stores a state of matrices."""
    return f"recurrence/state/{'f16' if state.dtype(to.memory.state_type) is np.float16 else 'f32'}"


def through_rows(
    to: Lowering,
    node: Node,
    state: State,
    shader: Sequence[str],
    constants: Mapping[str, Constant],
    operands: Mapping[str, Operand] = NO_OPERANDS,
    *,
    groups: int,
    fixed_bytes: int,
    row_flops: int,
    shared_bytes: int | None = None,
) -> None:
    """Emits `groups` workgroups per sequence, which process its rows and replace its state."""
    assert not to.can.software or node.rows <= SOFTWARE_ROWS, f"over {SOFTWARE_ROWS} rows"
    to.emit(
        node,
        state.name,
        shader,
        constants,
        operands,
        groups=to.shape.max_segments * groups,
        fixed_bytes=fixed_bytes,
        row_flops=row_flops,
        context_cost=ContextCost(sequence_bytes=2 * state.nbytes(to.memory.state_type)),
        shared_bytes=shared_bytes,
    )


def written(
    to: Lowering, node: Node, hole: str, quantises: Quantised | None, sums: Sequence[str] = STORES_QUANTISED
) -> tuple[tuple[str, ...], Mapping[str, Constant], Mapping[str, Operand]]:
    """The parts, constants and operands that write y, and if requested also quantised y; `sums` are for integers."""
    if quantises is None:
        return (f"{hole}/floats",), {}, {}
    if quantises.unit:
        return (f"{hole}/round", *ROUNDING_IN_UNITS), *in_units(to, quantises, node.rows)
    return (f"{hole}/quantise", *sums), quantises.constants, {"quantised": quantises.value}
