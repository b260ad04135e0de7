"""Lowering of embedding, norms, elementwise and row ops, residual streams, copies and picked rows."""

import math
from collections.abc import Mapping
from functools import partial

import numpy as np
import numpy.typing as npt

from ...gpu.shader import Constant
from ...kernels.parts import ROUNDED
from ..elementwise import ELEMENTWISE
from ..graph import Node
from ..nodes import (
    AddToStreams,
    ByRow,
    Copy,
    CorrectStreams,
    Embed,
    Kernel,
    MakeStreamGates,
    MakeStreamMatrix,
    Map,
    MatchLength,
    MeanParts,
    NGramRows,
    Norm,
    Pick,
    PickBlocks,
    PredictStreams,
    ResizeHeads,
    RowMatrix,
    ScaleRows,
    Scatter,
    TokenNumbers,
    Turn,
)
from ..values import CachedTensor, Operand, Value
from ..vocabulary import MIN_LOGIT, Columns, LayerNorm, NGrams, Rms
from .context import NO_OPERANDS, Lowering
from .quantising import rounded_constants


def embed(to: Lowering, node: Node, op: Embed) -> None:
    width, each = op.weight.shape[1], 1
    operands: dict[str, Operand] = {}
    if op.ids is None:
        assert op.positions is not None, "rows have ids or positions"
        operands["places"], ids = to.places(op.positions), "dense/ids/position"
    else:
        computed = len(op.ids.shape) > 1
        ids, operands = _ids(to) if not computed else ("dense/ids/uploaded", {})
        each = math.prod(op.ids.shape[1:])
    constants: dict[str, Constant] = {
        "D": width, "WG": to.tuning.lanes.map_lanes, "SCALE": float(op.scale), "EACH": each,
    }  # fmt: skip
    kernels, lanes = ["dense/embed"], "plain"
    if op.norm:
        kernels = ["dense/embed_norm", *_norm_parts(op.norm, width)]
        lanes = to.tuning.lanes.reduce
        constants |= {"WG": _norm_lanes(to, width), "EPS": float(op.norm.eps)}
        operands |= _gain_and_shift(to, op.norm)
    for shard in to.weights[op.weight.name].shards:
        to.emit(
            node,
            op.weight.name,
            (*kernels, ids, *shard.parts, f"lib/lanes/{lanes}"),
            constants | {"FIRST": shard.first, "ROWS": shard.rows} | shard.constants,
            operands | {"w": shard.slice},
            groups=node.rows * each,
            fixed_bytes=0,
        )


def _ids(to: Lowering) -> tuple[str, dict[str, Operand]]:
    """The part that finds the token of a row, and its operand."""
    state = to.memory.sampler_state
    return ("dense/ids/sampled", {"sampled": state.sampled}) if state else ("dense/ids/uploaded", {})


def token_numbers(to: Lowering, node: Node, op: TokenNumbers) -> None:
    ids, operands = _ids(to)
    to.emit_elements(node, ("dense/token_numbers", ids), {}, operands, count=math.prod(op.y.shape))


def ngram_rows(to: Lowering, node: Node, op: NGramRows) -> None:
    how = op.how
    constants: dict[str, Constant] = {"SIZE": how.size, "EACH": how.each, "ROWS": how.rows, "END": how.end}
    table = CachedTensor(("ngrams", how), partial(_ngram_table, how))
    to.emit_elements(node, ("dense/ngram_rows",), constants, {"table": table}, count=node.rows * how.rows)


def _ngram_table(how: NGrams) -> npt.NDArray[np.uint32]:
    """Multipliers as low and high word, then the number of rows and the first row of each choice."""
    words = [(number & 0xFFFFFFFF, number >> 32) for number in how.multipliers[: how.size]]
    return np.array([*words, *zip(how.counts, how.offsets, strict=True)], np.uint32)


def mean_parts(to: Lowering, node: Node, op: MeanParts) -> None:
    width = op.y.shape[1]
    to.emit_elements(node, ("dense/mean_parts",), {"D": width, "PARTS": op.parts}, count=node.rows * width)


def norm(to: Lowering, node: Node, op: Norm) -> None:
    width, how = op.x.shape[1], op.how
    constants: dict[str, Constant] = {"D": width, "EPS": float(how.eps), "SCALE": float(op.scale)}
    operands: dict[str, Operand] = _gain_and_shift(to, how)
    if op.add is not None:
        operands["residual"] = op.add
    if isinstance(how, Rms):
        constants["AFTER"] = float(op.after)
    gain = "none" if how.weight is None else "weight"
    residual = "no_residual" if op.add is None else "residual"
    rounding: tuple[str, ...] = ("dense/next/none",)
    if op.quantises and op.next_norm:
        rounding = ("dense/next/round", ROUNDED)
        constants |= rounded_constants(to, op.quantises, node.rows) | {"NEXT_EPS": float(op.next_norm.eps)}
        operands |= {"rounded": op.quantises.value, "next_gain": to.gain(op.next_norm)}
    shader: tuple[str, ...] = ("dense/rms_norm", f"dense/gain/{gain}", *rounding, f"linear/epilogue/{residual}")
    if isinstance(how, LayerNorm):
        assert op.add is None, "a layer norm adds nothing"
        assert op.scale == 1, "and scales nothing"
        shader = ("dense/layer_norm", *_norm_parts(how, width), f"lib/rows/{_reads(width)}")
        constants |= {"WG": _norm_lanes(to, width), "PADDED": 0}
    _each_row(to, node, op.label, shader, constants, operands)


