"""Routing and products with experts as dispatches. Nothing is read back."""

from dataclasses import replace
from typing import TypeVar

from ...gpu.shader import Constant
from ..graph import Node
from ..moe import Matrices, expert_config, glu_config, matrices_of, sorting, sums_at_once, tile_of
from ..nodes import ExpertGlu, ExpertSum, Quantise, Route, SortChoices
from ..quantising import rounded_rows
from ..values import Operand, Value
from ..vocabulary import LEAST_SUM, NUMBER, NUMBERS, Activation, Rms
from .context import Lowering
from .linear import round_rows, w_exponent

SORT_LANES = 256  # of the one workgroup that sorts
MOST_RANKED = 1024  # experts that are ranked all at once, each by comparing it to every other


Mixture = TypeVar("Mixture", ExpertGlu, ExpertSum)


def route(to: Lowering, node: Node, op: Route) -> None:
    experts = op.router.shape[0]
    # Maxima one after another are less work than all ranks for few lanes or many experts, and want no room for all.
    by_maxima = to.tuning.reduce == "one_subgroup" or experts > MOST_RANKED
    shader = ("moe/route" if by_maxima else "moe/route_rank", f"lib/lanes/{to.tuning.reduce}")
    lanes = {"WG": min(to.tuning.row_lanes, max(64, 1 << (experts - 1).bit_length()))}
    operands = _chosen(op) | {"x": op.logits}
    to.emit(node, op.router.name, shader, _routing(op) | lanes, operands, groups=node.rows)


def sort_choices(to: Lowering, node: Node, op: SortChoices) -> None:
    constants: dict[str, Constant] = {
        "E": op.experts, "USED": op.routing.experts.shape[1], "TB": op.tile, "WG": SORT_LANES
    }  # fmt: skip
    operands: dict[str, Operand] = {"experts": op.routing.experts, "order": op.order, "tiles": op.tiles}
    to.emit(node, "", ("moe/expert_sort",), constants, operands, groups=1)


def expert_glu(to: Lowering, node: Node, op: ExpertGlu) -> None:
    op = _sorted(to, node, op)
    used = op.routing.experts.shape[1]
    _, both = glu_config(op, node.rows, to.target)
    if both is not None:
        x = _rows_of(to, node, both, op.x, used, node.rows)
        _by_choice(to, node, op, both, {"x": x, "y": op.y}, "glu", used, op.then, op.norm)
        return
    gate = Value(op.y.shape)
    gates, ups = matrices_of(op.gate, to.target), matrices_of(op.up, to.target)
    x = _rows_of(to, node, gates[0], op.x, used, node.rows)
    for matrices in gates:
        _by_choice(to, node, op, matrices, {"x": x, "y": gate}, "plain", used)
        op = replace(op, route=None)
    x = x if _on_matrix_units(to, node, gates[0], used) else _rows_of(to, node, ups[0], op.x, used, node.rows)
    for matrices in ups:
        _by_choice(to, node, op, matrices, {"x": x, "y": op.y, "gate": gate}, "gated", used, op.then)


