"""Merges the write of latents to their pages into the dispatch of the per-head product before it.

    before
        %0, %1 = gemm(x)  [q z]
        %2 = head_linear(%0)  [k_up]
        %3 = write_latent(%1, %0)  writes kv
        %4 = attend_latent(%2, %3)  reads kv

    after
        %0, %1 = gemm(x)  [q z]
        %2 = head_linear(%0)  [k_up]
        %3 = write_latent(%1, %0)  writes kv  +merge
        %4 = attend_latent(%2, %3)  reads kv

The two are independent. Writing the latents of few rows occupies one workgroup, and attention would wait for it.

Condition: steps of at most `Tuning.fusion.merged_batch_rows` rows, and neighbours in a layer.
"""

from dataclasses import replace
from itertools import pairwise

from ..graph import Graph
from ..nodes import HeadLinear, WriteLatent
from ..target import Target


def run(graph: Graph, target: Target) -> int:
    """Marks each latent write that follows a per-head product. Returns their number."""
    fired = 0
    for one, other in pairwise(list(graph.nodes)):
        op = other.op
        near = isinstance(one.op, HeadLinear) and one.layer == other.layer
        if isinstance(op, WriteLatent) and near and other.rows <= target.tuning.fusion.merged_batch_rows:
            graph.replace(other, replace(op, merges=True))
            fired += 1
    return fired
