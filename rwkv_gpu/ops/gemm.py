"""The kernel of a `Gemm`: which one fits its matrices, and what that kernel can do on the way."""

from collections.abc import Sequence
from dataclasses import replace

from ..gpu.plan import Slice
from ..gpu.weights import Shard
from ..kernels.gemm_config import MANY, Fitted, GemmConfig, Matrices, gemv
from .graph import Node
from .nodes import Gemm
from .nodes.epilogue import GatePairs
from .target import Target

FLOATS = gemv(64, 16, 4, 4)  # where a kernel of integers is chosen for what is not packed
DIRECT_WORDS_BUFFERS = 16  # that a device can bind where no dispatch lacks one for a second binding of W
SEVERAL = 2  # rows of x
JOINING_BUFFERS = 2  # what workgroups have found, and how many are done
STATISTICS_BYTES = 8  # of what a subgroup finds of a row while it norms it


def gemm_op(node: Node | None) -> Gemm | None:
    """The op of a node that is a `Gemm`."""
    return node.op if node is not None and isinstance(node.op, Gemm) else None


def needs(node: Node, before: Node) -> bool:
    """Whether it reads a value that the node before it writes."""
    return bool({value.root for value in before.op.writes} & {value.root for value in node.op.reads})


def shards_of(op: Gemm, target: Target) -> list[Shard]:
    """The bindings that hold its matrices: one each, but a large only one may have several."""
    return target.shards(op.weights)


def spanned(shards: Sequence[Shard]) -> Slice:
    """The part of a buffer from the first to the last of its matrices."""
    start = min(shard.slice.offset for shard in shards)
    end = max(shard.slice.offset + shard.slice.nbytes for shard in shards)
    return Slice(shards[0].slice.buffer, start, end - start)


def choose(
    op: Gemm, rows: int, target: Target, *, quantised_for_free: bool = False, rounded_for_free: bool = False
) -> GemmConfig:
    """The config that the tuning has for such products.

    `quantised_for_free` says that whatever makes x can write it as integers, too, `rounded_for_free` as float16.
    """
    shards = shards_of(op, target)
    shards = shards[: len(op.products)]  # a large matrix has a dispatch for each shard
    run, packed, out = shards[0].run, shards[0].packed, sum(shard.rows for shard in shards)
    config = target.tuning.gemm_config(rows, run, out, max(op.widths), packed, quantised_for_free, rounded_for_free)
    return FLOATS if config.integers and not packed else config


def fit(op: Gemm, config: GemmConfig, target: Target, shards: Sequence[Shard] | None = None) -> Fitted:
    """The same config as these matrices need it, and how it keeps rows of x in workgroup memory."""
    shards = shards or shards_of(op, target)[: len(op.products)]
    if config.joined_parts != 1 and not joins_parts(op, target):
        config = replace(config, joined_parts=1)
    return config.fit(Matrices(shards, op.widths, op.has(GatePairs), target.can.max_workgroup_memory))


def joins_parts(op: Gemm, target: Target) -> bool:
    """Whether workgroups can leave what they found of parts of the columns to the last of them."""
    joins = target.tuning.fusion.last_workgroup_reduces and target.can.coherent
    return joins and binds(op, SEVERAL, target, JOINING_BUFFERS)


def whole(op: Gemm, target: Target) -> bool:
    """Whether one dispatch holds all of it."""
    return len(shards_of(op, target)) == len(op.weights)


def buffers_of(op: Gemm, rows: int, target: Target) -> int:
    """The storage buffers that its dispatch binds at most."""
    return op.buffers(rows) + (target.can.max_storage_buffers >= DIRECT_WORDS_BUFFERS)


def binds(op: Gemm, rows: int, target: Target, more: int = 0) -> bool:
    """Whether a device can bind all that its dispatch wants, and some buffers more."""
    return buffers_of(op, rows, target) + more <= target.can.max_storage_buffers


def norms_whole_rows(op: Gemm, rows: int, config: GemmConfig, target: Target) -> bool:
    """Whether its kernel can do what its prologue asks for, which needs whole rows of x."""
    fitted, _ = fit(op, config, target)
    memory = fitted.workgroup_bytes + STATISTICS_BYTES * fitted.tb * (fitted.wg // fitted.subgroup_width)
    fits = memory <= target.can.max_workgroup_memory and binds(op, rows, target)
    accepted = all(stage.accepted_by(config.entry) for stage in op.prologue)
    return whole(op, target) and fits and accepted and not config.reads_quantised


def blocks_of(products: Sequence[Shard], widths: Sequence[int], block: int, most: int = MANY) -> list[int]:
    """Workgroups for each matrix: one for each block of rows, or shares of as many as there may be at most."""
    each = [-(-shard.rows // block) for shard in products]
    work = sum(count * width for count, width in zip(each, widths, strict=True))
    return [min(count, max(1, round(most * count * width / work))) for count, width in zip(each, widths, strict=True)]


def owned_blocks(config: GemmConfig, rows: int, out: int) -> int:
    """Blocks of rows of W side by side for a workgroup of skinny_gemm, where `out` rows are all."""
    blocks = -(-out // config.block)
    return -(-blocks // min(blocks, max(1, config.max_workgroups // -(-rows // config.tb))))