def expert_sum(to: Lowering, node: Node, op: ExpertSum) -> None:
    if sums_at_once(op, node.rows, to.target):
        _sum_at_once(to, node, op)
        return
    op = _sorted(to, node, op)
    products = Value((node.rows, op.h.shape[1], op.down.shape[1]))
    downs, used = matrices_of(op.down, to.target), op.h.shape[1]
    h = _rows_of(to, node, downs[0], op.h, used, node.rows * used)
    for matrices in downs:
        _by_choice(to, node, op, matrices, {"x": h, "y": products}, "plain", 1)
    lanes = to.tuning.map_lanes
    to.emit(
        node,
        op.down.name,
        ("moe/expert_gather", _residual(op), "lib/lanes/plain"),
        {"M": op.down.shape[1], "USED": op.h.shape[1], "WG": lanes},
        {**_added(op), "x": products, "shares": op.routing.shares, "y": op.y},
        groups=-(-node.rows * op.down.shape[1] // lanes),
    )


def _on_matrix_units(to: Lowering, node: Node, matrices: Matrices, used: int) -> bool:
    return expert_config(matrices, node.rows * used, to.target).fragment > 0


def _rows_of(to: Lowering, node: Node, matrices: Matrices, x: Value, used: int, rows: int) -> Value:
    """So many rows of x as the kernel reads them: as they are, or as float16."""
    if not _on_matrix_units(to, node, matrices, used):
        return x
    widths = {0: matrices.width}
    found = rounded_rows(widths, rows)
    round_rows(to, node, Quantise(x, tuple(widths.items()), found), rows)
    return found.value


def _by_choice(
    to: Lowering,
    node: Node,
    op: ExpertGlu | ExpertSum,
    matrices: Matrices,
    operands: dict[str, Operand],
    result: str,
    input_uses: int,
    then: Activation = "none",
    norm: Rms | None = None,
) -> None:
    """One dispatch for every choice with an expert of the matrices; `input_uses` neighbours read the same x."""
    used = op.routing.experts.shape[1]
    choices = node.rows * used
    config = expert_config(matrices, choices, to.target)
    constants = matrices.constants | NUMBERS | config.constants
    if config.fragment:
        constants |= {"W_EXPONENT": w_exponent(matrices.shards[0]), "ROUNDED_ROWS": choices // input_uses}
    constants |= {"USED": used, "INPUT_USES": input_uses, "INPUT_STRIDE": matrices.width, "THEN": NUMBER[then]}
    rows = () if config.fragment else (matrices.rows,)
    parts = [*matrices.parts, *rows, "moe/tiles", f"moe/result/{result}", "lib/activation", *config.parts]
    if norm is not None:
        operands |= {"gain": to.vector(norm.weight)}
        constants["EPS"] = float(norm.eps)
    if config.norms:
        staging, staged = matrices.staging(config, 1)
        parts += ["linear/prologue/rms_norm" if norm else "linear/prologue/no_norm", *staging]
        constants |= staged
    routed = op.route if isinstance(op, ExpertGlu) else None
    tiles = choices
    if config.tb == 1 and routed:
        operands |= _chosen(routed) | {"router_logits": routed.logits}
        constants |= _routing(routed)
        parts.append("moe/choices/ranked")
    elif config.tb == 1:
        operands |= {"experts": op.routing.experts}
        parts.append("moe/choices/each")
    else:
        assert op.sorted, "choices are in the order of experts"
        operands |= {"order": op.sorted.order, "tiles": op.sorted.tiles}
        tiles = op.sorted.tiles.shape[0]
        parts.append("moe/choices/sorted")
    to.emit(
        node,
        matrices.name,
        (config.kernel, *parts),
        constants,
        operands | {"w": matrices.slice, "shard": matrices.table},
        groups=tiles * -(-matrices.out // (config.block // len(matrices.shards))),
        fixed_bytes=matrices.bytes_read(node.rows, used),
        row_flops=matrices.flops(used),
    )


def _sum_at_once(to: Lowering, node: Node, op: ExpertSum) -> None:
    """The products of every row, its shares and the sum in one dispatch."""
    [matrices], used = matrices_of(op.down, to.target), op.routing.experts.shape[1]
    config = sums_at_once(op, node.rows, to.target)
    assert config is not None
    config = config.summing
    constants: dict[str, Constant] = {"USED": used, **matrices.constants, **config.constants}
    staging, staged = matrices.staging(config, used)
    gemv = config.kernel == "moe/expert_gemv"
    kernel = ("moe/expert_sum_gemv", "linear/prologue/no_norm") if gemv else ("moe/expert_sum_gemv_int",)
    to.emit(
        node,
        matrices.name,
        (*kernel, "moe/chosen", *matrices.parts, matrices.rows, _residual(op), *config.parts, *staging),
        constants | staged,
        {
            **_added(op),
            "x": op.h,
            "y": op.y,
            "experts": op.routing.experts,
            "shares": op.routing.shares,
            "w": matrices.slice,
            "shard": matrices.table,
        },
        groups=node.rows * -(-matrices.out // config.block),
        fixed_bytes=matrices.bytes_read(node.rows, used),
        row_flops=matrices.flops(used),
    )


def _sorted(to: Lowering, node: Node, op: Mixture) -> Mixture:
    """The op with its choices sorted, where its kernel wants that and no node before has done it."""
    tile = tile_of(op, node.rows, to.target)
    if tile == 1 or op.sorted:
        return op
    order = sorting(op, tile, node.rows)
    sort_choices(to, node, order)
    return replace(op, sorted=order)


def _routing(op: Route) -> dict[str, Constant]:
    """What kernels are specialised by that choose experts."""
    return {
        "E": op.router.shape[0],
        "USED": op.used,
        "NORMALISE": int(op.normalise),
        "LEAST_SUM": LEAST_SUM,
    }


def _chosen(op: Route) -> dict[str, Operand]:
    return {"experts": op.routing.experts, "shares": op.routing.shares}


def _residual(op: ExpertSum) -> str:
    return "linear/epilogue/no_residual" if op.add is None else "linear/epilogue/residual"


def _added(op: ExpertSum) -> dict[str, Operand]:
    return {} if op.add is None else {"residual": op.add}
