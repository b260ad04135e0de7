"""Activation quantisation: the quantised rows that products need, and the nodes that can write them."""

from collections.abc import Mapping
from dataclasses import dataclass

from ..gpu.device import Capabilities
from ..kernels.expert_config import ExpertConfig
from ..kernels.gemm_config import BYTES, MATRIX_STEP, GemmConfig
from ..kernels.matrix_tiles import fragments_of
from ..kernels.parts import ADAPTER_COLUMNS, NEXT_OF_BLOCK, PART_NEEDS, QUANTISED_SUMS, SUMS_ROUNDED, UNIT_OF_ALL
from .attention_partition import lanes_share_keys
from .gemm import binds, fit, owned_blocks, whole
from .graph import Graph, Node, Op
from .moe import head_config, matrices_of, multiplies_rounded, sums_at_once
from .nodes import (
    Attend,
    Conv1d,
    ExpertProducts,
    ExpertSum,
    GatedDeltaRule,
    Gemm,
    HeadLinear,
    Norm,
    Quantise,
    Ssd,
    TimeMix,
    TokenShift,
    Wkv6,
)
from .nodes.epilogue import AddResidual, GatePairs, QuantiseResult, SaveState, Scale
from .nodes.prologue import NormRows, ReadQuantised
from .rwkv import takes_one_row
from .state_space import lanes_and_rows
from .target import Target
from .values import Quantised, Value
from .vocabulary import Rms

CHUNK = 32  # columns that share a scale
MAX_COLUMNS = 128  # maximum adapter columns appended to a matrix: eight adapters of rank 16
BUFFERS = 9  # storage buffers of a kernel that writes integers in addition to floats
ATTENTION_BUFFERS = 14
# Units of float16 rows whose maximum is not known; the largest number is 2^16 units. UNIT_TO_NORM is for residuals,
# which may be small because they are normed. UNIT is for results of attention and of gate times up, which are added to
# residuals.
UNIT, UNIT_TO_NORM = 8.0, 2.0
RECURRENCE_BUFFERS = 10  # the same for recurrences

Recurrence = TimeMix | Ssd | GatedDeltaRule | Wkv6


@dataclass(frozen=True)
class Quantisable:
    """The values that a node can also write quantised."""

    widths: Mapping[int, int]  # width of each value, by its start in their stack, in floats
    size: int = 0  # bytes of an integer, if only one size is supported
    rounds: bool = False  # whether it can also write float16 with a power of two for each row


