"""The product by head behind attention over latents joins the runs of a long context.

    before
        %0, %1 = gemm(x)  [q z]  +gemv
        %2 = gemm(x)  [k]  +gemv  +merge
        %3 = write_latent(%1, %0)  writes kv
        %4 = attend_latent(%2, %3)  reads kv
        %5 = head_linear(%4)  [v_up]

    after
        %0, %1 = gemm(x)  [q z]  +gemv
        %2 = gemm(x)  [k]  +gemv  +merge
        %3 = write_latent(%1, %0)  writes kv
        %4 = attend_latent(%2, %3)  reads kv
        %5 = head_linear(%4)  [v_up]  +runs

A workgroup of attention sees one run of the context. A dispatch of its own would join them, and all others wait for it.

Condition: steps of one row. One product by head is all that reads the answer. Its workgroups stage the whole row of a
head, and have a lane at least for each vec4 of it.
"""

from dataclasses import replace

from ..graph import Graph
from ..moe import head_config, matrices_of
from ..nodes import AttendLatent, HeadLinear
from ..target import Target


def run(graph: Graph, target: Target) -> int:
    """Such attention leaves runs, and the product joins them."""
    fired = 0
    for node in list(graph.nodes) if graph.shape.one_row else ():
        op = node.op
        if not isinstance(op, AttendLatent) or op.leaves_runs or graph.is_output(op.y):
            continue
        reader, *others = graph.readers(op.y)
        if not others and isinstance(reader.op, HeadLinear) and _joins(reader.op, target):
            graph.replace(node, replace(op, leaves_runs=True))
            graph.replace(reader, replace(reader.op, joins_runs=True))
            fired += 1
    return fired


def _joins(op: HeadLinear, target: Target) -> bool:
    """Whether the kernel of a product by head can join runs of one row."""
    heads, _, width = op.weight.shape
    if op.x.shape[1] != heads * width:
        return False
    configs = [head_config(each, 1, target) for each in matrices_of(op.weight, target)]
    return all(config.gathers_row and 4 * config.wg >= width for config in configs)
