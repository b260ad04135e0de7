"""The kernel of a `Gemm`: which one fits its matrices, and what that kernel can do on the way."""

from collections.abc import Sequence
from dataclasses import replace

from ..gpu.plan import Slice
from ..gpu.weights import Shard
from ..kernels.gemm_config import MANY, GemmConfig, gemv
from .graph import Node
from .nodes import ConvolutionPrologue, Gemm, TokenShiftPrologue
from .staging import Pieces, Staged, staging
from .target import Target
from .vocabulary import Rms

FLOATS = gemv(64, 16, 4, 4)  # where a kernel of integers is chosen for what is not packed
DIRECT_WORDS = "linear/gemv_single_pass", "linear/gemv_int", "linear/skinny_gemm"
DIRECT_WORDS_BUFFERS = 16  # that a device can bind where no dispatch lacks one for a second binding of W
PICKED_WORDS = "formats/vec4s"  # the part of a format that picks words out of vec4s
EMITS_STATISTICS = "linear/gemv_single_pass", "linear/gemv_int"
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


def result_of(op: Gemm) -> str:
    """The part that says what becomes of sums, without activation quantisation."""
    if op.by is not None:
        return "scaled_rows"
    if op.columns_of is not None:
        return "adapter_columns"
    if op.pairs:
        return "adapted_pairs" if op.adds_to_sums else "gated_pairs"
    return "rows"


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


def fit(
    op: Gemm, config: GemmConfig, target: Target, shards: Sequence[Shard] | None = None
) -> tuple[GemmConfig, Staged | Pieces | None]:
    """The same config as these matrices need it, and how it keeps rows of x in workgroup memory."""
    shards = shards or shards_of(op, target)[: len(op.products)]
    if config.joined_parts != 1 and not joins_parts(op, target):
        config = replace(config, joined_parts=1)
    return staging(config, shards, op.widths, result_of(op), target.can.max_workgroup_memory)


def joins_parts(op: Gemm, target: Target) -> bool:
    """Whether workgroups can leave what they found of parts of the columns to the last of them."""
    joins, buffers = target.tuning.last_workgroup_joins and target.can.coherent, buffers_of(op, SEVERAL, target)
    return joins and buffers + JOINING_BUFFERS <= target.can.max_storage_buffers


def whole(op: Gemm, target: Target) -> bool:
    """Whether one dispatch holds all of it."""
    return len(shards_of(op, target)) == len(op.weights)


def buffers_of(op: Gemm, rows: int, target: Target) -> int:
    """The storage buffers that its dispatch binds."""
    count = 3 + sum(value is not None for value in (op.by, op.add, op.columns_of))
    count += 2 * (op.adapters is not None) + (op.joined is not None)
    count += op.adds_to_sums or any(one.bias for one in op.products)
    if op.saves:
        count += 2 + (rows > 1)
    if isinstance(op.prologue, TokenShiftPrologue):
        count += 4 + (op.prologue.store is not None) + (rows > 1)
    elif isinstance(op.prologue, ConvolutionPrologue):
        count += 2
    elif op.prologue:
        count += 1 if isinstance(op.prologue.how, Rms) else 2
    count += (op.statistics is not None) + (op.emits is not None) + (op.quantises is not None)
    return count + (target.can.max_storage_buffers >= DIRECT_WORDS_BUFFERS)


def norms_whole_rows(op: Gemm, rows: int, config: GemmConfig, target: Target) -> bool:
    """Whether its kernel can norm rows of x with mean and deviation before it multiplies them."""
    fitted, _ = fit(op, config, target)
    memory = fitted.workgroup_bytes + STATISTICS_BYTES * fitted.tb * (fitted.wg // fitted.subgroup_width)
    fits = memory <= target.can.max_workgroup_memory and buffers_of(op, rows, target) <= target.can.max_storage_buffers
    return whole(op, target) and fits and config.norms and not config.reads_quantised


def blocks_of(products: Sequence[Shard], widths: Sequence[int], block: int, most: int = MANY) -> list[int]:
    """Workgroups for each matrix: one for each block of rows, or shares of as many as there may be at most."""
    each = [-(-shard.rows // block) for shard in products]
    work = sum(count * width for count, width in zip(each, widths, strict=True))
    return [min(count, max(1, round(most * count * width / work))) for count, width in zip(each, widths, strict=True)]


def owned_blocks(config: GemmConfig, rows: int, out: int) -> int:
    """Blocks of rows of W side by side for a workgroup of skinny_gemm, where `out` rows are all."""
    blocks = -(-out // config.block)
    return -(-blocks // min(blocks, max(1, config.max_workgroups // -(-rows // config.tb))))