def can_quantise(graph: Graph, node: Node, target: Target) -> Quantisable | None:
    """The values that a node can also write as integers; None if it cannot."""
    op = node.op
    if node.rows == 1 or target.can.max_storage_buffers < BUFFERS:
        return None
    if isinstance(op, TokenShift) and not op.quantises:
        widths = {y.offset // 4: y.shape[1] for y in op.ys}
        found = Quantisable(widths, rounds=all(width % MATRIX_STEP == 0 for width in widths.values()))
    elif isinstance(op, Recurrence) and not op.quantises and _has_whole_heads(op, graph, target):
        found = Quantisable({0: op.y.shape[1]})
    elif isinstance(op, Gemm) and _has_whole_chunks(op, node.rows, target):
        assert op.config is not None
        found = Quantisable({0: op.products[0].weight.shape[0]}, BYTES[op.config.activations])
    else:
        return None
    return found if all(width % CHUNK == 0 for width in found.widths.values()) else None


def _has_whole_heads(op: Recurrence, graph: Graph, target: Target) -> bool:
    """True if each workgroup of a recurrence has whole chunks of its result, in decode."""
    if isinstance(op, TimeMix):
        return takes_one_row(op, graph.shape, target)
    can = target.can
    if not graph.shape.row_each or can.max_storage_buffers < RECURRENCE_BUFFERS or can.subgroup_width * 4 < CHUNK:
        return False
    if op.y.shape[1] < target.tuning.fusion.quantising_width:
        return False
    rows = lanes_and_rows(op.state.shape[1], op.state.shape[2], target)[1] if isinstance(op, Ssd) else op.state.shape[1]
    return rows % CHUNK == 0


def _has_whole_chunks(op: Gemm, rows: int, target: Target) -> bool:
    """True if each workgroup of a product writes whole chunks of columns."""
    [product, *others] = op.products
    plain = not (others or op.merges or product.bias) and op.only(ReadQuantised, Scale)
    if op.config is None or not plain or not whole(op, target):
        return False
    config, _ = fit(op, op.config, target)
    if not config.takes(QUANTISED_SUMS):
        return False
    owned = config.block * owned_blocks(config, rows, product.weight.shape[0])
    fits = config.workgroup_bytes + 4 * owned * config.tb <= target.can.max_workgroup_memory
    return owned % CHUNK == 0 and fits


def quantise_for(op: Gemm, rows: int) -> Quantise:
    """The quantisation that a product needs if its kernel reads quantised rows."""
    assert op.config is not None
    norms = op.find(NormRows)
    norm = norms.how if norms else None
    assert isinstance(norm, Rms | None), "a layer norm has kernels of its own"
    x = op.products[0].x if len(op.products) == 1 else op.products[0].x.root
    widths = {x_start(op, i): one.weight.shape[1] for i, one in enumerate(op.products)}
    if op.config.activations == "f16":
        side = op.config.fragment if op.config.entry.x_order == "fragments" else 0
        return Quantise(x, tuple(widths.items()), rounded_rows(widths, rows, side), norm)
    size = BYTES[op.config.activations]
    starts, end = {}, 0
    for start, width in widths.items():
        starts[start] = end
        end += width // CHUNK * (2 * size + 1) * rows
    out = Quantised(Value((rows, 4 * end // rows)), starts, size, op.config.entry.x_order == "rows")
    return Quantise(x, tuple(widths.items()), out, norm)


def rounded_rows(widths: Mapping[int, int], rows: int, fragment: int = 0) -> Quantised:
    """The layout of each x as float16, in vec4s: rows padded to 64 columns, then an exponent for each row.

    With a fragment side, the layout is by fragments and columns, for `rows` rows.
    """
    starts, end = {}, 0
    padded = fragments_of(rows, fragment) * fragment if fragment else rows
    for start, width in widths.items():
        starts[start] = end
        end += padded * (-(-width // MATRIX_STEP) * MATRIX_STEP // 4) + rows
    return Quantised(Value((rows, -(-2 * end // rows))), starts, 0, by_rows=not fragment)


def each(x: Value) -> int:
    """The number of rows of x per row of the step: results of products with experts have one per choice."""
    return x.shape[1] if len(x.shape) > 2 else 1


def rounding_for(op: ExpertProducts | ExpertSum, rows: int) -> Quantise:
    """The rounding that products with experts on matrix units need."""
    widths = {0: op.x.shape[-1]}
    norm = op.norm if isinstance(op, ExpertProducts) else None
    return Quantise(op.x, tuple(widths.items()), rounded_rows(widths, rows * each(op.x)), norm)


def can_round(graph: Graph, node: Node, wanted: Quantise, target: Target) -> bool:
    """True if a node can also write its only value as float16 multiples of a power of two, before an optional norm."""
    op, norm = node.op, wanted.norm
    if norm and norm.weight is None:
        return False
    if isinstance(op, ExpertProducts | ExpertSum):
        return _experts_round(op, node.rows, wanted, target)
    if wanted.out.by_rows:
        return False
    if isinstance(op, HeadLinear):
        return norm is None and _heads_round(op, node.rows, target)
    if isinstance(op, Gemm) and op.config and op.config.takes(SUMS_ROUNDED):
        [product, *others] = op.products
        columns = product.weight.shape[0] // (1 + op.has(GatePairs))
        plain = whole(op, target) and not (others or op.merges or op.has(QuantiseResult, SaveState))
        adds = norm is None or (op.has(AddResidual) and target.can.subgroup_width >= op.config.fragment)
        room = binds(op, node.rows, target, 1 + (norm is not None))
        return plain and adds and room and columns % MATRIX_STEP == 0
    if not isinstance(op, Attend | Conv1d | Recurrence) or norm or op.quantises:
        return False
    by_row, buffers = graph.shape.row_each, RECURRENCE_BUFFERS + 1
    if isinstance(op, TimeMix):
        by_row = takes_one_row(op, graph.shape, target)
    if isinstance(op, Attend):
        shares = lanes_share_keys(op.cache, op.how, target.tuning, target.can)
        by_row, buffers = graph.shape.decode and shares and op.chosen is None, ATTENTION_BUFFERS
    return by_row and op.y.shape[1] % MATRIX_STEP == 0 and target.can.max_storage_buffers >= buffers


def rounds_normed(op: Norm, norm: Rms | None) -> bool:
    """True if a norm can also write its rows as float16, after an optional second norm."""
    plain = isinstance(op.how, Rms) and not op.quantises and op.y.shape[1] % MATRIX_STEP == 0
    return plain and norm is not None and norm.weight is not None


def _heads_round(op: HeadLinear, rows: int, target: Target) -> bool:
    """True if a per-head product can also write float16: it uses matrix units, and no vec4 spans two heads."""
    units = all(head_config(one, rows, target).fragment for one in matrices_of(op.weight, target))
    whole_fours = op.weight.shape[1] % 4 == 0 and op.y.shape[1] % MATRIX_STEP == 0
    return units and whole_fours and target.can.max_storage_buffers >= BUFFERS and not op.quantises


def _experts_round(op: ExpertProducts | ExpertSum, rows: int, wanted: Quantise, target: Target) -> bool:
    """True if products with experts, or their sum before a norm, can also be written as float16."""
    able = op.y.shape[-1] % MATRIX_STEP == 0 and target.can.max_storage_buffers >= BUFFERS and not op.quantises
    if isinstance(op, ExpertProducts):
        return able and wanted.norm is None and wanted.out.by_rows and multiplies_rounded(op, rows, target)
    able = able and wanted.norm is not None and not wanted.out.by_rows
    able = able and target.can.subgroup_width >= target.can.fragment
    at_once = sums_at_once(op, rows, target)
    return able and (at_once is None or _sums_by_fragments(at_once.summing, target.can))


def _sums_by_fragments(config: ExpertConfig, can: Capabilities) -> bool:
    """True if each workgroup of a product with a sum has whole fragments of columns, as sums of squares require."""
    able = config.kernel == "moe/expert_gemv_int" and PART_NEEDS[NEXT_OF_BLOCK].met(can)
    return able and config.block % can.fragment == 0


def reads_units(op: Op, norm: Rms | None) -> bool:
    """True if an op can read float16 rows in a fixed unit, and apply an optional norm."""
    if isinstance(op, ExpertProducts | ExpertSum):
        return norm is None
    return isinstance(op, Gemm) and op.config is not None and op.config.takes(UNIT_OF_ALL)


def multiplies_columns(config: GemmConfig) -> bool:
    """True if a kernel for prompts accepts B of adapters as further columns, with float16 rows."""
    return config.takes(ADAPTER_COLUMNS) and config.entry.x_order == "rows"


def rounded_in_units(wanted: Quantise, rows: int, fragment: int) -> Quantised:
    """The layout of x as float16 in a unit, by rows or fragments; before a norm, sums of squares follow."""
    width, rows, norm = wanted.x.shape[-1], rows * each(wanted.x), wanted.norm
    padded = rows if wanted.out.by_rows else fragments_of(rows, fragment) * fragment
    words = padded * (width // 2 + (width // fragment if norm else 0))
    unit, eps = (UNIT, None) if norm is None else (UNIT_TO_NORM, norm.eps)
    return Quantised(Value((rows, -(-words // rows))), {0: 0}, 0, wanted.out.by_rows, unit=unit, eps=eps)


def x_start(op: Gemm, index: int) -> int:
    """The start of a product's x in its binding, in floats: a single x is bound alone, several as a stack."""
    return op.products[index].x.offset // 4 if len(op.products) > 1 else 0
