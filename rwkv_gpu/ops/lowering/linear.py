"""Matrix products as dispatches: the kernel, and the parts that its prologue, its format and its epilogue are."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...gpu.merge import lanes
from ...gpu.plan import Slice
from ...gpu.shader import Constant
from ...gpu.weights import Shard
from ...kernels.gemm_config import GemmConfig
from ...kernels.parts import ADAPTER_OUTPUTS, ADAPTERS_UP, JOINED, JOINED_ROWS, SINGLE
from ...kernels.registry import takes
from ..gemm import (
    DIRECT_WORDS,
    DIRECT_WORDS_BUFFERS,
    EMITS_STATISTICS,
    PICKED_WORDS,
    blocks_of,
    fit,
    owned_blocks,
    result_of,
    shards_of,
    spanned,
)
from ..graph import Node
from ..nodes import Conv1d, ConvolutionPrologue, Gemm, JoinedColumns, NormPrologue, TokenShiftPrologue
from ..quantising import BY_SUBGROUPS, quantise_for, x_start
from ..values import JoinedVectors, Operand, RowStatistics, Value
from ..vocabulary import NUMBER, NUMBERS, LayerNorm, scales_of_pairs
from . import adapters
from .context import Lowering
from .matrix_units import joined_sums, on_matrix_units
from .quantising import STORES_QUANTISED, quantise
from .table import Placed, Table

STATES = "shift_state", "past"  # what is bound of them
FEW_GROUPS = 132  # workgroups that leave room for others: one for each processor of an H200
FEW_ROWS = 32  # of x for a workgroup on matrix units, where the table of matrices is a constant


@dataclass(frozen=True)
class Bound:
    """The matrices of a dispatch, and what it binds for them."""

    name: str
    placed: Sequence[Placed]
    operands: Mapping[str, Operand]
    joined: Placed | None = None  # whose columns follow those of the only one

    @property
    def seam(self) -> dict[str, Constant]:
        """What a kernel of joined columns is specialised by: chunks of 32 columns of both matrices."""
        if self.joined is None:
            return {}
        [width] = self.widths
        return {"SEAM": (width - self.joined.k) // 32, "BEHIND_SEAM": self.joined.k // 32}

    @property
    def shards(self) -> list[Shard]:
        """What it reads of weights."""
        return [one.shard for one in (*self.placed, *filter(None, [self.joined]))]

    @property
    def widths(self) -> list[int]:
        """Columns of each matrix."""
        return [one.k for one in self.placed]


def gemm(to: Lowering, node: Node, op: Gemm) -> None:
    """One dispatch for each binding of W, and one more where columns are cut into parts."""
    assert op.config is not None, "every product has a kernel"
    config = op.config
    if config.reads_quantised and op.quantised_x is None:
        wanted = quantise_for(op, node.rows)
        quantise(to, node, wanted)
        op = replace(op, prologue=None, quantised_x=wanted.out)
    for bound in _bound(to, op):
        blocks = sum(-(-one.shard.rows // config.block) for one in bound.placed)
        parts = config.cuts(-(-node.rows // config.tb) * blocks, bound.widths)
        if parts == 1:
            _dispatch(to, node, op, bound)
        else:
            _split_k(to, node, op, bound, parts)


def _bound(to: Lowering, op: Gemm) -> list[Bound]:
    """What each dispatch multiplies."""
    operands: dict[str, Operand] = {}
    if op.add is not None:
        operands["residual"] = op.add
    if op.by is not None:
        operands["by"] = op.by
    if op.columns_of is not None:
        operands["scales"] = op.columns_of
    if op.saves:
        state = to.memory.states[op.saves.state.name]
        operands |= {"normed_row": op.saves.normed, "shift_state": state, "segment": to.segments}
    if op.quantises:
        operands["quantised" if op.quantises.size else "rounded"] = op.quantises.value
    if op.next_gain:
        operands["next_gain"] = to.vector(op.next_gain)
    if op.adapters:
        operands |= adapters.up_operands(to, op)
    if len(op.products) > 1:
        return [_several(to, op, operands)]
    [product] = op.products
    (out, width), x = product.weight.shape, _x_of(op, 0)
    operands |= {"x": op.quantised_x.value if op.quantised_x else product.x, "y": product.y}
    if product.bias is not None and not op.adds_to_sums:
        operands["bias"] = to.vector(product.bias)
    if op.joined:
        return [_joined(to, op, op.joined, operands)]
    pair = 2 if op.pairs else 1
    scales = scales_of_pairs(product.weight) if op.pairs else (product.weight.scale, 1.0)
    return [
        Bound(
            product.weight.name,
            [Placed(s, width, x, s.first // pair, out // pair, s.first, product.then, scales)],
            operands | {"w": s.slice},
        )
        for s in to.weights[product.weight.name].shards
    ]


def _together(to: Lowering, op: Gemm) -> tuple[list[Shard], Slice]:
    """Matrices of one buffer as one binding has them, and that."""
    shards = shards_of(op, to.target)
    bound = spanned(shards)
    return [shard.moved((shard.slice.offset - bound.offset) // 16) for shard in shards], bound


def _joined(to: Lowering, op: Gemm, joined: JoinedColumns, operands: Mapping[str, Operand]) -> Bound:
    """Two matrices with as many rows, whose sums are added."""
    [product], [width], ((first, second), w) = op.products, op.widths, _together(to, op)
    scales, name = (product.weight.scale, 1.0), "+".join(weight.name for weight in op.weights)
    own = Placed(first, width, _x_of(op, 0), 0, first.rows, 0, product.then, scales)
    other = replace(own, shard=second, k=joined.weight.shape[1])
    return Bound(name, [own], {**operands, "w": w, "z": joined.x}, other)


def _several(to: Lowering, op: Gemm, operands: Mapping[str, Operand]) -> Bound:
    """Matrices of one buffer, whose results lie in one stack."""
    shards, w = _together(to, op)
    outs = [one.weight.shape[0] for one in op.products]
    biases: dict[str, Operand] = {}
    if any(one.bias for one in op.products) and not op.adds_to_sums:
        names = tuple(one.bias.name if one.bias else None for one in op.products)
        biases["bias"] = JoinedVectors(names, tuple(outs))
    bias_at = itertools.accumulate(outs, initial=0)
    placed = [
        Placed(
            shard,
            one.weight.shape[1],
            _x_of(op, i),
            one.y.offset // 4,
            one.weight.shape[0],
            at,
            one.then,
            (one.weight.scale, 1.0),
        )
        for i, (one, shard, at) in enumerate(zip(op.products, shards, bias_at, strict=False))
    ]
    x = op.quantised_x.value if op.quantised_x else op.products[0].x.root
    own: dict[str, Operand] = {"x": x, "y": op.products[0].y.root, "w": w}
    return Bound("+".join(one.weight.name for one in op.products), placed, {**operands, **own, **biases})


def _x_of(op: Gemm, index: int) -> int:
    """Where the x of a product starts: in floats, of quantised rows in vec4s, of shifted rows as if they were there."""
    if op.quantised_x:
        return op.quantised_x.starts[x_start(op, index)]
    if isinstance(op.prologue, TokenShiftPrologue):
        return op.products[index].x.offset // 4
    return x_start(op, index)


def _split_k(to: Lowering, node: Node, op: Gemm, bound: Bound, parts: int) -> None:
    """Workgroups of their own for each part of the columns, and a dispatch that adds up what they found."""
    count = node.rows * parts
    starts = [0, *itertools.accumulate(count * one.shard.rows for one in bound.placed)]
    found = Value((node.rows, starts[-1] // node.rows))
    split = [replace(one, y=start) for one, start in zip(bound.placed, starts, strict=False)]
    columns = ("b", "low") if op.adapters and not op.adds_to_sums else ()
    own = {name: bound.operands[name] for name in ("x", "w", *columns)} | {"y": found}
    _dispatch(to, node, op, Bound(bound.name, split, own), parts)
    reduced = [replace(one, x=start) for one, start in zip(bound.placed, starts, strict=False)]
    operands = {name: operand for name, operand in bound.operands.items() if name not in ("w", *columns)} | {"x": found}
    lanes = to.tuning.map_lanes
    each = blocks_of([one.shard for one in reduced], bound.widths, lanes * (2 if op.pairs else 1))
    table = Table.of(reduced, each, node.rows, node.rows, parts)
    to.emit(
        node,
        bound.name,
        ("linear/splitk_reduce", "lib/lanes/plain", *table.parts, *_epilogue(op, bound, node.rows)),
        {"WG": lanes} | table.constants | _epilogue_constants(to, replace(op, adapters=None) if columns else op),
        operands | table.operands,
        groups=table.blocks * node.rows,
    )


def _dispatch(to: Lowering, node: Node, op: Gemm, bound: Bound, parts: int = 1) -> None:
    """One dispatch for all matrices; with several parts it writes the sums of each."""
    assert op.config is not None
    split = parts > 1
    shards = [one.shard for one in bound.placed]
    config, staged = fit(op, op.config, to.target, shards)
    beside = _beside(to, config) if op.merges and node.rows > to.tuning.merged_rows else config
    config = beside or config
    assert config.workgroup_bytes <= to.can.max_workgroup_memory, f"{config} wants too much memory"
    t_blocks = -(-node.rows // config.tb)
    integers = op.quantises if op.quantises and op.quantises.size else None
    owned = owned_blocks(config, node.rows, shards[0].rows) if integers else 1
    parts *= config.joined_parts
    each = blocks_of(shards, bound.widths, config.block * owned, max(1, config.max_workgroups // (t_blocks * parts)))
    constant = not takes(config.kernel, "linear/table/uniform")
    few = constant or config.kernel == "linear/skinny_gemm" or bool(config.fragment and config.tb <= FEW_ROWS)
    table = Table.of(bound.placed, each, t_blocks, node.rows, parts, few)
    format_parts, words = _format(to, shards[0], config.kernel, bound.operands["w"])
    epilogue = ["linear/epilogue/partial_sums"] if split else _epilogue(op, bound, node.rows)
    linked = [*format_parts, *table.parts, *epilogue, *config.parts]
    if bound.joined:
        table = table.joining(bound.joined)
    constants = config.constants | table.constants | bound.seam
    constants |= _epilogue_constants(to, replace(op, adapters=None) if split and op.adds_to_sums else op)
    if integers:
        linked += [part for part in STORES_QUANTISED if part not in linked]
        constants |= integers.constants | {"OWNED": owned}
    elif config.kernel == "linear/skinny_gemm":
        linked.append("linear/epilogue/no_quantise")
    constants |= {"PADDED": int(any(width % 32 for width in bound.widths))}
    if staged:
        linked += staged.parts
        constants |= staged.constants
    if config.fragment:
        own_parts, own_constants = on_matrix_units(op, node.rows, config, shards[0], bound.widths)
        linked += own_parts
        constants |= own_constants
    if config.kernel == "linear/gemv_single_pass":
        linked.append(JOINED if bound.joined else SINGLE)
        constants["WIDTH"] = bound.widths[0]
    operands = dict(bound.operands)
    if config.kernel in BY_SUBGROUPS:
        joined_parts, joined = joined_sums(config, table.blocks * t_blocks)
        linked += joined_parts
        operands |= joined
    if config.kernel in EMITS_STATISTICS:
        linked.append("linear/row_statistics/emit" if op.emits else "linear/row_statistics/no_emit")
        operands |= {"statistics": op.emits.value} if op.emits else {}
    prologue, own, read = _prologue(to, node, op, bound, config)
    operands |= read
    to.emit(
        node,
        bound.name,
        (config.kernel, *linked, *prologue),
        constants | own,
        operands | words | table.operands,
        groups=table.blocks * t_blocks * parts,
        fixed_bytes=_parameter_bytes(bound.shards, operands),
        row_flops=sum(2 * one.shard.rows * one.k for one in bound.placed),
        shared_bytes=config.workgroup_bytes + (staged.nbytes if staged else 0) if beside else None,
    )


def _beside(to: Lowering, own: GemmConfig) -> GemmConfig | None:
    """With workgroups like those of the dispatch before, for as many rows of x as the memory holds that it leaves.

    None where that leaves no room: on an H200 merging behind 324 workgroups loses 3% of Granite 4 H Tiny by 16.
    """
    before = to.dispatches[-1]
    if own.kernel != "linear/gemv" or before.shared_bytes is None or before.groups > FEW_GROUPS:
        return None
    config, room = replace(own, wg=int(lanes(before.linked))), to.can.max_workgroup_memory - before.shared_bytes
    while config.workgroup_bytes > room and config.tb > 1:
        config = replace(config, tb=config.tb // 2)
    fits = config.wg % config.lanes_per_row == 0 and config.workgroup_bytes <= room and config.runs_on(to.can)
    return config if fits else None


def _parameter_bytes(shards: Sequence[Shard], operands: Mapping[str, Operand]) -> int:
    """Of matrices and vectors; what is bound of W may hold other matrices in between."""
    vectors = (o for at, o in operands.items() if isinstance(o, Slice) and at not in ("w", *STATES))
    return sum(shard.slice.nbytes for shard in shards) + sum(vector.nbytes for vector in vectors)


def _format(to: Lowering, shard: Shard, kernel: str, w: Operand) -> tuple[Sequence[str], dict[str, Operand]]:
    """The parts that decode W for a kernel, and what they bind beside it."""
    room = to.can.max_storage_buffers >= DIRECT_WORDS_BUFFERS
    if not room or kernel not in DIRECT_WORDS or PICKED_WORDS not in shard.parts:
        return shard.parts, {}
    return ["formats/words" if part == PICKED_WORDS else part for part in shard.parts], {"words": w}


def _epilogue(op: Gemm, bound: Bound, rows: int) -> list[str]:
    """The parts of a kernel that say what becomes of a sum."""
    if op.quantises and op.quantises.size:
        return ["linear/epilogue/quantise", "lib/activation"]
    parts = [f"linear/epilogue/{result_of(op)}", "lib/activation"]
    if op.columns_of is not None:
        return parts[:1]
    if op.pairs:
        return [*parts, ADAPTERS_UP, ADAPTER_OUTPUTS] if op.adds_to_sums else parts
    residual = "residual" if op.add is not None else "no_residual"
    if op.saves:
        residual = "residual_save_state" if rows == 1 else "residual_save_state_rows"
    elif op.quantises and op.quantises.eps is not None:
        residual = "residual_to_norm"
    if op.by is not None:
        return [*parts, f"linear/epilogue/{residual}"]
    bias = "linear/epilogue/bias" if "bias" in bound.operands else "linear/epilogue/no_bias"
    added = (ADAPTERS_UP, ADAPTER_OUTPUTS) if op.adds_to_sums else (bias,)
    return [*parts, *added, f"linear/epilogue/{residual}"]


def _epilogue_constants(to: Lowering, op: Gemm) -> dict[str, Constant]:
    """What an epilogue is specialised by. Of gate and up the compiler knows the activation: others cost registers."""
    own: dict[str, Constant] = {"THEN": NUMBER[op.products[0].then]} if op.pairs else {"SCALE": float(op.scale)}
    return NUMBERS | own | (adapters.up_constants(to, op) if op.adapters else {})


Prologue = tuple[list[str], dict[str, Constant], dict[str, Operand]]


def _prologue(to: Lowering, node: Node, op: Gemm, bound: Bound, config: GemmConfig) -> Prologue:
    """What a kernel links, is specialised by, and binds, to read x: as it is, normed, shifted or convolved."""
    if config.reads_quantised:
        return [], {}, {}
    prologue = op.prologue
    rms = isinstance(prologue, NormPrologue) and not isinstance(prologue.how, LayerNorm)
    parts = ["linear/prologue/rms_norm" if rms else "linear/prologue/no_norm"] if config.norms else []
    if isinstance(prologue, TokenShiftPrologue):
        own, constants, operands = _token_shift(to, node, prologue)
        return [*parts, *own], constants, operands
    if isinstance(prologue, ConvolutionPrologue):
        own, constants, operands = _convolution(to, prologue.conv)
        return [*parts, *own], constants, operands
    if isinstance(prologue, NormPrologue) and isinstance(prologue.how, LayerNorm):
        assert prologue.how.bias is not None, "a norm without one is a node of its own"
        own, constants, operands = _statistics(prologue.statistics)
        constants |= {"D": bound.widths[0], "EPS": float(prologue.how.eps)}
        operands |= {"gain": to.gain(prologue.how), "shift": to.vector(prologue.how.bias)}
        return [*parts, "linear/prologue/layer_norm", *own], constants, operands
    rows = JOINED_ROWS if bound.joined else "lib/rows/scalar" if any(w % 4 for w in bound.widths) else "lib/rows/vec4"
    parts += ["linear/prologue/plain", rows]
    if prologue is None:
        return parts, {}, {}
    return parts, {"EPS": float(prologue.how.eps)}, {"gain": to.gain(prologue.how)}


def _token_shift(to: Lowering, node: Node, prologue: TokenShiftPrologue) -> Prologue:
    one = node.rows == 1
    assert prologue.norm.bias is not None
    own, constants, operands = _statistics(prologue.statistics) if one else (["linear/row_statistics/merge"], {}, {})
    parts = ["linear/prologue/token_shift" if one else "linear/prologue/token_shift_rows", *own]
    constants |= {"D": prologue.x.shape[1], "EPS": float(prologue.norm.eps)}
    constants |= {} if one else {"ROWS": node.rows}
    operands |= {
        "gain": to.gain(prologue.norm),
        "shift": to.vector(prologue.norm.bias),
        "mix": to.vector(prologue.mix),
        "x": prologue.x,
        "shift_state": to.memory.states[prologue.state.name],
        "segment": to.segments,
    }
    if prologue.store is None:
        return [*parts, "linear/prologue/no_normed_row"], constants, operands
    return [*parts, "linear/prologue/store_normed_row"], constants, operands | {"normed_row": prologue.store}


def _convolution(to: Lowering, conv: Conv1d) -> Prologue:
    assert conv.weight is not None, "one that shifts rows is a node of its own"
    past, channels = conv.state.shape
    operands: dict[str, Operand] = {
        "x": conv.x,
        "taps": to.vector(conv.weight),
        "past": to.memory.states[conv.state.name],
        "segment": to.segments,
    }
    return ["linear/prologue/convolution"], {"C": channels, "PAST": past}, operands


def _statistics(statistics: RowStatistics | None) -> Prologue:
    """How the mean and deviation of the only row are found: computed, or loaded from what a product has emitted."""
    parts = ["linear/prologue/single_row"]
    if statistics is None:
        return [*parts, "linear/row_statistics/merge", "linear/row_statistics/compute"], {}, {}
    constants: dict[str, Constant] = {"STATISTICS": statistics.parts, "STATISTICS_ROWS": statistics.columns}
    return [*parts, "linear/row_statistics/load"], constants, {"statistics": statistics.value}
