"""Lowering of matrix products: the kernel, and the parts for the format, the device and each stage."""

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from ...gpu.merge import lanes
from ...gpu.plan import Slice
from ...gpu.weights import Shard
from ...kernels.gemm_config import GemmConfig
from ...kernels.parts import (
    ADAPTER_SUMS,
    BIASED,
    DIRECT_WORDS,
    JOINED_ROWS,
    PARTIAL_SUMS,
    PICKED_WORDS,
    PLAIN_STATISTICS,
    ROWS,
    SCALAR_ROWS,
    SINGLE,
    UNIFORM_TABLE,
    VEC4_ROWS,
)
from ..gemm import DIRECT_WORDS_BUFFERS, blocks_of, fit, owned_blocks, shards_of, spanned
from ..graph import Node
from ..nodes import Gemm
from ..nodes.epilogue import AddAdapters, GatePairs, QuantiseResult
from ..nodes.prologue import JoinColumns, ReadQuantised, ShiftTokens
from ..nodes.stage import Links, Stage
from ..quantising import quantise_for, x_start
from ..values import JoinedVectors, Operand, Value
from ..vocabulary import NUMBERS, scales_of_pairs
from .context import Lowering
from .matrix_units import on_matrix_units
from .quantising import quantise
from .table import Matrix, Table

REDUCE = "linear/splitk_reduce"
ROWS_OF_LANE = 4  # rows whose parts a lane adds up, if all lanes would still be busy with that; otherwise one row
STATES = "shift_state", "past"  # names of bindings that hold states
MAX_MERGED_GROUPS = 132  # workgroups that leave room for a merged product: one per multiprocessor of an H200
MAX_CONSTANT_TABLE_ROWS = 32  # on matrix units: up to this many rows of x per workgroup, the table is a constant


@dataclass(frozen=True)
class Bound:
    """The matrices of a dispatch and its operands."""

    name: str
    placed: Sequence[Matrix]
    operands: Mapping[str, Operand]
    joined: Matrix | None = None  # a second matrix whose columns follow those of the first

    @property
    def shards(self) -> list[Shard]:
        """The shards of all matrices with a result."""
        return [one.shard for one in self.placed]

    @property
    def widths(self) -> list[int]:
        """The number of columns of each matrix."""
        return [one.k for one in self.placed]