def by_row(to: Lowering, node: Node, op: ByRow) -> None:
    constants: dict[str, Constant] = {"D": op.x.shape[1]}
    constants |= {"DEVIATIONS": float(op.number)} if op.f == "excess" else {}
    _each_row(to, node, "", (f"dense/{op.f}",), constants)


def map_elements(to: Lowering, node: Node, op: Map) -> None:
    row, x = ELEMENTWISE[op.f], op.inputs[0]
    width = math.prod(x.shape[1:])
    constants: dict[str, Constant] = {"D": width, **row.constants}
    constants |= {name: float(number) for name, number in zip(row.numbers, op.numbers, strict=True)}
    operands: dict[str, Operand] = {**dict(zip("xz", op.inputs, strict=False))}
    if op.vector:  # one row of z for all
        operands["z"] = to.vector(op.vector)
        constants |= {"Z": 0, "FIRST": 0, "REPEATED": width}
    elif len(op.inputs) > 1:
        z = op.inputs[1].shape[1:]
        repeated = x.shape[-1] if len(z) < len(x.shape[1:]) else width
        constants |= {"Z": math.prod(z), "FIRST": op.first, "REPEATED": repeated}
    kernel = "dense/map_binary" if "z" in operands else "dense/map_unary"
    to.emit_elements(node, (kernel, row.part, *row.links), constants, operands, count=math.prod(x.shape))


