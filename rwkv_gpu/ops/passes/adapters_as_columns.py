"""On matrix units, B of LoRA adapters are further columns of W, and A x further columns of x.

    before
        %0 = quantise(x)
        %1, %2 = gemm(%0, x)  [a]  +subgroup_gemm  +quantised_x  +quantise
        %3 = gemm(%0)  [s]  +subgroup_gemm  +quantised_x
        %4, %5, %6 = adapter_down(%1, %3)  [gate.a up.a]  +norm
        %7 = gemm(%2, %4, %5, %6)  [gate_up]  +subgroup_gemm  +quantised_x  +adapters

    after
        %0 = quantise(x)
        %1, %2 = gemm(%0, x)  [a]  +subgroup_gemm  +quantised_x  +quantise
        %3 = gemm(%0)  [s]  +subgroup_gemm  +quantised_x
        %8, %9 = adapter_down(%1, %3)  [gate.a up.a]  +norm  +halves
        %7 = gemm(%2, %8, %9)  [gate_up]  +subgroup_gemm  +quantised_x  +adapters  +columns

What a product adds to its sums, it waits for when they are there. Its first columns it asks for together with those of
W, and multiplies them while these are on their way. The product norms both, so A x is of an x that is not normed.

Condition: every product that adds them is one of `subgroup_gemm` or `line_gemm` and reads rows of float16 of one unit;
adapters have at most `MOST_COLUMNS` columns, as all of B is read.
"""

from dataclasses import replace

from ..gemm import gemm_op
from ..graph import Graph, Node
from ..nodes import AdapterDown, Gemm
from ..quantising import BY_SUBGROUPS
from ..target import Target
from ..values import Value, stack

MOST_COLUMNS = 128  # of all adapters: eight of rank 16, of which a batch may want one
STEP = 32  # columns of the rows of B, which are padded


def run(graph: Graph, target: Target) -> int:  # noqa: ARG001 - it is the same for every device
    """Products that bind A x as float16, and the node that writes it so."""
    fired = 0
    for node in list(graph.nodes):
        op = node.op
        if not isinstance(op, AdapterDown) or not op.whole or op.unit or op.scales.shape[1] > MOST_COLUMNS:
            continue
        readers = dict.fromkeys(reader for low in op.lows for reader in graph.readers(low))
        unit = _unit(op, readers)
        if unit:
            _fuse(graph, node, op, readers, unit)
            fired += 1
    return fired


def _unit(op: AdapterDown, readers: dict[Node, None]) -> float:
    """What all that read A x read of x: multiples of one unit, to be normed as A x would be; else 0."""
    units = set()
    for gemm in map(gemm_op, readers):
        rounded = gemm.quantised_x if gemm and gemm.config and gemm.config.kernel in BY_SUBGROUPS else None
        alike = rounded is not None and (rounded.eps is None) == (op.norm is None)
        units.add(rounded.unit if rounded and alike else 0.0)
    return units.pop() if len(units) == 1 else 0.0


def _fuse(graph: Graph, node: Node, op: AdapterDown, readers: dict[Node, None], unit: float) -> None:
    words = -(-op.scales.shape[1] // STEP) * STEP // 2
    _, lows = stack(node.rows, [words] * len(op.lows))
    moved = dict(zip(op.lows, lows, strict=True))
    graph.replace(node, replace(op, lows=lows, unit=unit))
    for reader in readers:
        assert isinstance(reader.op, Gemm)
        graph.replace(reader, _reading(reader.op, moved))


def _reading(op: Gemm, moved: dict[Value, Value]) -> Gemm:
    assert op.adapters is not None
    lows = tuple(tuple(moved[low] for low in own) for own in op.adapters.lows)
    return replace(op, adapters=replace(op.adapters, lows=lows, columns=None))