def gemm(to: Lowering, node: Node, op: Gemm) -> None:
    """Emits one dispatch for each binding of W, and a second one if columns are split (split-K)."""
    config = op.config
    assert config is not None, "every product has a kernel"
    if config.reads_quantised and not op.has(ReadQuantised):
        wanted = quantise_for(op, node.rows)
        quantise(to, node, wanted)
        op = op.reading(wanted.out)
    for bound in _bound(to, op):
        blocks = sum(-(-shard.rows // config.block) for shard in bound.shards)
        parts = config.cuts(-(-node.rows // config.tb) * blocks, bound.widths)
        if parts == 1:
            _dispatch(to, node, op, bound, op.stages)
        else:
            _split_k(to, node, op, bound, parts)


def _bound(to: Lowering, op: Gemm) -> list[Bound]:
    """The matrices of each dispatch. Matrices in one buffer share a dispatch; a large matrix may need several."""
    operands = _operands(to, op)
    if len(op.products) > 1 or op.has(JoinColumns):
        return [_together(to, op, operands)]
    [product] = op.products
    pairs, (out, width), x = op.has(GatePairs), product.weight.shape, _x_of(op, 0)
    scales = scales_of_pairs(product.weight) if pairs else (product.weight.scale, 1.0)
    pair = 1 + pairs
    return [
        Bound(
            product.weight.name,
            [Matrix(s, width, x, s.first // pair, out // pair, s.first, product.then, scales)],
            operands | {"w": s.slice},
        )
        for s in to.weights[product.weight.name].shards
    ]


def _operands(to: Lowering, op: Gemm) -> dict[str, Operand]:
    """The operands x, y and biases; each is a stack if there are several products."""
    [first, *others] = op.products
    x = next((stage.instead for stage in op.prologue if stage.instead is not None), first.x.root if others else first.x)
    found: dict[str, Operand] = {"x": x, "y": first.y.root if others else first.y}
    if op.has(AddAdapters) or not any(one.bias for one in op.products):
        return found
    if others:
        names = tuple(one.bias.name if one.bias else None for one in op.products)
        return found | {"bias": JoinedVectors(names, tuple(one.weight.shape[0] for one in op.products))}
    assert first.bias is not None
    return found | {"bias": to.vector(first.bias)}


def _together(to: Lowering, op: Gemm, operands: Mapping[str, Operand]) -> Bound:
    """Binds matrices of one buffer as one; their results are in one stack, or (JoinColumns) added up."""
    shards = shards_of(op, to.target)
    w = spanned(shards)
    shards = [shard.moved((shard.slice.offset - w.offset) // 16) for shard in shards]
    bias_at = itertools.accumulate((one.weight.shape[0] for one in op.products), initial=0)
    whole = len(op.products) == 1
    placed = [
        Matrix(
            shard,
            width,
            _x_of(op, i),
            0 if whole else one.y.offset // 4,
            one.weight.shape[0],
            at,
            one.then,
            (one.weight.scale, 1.0),
        )
        for i, (one, shard, width, at) in enumerate(zip(op.products, shards, op.widths, bias_at, strict=False))
    ]
    joined = op.find(JoinColumns)
    other = replace(placed[0], shard=shards[1], k=joined.weight.shape[1]) if joined else None
    return Bound("+".join(weight.name for weight in op.weights), placed, {**operands, "w": w}, other)


def _x_of(op: Gemm, index: int) -> int:
    """The start of a product's x: in floats, or in vec4s for quantised rows.

    Shifted rows count as if they were stored.
    """
    quantised = op.find(ReadQuantised)
    if quantised:
        return quantised.rows.starts[x_start(op, index)]
    return op.products[index].x.offset // 4 if op.has(ShiftTokens) else x_start(op, index)


def _split_k(to: Lowering, node: Node, op: Gemm, bound: Bound, parts: int) -> None:
    """Emits a dispatch with separate workgroups for each part of the columns, and one that adds up their sums."""
    count = node.rows * parts
    starts = [0, *itertools.accumulate(count * shard.rows for shard in bound.shards)]
    found = Value((node.rows, starts[-1] // node.rows))
    split = [replace(one, y=start) for one, start in zip(bound.placed, starts, strict=False)]
    own = {"x": bound.operands["x"], "w": bound.operands["w"], "y": found}
    _dispatch(to, node, op, Bound(bound.name, split, own), op.prologue, parts)
    reduced = [replace(one, x=start) for one, start in zip(bound.placed, starts, strict=False)]
    lanes, rows = to.tuning.lanes.map_lanes, node.rows
    each = blocks_of(bound.shards, bound.widths, lanes * (1 + op.has(GatePairs)))
    of_lane = ROWS_OF_LANE if sum(each) * rows * lanes >= ROWS_OF_LANE * to.tuning.lanes.resident_lanes else 1
    t_blocks = -(-rows // of_lane)
    table = Table.of(reduced, each, t_blocks, rows, parts)
    constants = {"WG": lanes, "OF_LANE": of_lane, **table.constants}
    links = Links(["lib/lanes/plain", *table.parts], constants, {**table.operands})
    links.operands |= {name: one for name, one in bound.operands.items() if name != "w"} | {"x": found}
    _add_stages(links, to, op, rows, op.epilogue)
    groups = table.blocks * t_blocks
    to.emit(node, bound.name, (REDUCE, *links.parts), links.constants, links.operands, groups=groups)


def _dispatch(to: Lowering, node: Node, op: Gemm, bound: Bound, stages: Sequence[Stage], parts: int = 1) -> None:
    """Emits one dispatch for all matrices; with several parts, it writes the partial sums of each."""
    assert op.config is not None
    config, staged = fit(op, op.config, to.target, bound.shards)
    mergeable = _behind(to, config) if op.merges and node.rows > to.tuning.fusion.merged_rows else config
    config = mergeable or config
    assert config.workgroup_bytes <= to.can.max_workgroup_memory, f"{config} needs too much memory"
    op = replace(op, config=config)
    links = Links([], {}, {**bound.operands})
    _add_format(links, to, bound, config)
    links.add(Links([*config.parts], {**config.constants}))
    if staged:
        links.add(Links([*staged.parts], {**staged.constants}))
    blocks = _add_table(links, op, bound, node.rows, parts)
    if parts > 1:
        links.parts.append(PARTIAL_SUMS)
    _add_stages(links, to, op, node.rows, stages)
    _add_rows(links, bound, config)
    if config.fragment:
        links.add(on_matrix_units(op, config, bound.shards[0], bound.widths, blocks))
    to.emit(
        node,
        bound.name,
        (config.kernel, *dict.fromkeys(links.parts)),
        links.constants,
        links.operands,
        groups=blocks * parts * config.joined_parts,
        fixed_bytes=_parameter_bytes(bound, links.operands),
        row_flops=sum(2 * one.shard.rows * one.k for one in bound.placed),
        shared_bytes=config.workgroup_bytes + (staged.nbytes if staged else 0) if mergeable else None,
    )


def _add_table(links: Links, op: Gemm, bound: Bound, rows: int, parts: int) -> int:
    """Links the table of matrices. Returns the number of blocks of rows of W times blocks of rows of x."""
    config, quantises = op.config, op.find(QuantiseResult)
    assert config is not None
    owned, t_blocks, parts = 1, -(-rows // config.tb), parts * config.joined_parts
    if quantises and quantises.out.size:
        owned = owned_blocks(config, rows, bound.shards[0].rows)
        links.constants["OWNED"] = owned
    most = max(1, config.max_workgroups // (t_blocks * parts))
    each = blocks_of(bound.shards, bound.widths, config.block * owned, most)
    constant = not config.takes(UNIFORM_TABLE) or bool(config.fragment and config.tb <= MAX_CONSTANT_TABLE_ROWS)
    table = Table.of(bound.placed, each, t_blocks, rows, parts, constant)
    table = table.joining(bound.joined) if bound.joined else table
    links.add(Links([*table.parts], table.constants, {**table.operands}))
    return table.blocks * t_blocks


def _add_stages(links: Links, to: Lowering, op: Gemm, rows: int, stages: Sequence[Stage]) -> None:
    """Links prologues and epilogues: stages, biases and activations."""
    links.constants |= NUMBERS | op.constants
    if "bias" in links.operands:
        links.parts.append(BIASED)
    for stage in stages:
        links.add(stage.links(to, op, rows))
    if not {PARTIAL_SUMS, ADAPTER_SUMS} & set(links.parts):
        links.parts.append("lib/activation")


def _add_rows(links: Links, bound: Bound, config: GemmConfig) -> None:
    """Links the part that reads x, unless a stage has already linked one."""
    if not config.reads_quantised and not {*ROWS.parts, JOINED_ROWS} & set(links.parts):
        links.parts += [PLAIN_STATISTICS, SCALAR_ROWS if any(width % 4 for width in bound.widths) else VEC4_ROWS]


def _add_format(links: Links, to: Lowering, bound: Bound, config: GemmConfig) -> None:
    """Links the parts that decode W. If the device has enough buffers, W is bound a second time as words."""
    parts: Sequence[str] = bound.shards[0].parts
    room = to.can.max_storage_buffers >= DIRECT_WORDS_BUFFERS
    if room and config.takes(DIRECT_WORDS) and PICKED_WORDS in parts:
        parts = [DIRECT_WORDS if part == PICKED_WORDS else part for part in parts]
        links.operands["words"] = bound.operands["w"]
    links.parts += parts
    links.constants["PADDED"] = int(any(width % 32 for width in bound.widths))
    if config.takes(SINGLE):
        links.constants["WIDTH"] = bound.widths[0]


def _behind(to: Lowering, own: GemmConfig) -> GemmConfig | None:
    """The config with the workgroup size of the previous dispatch, and with fewer rows of x if memory requires it.

    None if the two cannot share a dispatch or should not: on an H200, merging into a dispatch of 324 workgroups makes
    Granite 4 H Tiny 3% slower at batch 16.
    """
    before = to.dispatches[-1]
    if not own.entry.any_lanes or before.shared_bytes is None or before.groups > MAX_MERGED_GROUPS:
        return None
    config, room = replace(own, wg=int(lanes(before.linked))), to.can.max_workgroup_memory - before.shared_bytes
    while config.workgroup_bytes > room and config.tb > 1:
        config = replace(config, tb=config.tb // 2)
    fits = config.wg % config.lanes_per_row == 0 and config.workgroup_bytes <= room and config.runs_on(to.can)
    return config if fits else None


def _parameter_bytes(bound: Bound, operands: Mapping[str, Operand]) -> int:
    """Bytes of the matrices and vectors; the binding of W may contain other matrices in between."""
    vectors = (one for at, one in operands.items() if isinstance(one, Slice) and at not in ("w", "words", *STATES))
    matrices = [*bound.placed, *filter(None, [bound.joined])]
    return sum(one.shard.slice.nbytes for one in matrices) + sum(vector.nbytes for vector in vectors)