def scale_rows(to: Lowering, node: Node, op: ScaleRows) -> None:
    residual, operands = _residual(op.add)
    constants: dict[str, Constant] = {"D": op.x.shape[1], "PART": op.x.shape[1] // op.by.shape[1]}
    to.emit_elements(node, ("dense/scale_rows", residual), constants, operands, count=node.rows * op.x.shape[1])


def _residual(add: Value | None) -> tuple[str, dict[str, Operand]]:
    """The part that adds a value to the result if there is one, and its operand."""
    return ("linear/epilogue/no_residual", {}) if add is None else ("linear/epilogue/residual", {"residual": add})


def scatter(to: Lowering, node: Node, op: Scatter) -> None:
    count = op.columns.count
    constants: dict[str, Constant] = {"A": op.x.shape[1], "B": count, "LEAST": MIN_LOGIT}
    columns = CachedTensor(("columns", op.columns.name), partial(_column_of, op.columns))
    to.emit_elements(
        node, ("dense/spread",), constants, {"columns": columns}, count=node.rows * count, fixed_bytes=4 * count
    )


def _column_of(columns: Columns) -> npt.NDArray[np.uint32]:
    """For each column of the large vocabulary: its column in the small one, or a number beyond all columns if it has
    none.
    """
    column = np.full(columns.count, len(columns.ids), np.uint32)
    column[columns.ids] = np.arange(len(columns.ids))
    return column


def row_matrix(to: Lowering, node: Node, op: RowMatrix) -> None:
    width = op.y.shape[1]
    to.emit_elements(node, ("dense/row_matrix",), {"D": width, "K": op.x.shape[1]}, count=node.rows * width)


def copy(to: Lowering, node: Node, op: Copy) -> None:
    width = op.y.shape[1]
    if width % 4:  # rows end within a vec4
        resize_heads(to, node, ResizeHeads(op.x, 1, op.y))
        return
    to.emit_elements(node, ("dense/copy_rows",), {"D": width}, count=node.rows * width // 4)


def resize_heads(to: Lowering, node: Node, op: ResizeHeads) -> None:
    old, new = op.x.shape[1] // op.heads, op.y.shape[1] // op.heads
    constants: dict[str, Constant] = {"H": op.heads, "FROM": old, "TO": new}
    to.emit_elements(node, ("dense/resize_heads",), constants, count=node.rows * op.y.shape[1])


def turn(to: Lowering, node: Node, op: Turn) -> None:
    width = op.x.shape[1]
    constants: dict[str, Constant] = {
        "D": width, "N": width // op.heads, "R": op.angles.shape[1] // op.parts, "PARTS": op.parts,
        "NEOX": int(op.pairing == "neox"),
    }  # fmt: skip
    to.emit_elements(node, ("dense/turn",), constants, count=node.rows * width)


def pick(to: Lowering, node: Node, op: Pick) -> None:
    _picked(to, node, op, ("dense/pick",), {})


def pick_blocks(to: Lowering, node: Node, op: PickBlocks) -> None:
    _picked(to, node, op, ("dense/pick_blocks", f"dense/blocks/{op.how}"), {"COUNT": op.count})


def _picked(
    to: Lowering, node: Node, op: Pick | PickBlocks, shader: tuple[str, ...], own: Mapping[str, Constant]
) -> None:
    """Emits a kernel with a workgroup for each output."""
    outputs = op.y.shape[0]
    rows = to.graph.input("output_rows", np.uint32, (outputs,))
    constants = {"D": op.x.shape[1], "WG": to.tuning.lanes.map_lanes, **own}
    to.emit(node, "", (*shader, "lib/lanes/plain"), constants, {"output_rows": rows}, groups=outputs)


def kernel(to: Lowering, node: Node, op: Kernel) -> None:
    to.emit(node, "", op.shader, op.constants, op.operands, groups=op.groups)


def _each_row(
    to: Lowering,
    node: Node,
    name: str,
    shader: tuple[str, ...],
    constants: Mapping[str, Constant],
    operands: Mapping[str, Operand] = NO_OPERANDS,
) -> None:
    """Emits a kernel with one workgroup per row, which reduces over its lanes."""
    parts = (*shader, f"lib/lanes/{to.tuning.lanes.reduce}")
    to.emit(node, name, parts, {"WG": to.tuning.lanes.row_lanes, **constants}, operands, groups=node.rows)


def _norm_lanes(to: Lowering, width: int) -> int:
    """The number of lanes that norm a row, at most one per vec4."""
    if to.tuning.lanes.reduce != "subgroup":
        return to.tuning.lanes.row_lanes
    return min(to.tuning.lanes.row_lanes, -(-width // 4 // 32) * 32)


def _norm_parts(norm: LayerNorm, width: int) -> tuple[str, ...]:
    """The parts that norm a row of that width."""
    reads = _reads(width)
    gain, shift = (reads if weight else "none" for weight in (norm.weight, norm.bias))
    return "dense/norm/row", f"dense/norm/{reads}", f"dense/norm_gain/{gain}", f"dense/shift/{shift}"


def _gain_and_shift(to: Lowering, norm: Rms | LayerNorm) -> dict[str, Operand]:
    """The operands for the weight and the bias of a norm."""
    weights = {"weight": norm.weight, "bias": norm.bias}
    return {name: to.vector(weight) for name, weight in weights.items() if weight is not None}


def _reads(width: int) -> str:
    """The part that reads rows of that width."""
    return "scalar" if width % 4 else "vec4"


def predict(to: Lowering, node: Node, op: PredictStreams) -> None:
    _by_column(to, node, op, ("streams/predict",), {}, {})


def correct(to: Lowering, node: Node, op: CorrectStreams) -> None:
    residual, operands = _residual(op.add)
    _by_column(to, node, op, ("streams/correct", residual), {"COEFS": op.coefs.shape[1]}, operands)


def stream_gates(to: Lowering, node: Node, op: MakeStreamGates) -> None:
    how = op.how
    constants: dict[str, Constant] = {
        "STREAMS": how.streams, "COLUMNS": op.z.shape[1], "KINDS": len(op.ys), "EPS": float(how.eps),
        "WRITE_EPS": float(how.write_eps), "MAGNITUDE": float(how.magnitude),
    }  # fmt: skip
    operands = {"scales": to.vector(how.scales), "bias": to.vector(how.bias)}
    to.emit_elements(node, ("streams/gates",), constants, operands, count=node.rows * how.streams)


def stream_matrix(to: Lowering, node: Node, op: MakeStreamMatrix) -> None:
    how = op.how
    constants: dict[str, Constant] = {
        "STREAMS": how.streams, "COLUMNS": op.z.shape[1], "EPS": float(how.eps), "ITERATIONS": how.iterations,
    }  # fmt: skip
    operands = {"scales": to.vector(how.scales), "bias": to.vector(how.bias)}
    to.emit_elements(node, ("streams/matrix",), constants, operands, count=node.rows)


def add_to_streams(to: Lowering, node: Node, op: AddToStreams) -> None:
    constants = {"D": op.found.shape[1], "STREAMS": op.gates.shape[1]}
    mix = "streams/mix/none" if op.matrix is None else "streams/mix/matrix"
    to.emit_elements(node, ("streams/add", mix), constants, count=node.rows * op.x.shape[1])


def match_length(to: Lowering, node: Node, op: MatchLength) -> None:
    _each_row(to, node, "", ("streams/match_length",), {"D": op.x.shape[1]})


def _by_column(
    to: Lowering,
    node: Node,
    op: PredictStreams | CorrectStreams,
    shader: tuple[str, ...],
    own: dict[str, Constant],
    operands: dict[str, Operand],
) -> None:
    """Emits a kernel with one lane for each column of each row, over all streams."""
    width = op.ys[0].shape[1]
    to.emit_elements(node, shader, {"D": width, "STREAMS": len(op.ys)} | own, operands, count=node.rows * width)
