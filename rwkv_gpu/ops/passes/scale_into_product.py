"""A product multiplies its result by another one's, by element, and adds to that.

    before
        %0, %1 = gemm(x)  [key receptance]
        %2 = gemm(%0)  [value]
        %3 = scale_rows(%2, %1, x)

    after
        %0, %1 = gemm(x)  [key receptance]
        %3 = gemm(%0, %1, x)  [value]  +scaled

The channel mix of RWKV-6 ends so. The product that then adds x can do more on the way: see `token_shift_into_products`.

Condition: nothing else reads the product, it has one matrix without a bias or adapters, and adds nothing itself.
"""

from dataclasses import replace

from ..gemm import gemm_op
from ..graph import Graph, Node
from ..nodes import ScaleRows
from ..nodes.epilogue import AddResidual, Multiply, Scale
from ..nodes.stage import Stage
from ..target import Target


def run(graph: Graph, _target: Target) -> int:
    """Products with all of it stand where their results were scaled."""
    fired = 0
    for node in list(graph.nodes):
        if isinstance(node.op, ScaleRows):
            fired += _fuse(graph, node, node.op)
    return fired


def _fuse(graph: Graph, node: Node, op: ScaleRows) -> bool:
    producer = graph.writer(op.x)
    gemm = gemm_op(producer)
    if producer is None or gemm is None or op.by.shape != op.x.shape:
        return False
    [product, *others] = gemm.products
    alone = graph.readers(op.x) == [node] and not graph.is_output(op.x) and producer.picked == node.picked
    plain = not (others or product.bias) and gemm.only(Scale)
    if not alone or not plain:
        return False
    added: tuple[Stage, ...] = (AddResidual(op.add),) if op.add is not None else ()
    graph.replace(node, replace(gemm, products=(replace(product, y=op.y),)).plus(Multiply(op.by), *added))
    graph.remove(producer)
    return True
