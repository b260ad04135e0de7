"""Selects the kernel of a `Gemm`, and tells which fusions that kernel supports."""

from collections.abc import Sequence
from dataclasses import replace

from ..gpu.plan import Slice
from ..gpu.weights import Shard
from ..kernels.gemm_config import UNLIMITED, Fitted, GemmConfig, Matrices, gemv
from .graph import Node
from .nodes import Gemm
from .nodes.epilogue import GatePairs
from .target import Target

FLOATS = gemv(64, 16, 4, 4)  # fallback if the tuning selects an integer kernel for a format that is not packed
DIRECT_WORDS_BUFFERS = 16  # storage buffers with which every dispatch has one left for a second binding of W
SEVERAL = 2  # rows of x
JOINING_BUFFERS = 2  # storage buffers for split columns: partial sums, and counts of finished workgroups
STATISTICS_BYTES = 8  # bytes of row statistics per subgroup


def gemm_op(node: Node | None) -> Gemm | None:
    """The op of a node if it is a `Gemm`; else None."""
    return node.op if node is not None and isinstance(node.op, Gemm) else None


def needs(node: Node, before: Node) -> bool:
    """True if a node reads a value that another one writes."""
    return bool({value.root for value in before.op.writes} & {value.root for value in node.op.reads})


def shards_of(op: Gemm, target: Target) -> list[Shard]:
    """The shards of its matrices: one each, but a single large matrix may have several."""
    return target.shards(op.weights)


def spanned(shards: Sequence[Shard]) -> Slice:
    """The range of a buffer that contains all of some shards."""
    start = min(shard.slice.offset for shard in shards)
    end = max(shard.slice.offset + shard.slice.nbytes for shard in shards)
    return Slice(shards[0].slice.buffer, start, end - start)


def choose(
    op: Gemm, rows: int, target: Target, *, quantised_for_free: bool = False, rounded_for_free: bool = False
) -> GemmConfig:
    """The config that the tuning selects for a Gemm.

    `quantised_for_free`: the producer of x can also write it as integers; `rounded_for_free`: as float16.
    """
    shards = shards_of(op, target)
    shards = shards[: len(op.products)]  # a large matrix has one dispatch per shard
    run, packed, out = shards[0].run, shards[0].packed, sum(shard.rows for shard in shards)
    config = target.tuning.gemm_config(rows, run, out, max(op.widths), packed, quantised_for_free, rounded_for_free)
    return FLOATS if config.integers and not packed else config


def fit(op: Gemm, config: GemmConfig, target: Target, shards: Sequence[Shard] | None = None) -> Fitted:
    """Adapts a config to these matrices. Returns it with the staging of x in workgroup memory, if any."""
    shards = shards or shards_of(op, target)[: len(op.products)]
    if config.joined_parts != 1 and not can_split_columns(op, target):
        config = replace(config, joined_parts=1)
    return config.fit(Matrices(shards, op.widths, op.has(GatePairs), target.can.max_workgroup_memory))


def can_split_columns(op: Gemm, target: Target) -> bool:
    """True if columns can be split among workgroups, with the last one to finish adding up the parts."""
    joins = target.tuning.fusion.last_workgroup_reduces and target.can.coherent
    return joins and binds(op, SEVERAL, target, JOINING_BUFFERS)


def whole(op: Gemm, target: Target) -> bool:
    """True if a single dispatch computes all of it."""
    return len(shards_of(op, target)) == len(op.weights)


def buffers_of(op: Gemm, rows: int, target: Target) -> int:
    """The maximum number of storage buffers that its dispatch binds."""
    return op.buffers(rows) + (target.can.max_storage_buffers >= DIRECT_WORDS_BUFFERS)


def binds(op: Gemm, rows: int, target: Target, more: int = 0) -> bool:
    """True if the device can bind all buffers of its dispatch, and `more` in addition."""
    return buffers_of(op, rows, target) + more <= target.can.max_storage_buffers


def norms_whole_rows(op: Gemm, rows: int, config: GemmConfig, target: Target) -> bool:
    """True if its kernel supports its prologue, which needs whole rows of x."""
    fitted, _ = fit(op, config, target)
    memory = fitted.workgroup_bytes + STATISTICS_BYTES * fitted.tb * (fitted.wg // fitted.subgroup_width)
    fits = memory <= target.can.max_workgroup_memory and binds(op, rows, target)
    accepted = all(stage.accepted_by(config.entry) for stage in op.prologue)
    return whole(op, target) and fits and accepted and not config.reads_quantised


def blocks_of(products: Sequence[Shard], widths: Sequence[int], block: int, most: int = UNLIMITED) -> list[int]:
    """The number of workgroups for each matrix: one per block of rows, limited to a share of the maximum."""
    each = [-(-shard.rows // block) for shard in products]
    work = sum(count * width for count, width in zip(each, widths, strict=True))
    return [min(count, max(1, round(most * count * width / work))) for count, width in zip(each, widths, strict=True)]


def owned_blocks(config: GemmConfig, rows: int, out: int) -> int:
    """The number of adjacent blocks of rows of W per workgroup of skinny_gemm, given `out` rows in total."""
    blocks = -(-out // config.block)
    return -(-blocks // min(blocks, max(1, config.max_workgroups // -(-rows // config.tb))))
