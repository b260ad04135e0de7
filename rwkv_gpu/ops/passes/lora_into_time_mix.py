"""Fuses the second halves of LoRAs into the time mix, for few rows.

    before
        %0, %1, %2 = gemm(x)  [receptance key value]
        %3, %4, %5, %6 = gemm(x)  [w1 a1 gate1 v_gate1]
        %7, %8, %9, %10 = gemm(%3, %4, %5, %6)  [w2 a2 gate2 v_gate2]
        %11 = time_mix(%0, %1, %2, %7, %8, %9, %10, x)  state wkv

    after
        %0, %1, %2 = gemm(x)  [receptance key value]
        %3, %4, %5, %6 = gemm(x)  [w1 a1 gate1 v_gate1]
        %11 = time_mix(%0, %1, %2, %3, %4, %5, %6, x)  [w2 a2 gate2 v_gate2]  state wkv  +lora

A head needs only its own channels of w, a and the gates, and the matrices are narrow. So each workgroup of the time mix
computes them while it waits for its state. RWKV-6 has only w.

Condition: each sequence has one row and there are few rows; one product without adapters makes w, a and all gates, and
only the time mix reads them; the matrices are floats, and narrow enough to stay in registers.
"""

from dataclasses import replace

from ..gemm import gemm_op, whole
from ..graph import Graph, Node
from ..nodes import Gemm, TimeMix, Wkv6
from ..nodes.epilogue import AddAdapters, AddResidual
from ..nodes.stage import Prologue
from ..rwkv import FLOATS_IN_16_BYTES, FusedLora, decode_lanes, takes_one_row
from ..target import Target
from ..values import Value

WIDEST = 512  # maximum columns of such a matrix
MAX_LOADS = 24 * 512  # maximum 16-byte loads of a workgroup at once: more would not stay in registers


def run(graph: Graph, target: Target) -> int:
    """Moves each such product into its time mix. Returns the number of moves."""
    fired = 0
    for node in list(graph.nodes):
        op = node.op
        if isinstance(op, TimeMix) and takes_one_row(op, graph.shape, target):
            gates = {gate for gate in op.gates if gate is not None}
        elif isinstance(op, Wkv6) and graph.shape.row_each and op.lora is None:
            gates = {op.w}
        else:
            continue
        producer = graph.writer(next(iter(gates)))
        lora = gemm_op(producer)
        if producer and lora and _fits(graph, target, node, gates, lora):
            graph.replace(node, replace(op, lora=lora))
            graph.remove(producer)
            fired += 1
    return fired


def _fits(graph: Graph, target: Target, node: Node, gates: set[Value], lora: Gemm) -> bool:
    some = next(iter(gates))
    if {one.y for one in lora.products} != gates or graph.readers(some) != [node]:
        return False
    if graph.is_output(some) or lora.has(Prologue, AddAdapters, AddResidual) or not whole(lora, target):
        return False
    weights = [one.weight for one in lora.products]
    floats = target.weights[weights[0].name].format.name in FLOATS_IN_16_BYTES
    narrow = all(weight.shape[1] <= WIDEST and weight.shape[1] % 4 == 0 for weight in weights)
    if not (floats and narrow and node.rows <= target.tuning.fusion.lora_rows):
        return False
    op = node.op
    if isinstance(op, Wkv6):
        return lora.products[0].bias is not None
    assert isinstance(op, TimeMix)
    size, (lanes_per_row, _) = op.state.shape[1], decode_lanes(op.state.shape[1], target)
    return size * lanes_per_row * FusedLora.of(op, lora, target).loads(lanes_per_row) <= MAX_LOADS
