"""With many rows, LoRA adapters become separate products.

    before
        %0 = gemm(x)  [s]
        %1, %2 = adapter_down(x, %0)  [q.a v.a]
        %3, %4 = gemm(x)  [q v]
        %5, %6 = adapter_up(%3, %1, %4, %2)  [q.b v.b]

    after
        %0 = gemm(x)  [s]
        %7, %8 = gemm(x)  [q.a v.a]
        %1 = map(%7, %0)  [mul]
        %2 = map(%8, %0)  [mul]
        %3, %4 = gemm(x)  [q v]
        %5 = gemm(%1, %3)  [q.b]
        %6 = gemm(%2, %4)  [v.b]

For gated pairs, the sums before the gate are not available as a value. Their kernel adds B (A x) in steps of any size,
as in `adapters_into_products`.

Condition: none; it applies to all adapters that remain after `adapters_into_products`. This pass is required.
"""

from ..graph import Graph, Node
from ..nodes import Adapted, AdapterDown, AdapterUp, Copy, Gemm, Map, Product
from ..target import Target
from ..tracer import MATRICES
from ..values import Value, stack
from .adapters_into_products import fuse


def run(graph: Graph, target: Target) -> int:
    """Turns each factor into a product. Returns the number of replaced nodes."""
    fired = 0
    for node in list(graph.nodes):
        if isinstance(node.op, AdapterUp) and node.op.pairs:
            fused = fuse(graph, target, node, node.op)
            assert fused, "gate and up alternate only where a device binds all factors"
            fired += 1
    for node in list(graph.nodes):
        if isinstance(node.op, AdapterDown) and not node.op.whole:
            _down(graph, node, node.op)
        elif isinstance(node.op, AdapterUp):
            for one in node.op.products:
                _up(graph, node, node.op, one)
        else:
            continue
        graph.remove(node)
        fired += 1
    return fired


def _down(graph: Graph, node: Node, op: AdapterDown) -> None:
    rows, width = op.scales.shape
    for at in range(0, len(op.xs), MATRICES):
        xs, factors, lows = op.xs[at : at + MATRICES], op.factors[at : at + MATRICES], op.lows[at : at + MATRICES]
        _, found = stack(rows, [width] * len(xs))
        graph.insert_before(node, Gemm(tuple(map(Product, xs, factors, found))))
        for one, low in zip(found, lows, strict=True):
            graph.insert_before(node, Map("mul", (one, op.scales), low))


def _up(graph: Graph, node: Node, op: AdapterUp, one: Adapted) -> None:
    """Replaces one matrix of an op by a product, followed by elementwise ops, the last of which writes y."""
    steps: list[tuple[str, tuple[Value, ...], tuple[float, ...]]] = []
    if one.then != "none":
        steps = [(one.then, (), ())] + [("scale", (), (op.scale,))] * (op.scale != 1.0)
    if op.add is not None:
        steps.append(("add", (op.add,), ()))
    y = one.y if not steps else Value(one.x.shape)
    if one.factor is None:
        if not steps:
            graph.insert_before(node, Copy(one.x, y))
        y = one.x
    else:
        scale = op.scale if one.then == "none" else 1.0
        [low] = one.lows
        graph.insert_before(node, Gemm.of(Product(low, one.factor, y), add=one.x, scale=scale))
    for n, (f, more, numbers) in enumerate(steps, 1):
        x, y = y, one.y if n == len(steps) else Value(one.x.shape)
        graph.insert_before(node, Map(f, (x, *more), y, numbers))
