"""Lowering of routing and products with experts. Nothing is read back to the host."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from ...gpu.shader import Constant
from ...gpu.weights import Shard
from ...kernels.expert_config import ExpertConfig
from ...kernels.parts import ROUNDING_IN_UNITS, TO_NORM
from ..elementwise import ELEMENTWISE
from ..graph import Node
from ..moe import SPARE, Matrices, expert_config, matrices_of, products_config, sorting, sums_at_once, tile_of
from ..nodes import ExpertProducts, ExpertSum, GroupChoices, Route, RouteKnown, SortChoices
from ..nodes.stage import Links
from ..quantising import rounding_for
from ..values import JoinedVectors, Operand, Quantised, Value
from ..vocabulary import MIN_SUM, NUMBER, NUMBERS, Gating, Glu, Rms, Weight
from .context import Lowering
from .matrix_units import decoded_weights, w_exponent
from .quantising import in_units, quantise

SORT_LANES = (
    256,
    1024,
)  # lanes of the workgroup that sorts: for few choices, and for many
MAX_RANKED = 1024  # maximum experts that are ranked at once, by comparing each with all others


Mixture = TypeVar("Mixture", ExpertProducts, ExpertSum)


@dataclass(frozen=True)
class Result:
    """The epilogue of a dispatch of products: its parts, and their inputs."""

    kind: str  # moe/result/...
    then: Glu = "none"
    biases: tuple[Weight, ...] = ()
    scales: tuple[Weight, ...] = ()  # scales of the sums
    scale: Value | None = None  # scale of x, for each choice
    quantises: Quantised | None = None  # further copies of y as integers or float16
    operands: dict[str, Operand] = field(default_factory=dict)

    @property
    def parts(self) -> tuple[str, ...]:
        """The parts."""
        glu = () if self.kind == "plain" else _glu_parts(self.then)[0]
        bias = f"moe/bias/{'each' if self.biases else 'none'}"
        sums = f"moe/sums/{'scaled' if self.scales else 'plain'}"
        return f"moe/result/{self.kind}", *glu, bias, sums, f"moe/input/{'plain' if self.scale is None else 'scaled'}"

    @property
    def constants(self) -> dict[str, Constant]:
        """The shader constants of the parts."""
        return _glu_parts(self.then)[1]


def route(to: Lowering, node: Node, op: Route) -> None:
    experts, how = op.router.shape[0], op.how
    # With few lanes or many experts, successive maxima are less work than ranks, and need no memory for all experts.
    by_maxima = to.tuning.lanes.reduce == "one_subgroup" or experts > MAX_RANKED
    lanes = {"WG": min(to.tuning.lanes.row_lanes, max(64, 1 << (experts - 1).bit_length()))}
    parts: tuple[str, ...] = ("moe/route", *_gating(how), *_answering(how))
    if how.by_score or not by_maxima:
        groups = f"moe/groups/{'best' if how.groups > 1 else 'one'}"
        parts = ("moe/route_rank", *_gating(how), *_answering(how), _choosing(how), groups)
    operands = _chosen(op) | _extras(to, how) | {"x": op.logits}
    shader = (*parts, f"lib/lanes/{to.tuning.lanes.reduce}")
    to.emit(node, op.router.name, shader, _routing(op) | lanes, operands, groups=node.rows)


def route_known(to: Lowering, node: Node, op: RouteKnown) -> None:
    how = op.how
    constants: dict[str, Constant] = {
        "E": op.router.shape[0], "USED": how.used, "K": op.known.shape[1], "NORMALISE": int(how.normalise),
        "MIN_SUM": MIN_SUM, "SHARE_SCALE": float(how.scale),
    }  # fmt: skip
    operands: dict[str, Operand] = {
        "experts": op.routing.experts, "shares": op.routing.shares, "x": op.logits, "known": op.known,
    }  # fmt: skip
    shader = ("moe/route_known", *_gating(how))
    to.emit_elements(node, shader, constants, operands, count=node.rows, name=op.router.name)


def group_choices(to: Lowering, node: Node, op: GroupChoices) -> None:
    used = op.routing.experts.shape[1]
    constants: dict[str, Constant] = {"USED": used, "SIZE": op.size, "SCALE": float(op.scale)}
    operands: dict[str, Operand] = {
        "experts": op.routing.experts, "shares": op.routing.shares,
        "groups": op.grouped.experts, "scaled": op.grouped.shares,
    }  # fmt: skip
    to.emit_elements(node, ("moe/group_choices",), constants, operands, count=node.rows * used)


def sort_choices(to: Lowering, node: Node, op: SortChoices) -> None:
    few, many = SORT_LANES
    lanes = few if op.order.shape[0] <= 4 * few else min(many, to.can.max_invocations)
    operands: dict[str, Operand] = {"order": op.order, "tiles": op.tiles}
    if op.route is None:
        constants: dict[str, Constant] = {"E": op.experts, "USED": op.routing.experts.shape[1]}
        parts: tuple[str, ...] = ("moe/sort/chosen",)
        operands["experts"] = op.routing.experts
    else:
        width = to.can.subgroup_size
        lanes = max(lanes, min(width * node.rows, to.can.max_invocations) // width * width)
        constants = {**_routing(op.route), "SUBGROUP": width}
        parts = ("moe/sort/ranked", *_ranking(op.route.how), "lib/sum/subgroup")
        operands |= _ranked(to, op.route)
    constants |= {"TB": op.tile, "WG": lanes}
    to.emit(node, op.label, ("moe/expert_sort", *parts), constants, operands, groups=1)


def expert_products(to: Lowering, node: Node, op: ExpertProducts) -> None:
    op = _sorted(to, node, op)
    used, uses = op.routing.experts.shape[1], op.input_uses
    scale = op.routing.shares if op.scaled else None
    _, whole = products_config(op, node.rows, to.target)
    if whole:
        x = _rows_of(to, node, whole[0], op, used)
        kind = "glu" if op.gated else "plain"
        result = Result(kind, op.then, op.biases, op.scales, scale, op.quantises, {"x": x, "y": op.y})
        for matrices in whole:
            _by_choice(to, node, op, matrices, result, uses, op.norm)
            op = replace(op, route=None)
        return
    gate = Value(op.y.shape)
    gates, ups = (matrices_of(weight, to.target) for weight in op.weights)
    x = _rows_of(to, node, gates[0], op, used)
    result = Result("plain", "none", op.biases[:1], op.scales[:1], scale, None, {"x": x, "y": gate})
    for matrices in gates:
        _by_choice(to, node, op, matrices, result, uses)
        op = replace(op, route=None)
    x = x if _on_matrix_units(to, node, gates[0], used) else _rows_of(to, node, ups[0], op, used)
    operands: dict[str, Operand] = {"x": x, "y": op.y, "gate": gate}
    result = Result("gated", op.then, op.biases[1:], op.scales[1:], scale, op.quantises, operands)
    for matrices in ups:
        _by_choice(to, node, op, matrices, result, uses)


def expert_sum(to: Lowering, node: Node, op: ExpertSum) -> None:
    if sums_at_once(op, node.rows, to.target):
        _sum_at_once(to, node, op)
        return
    op = _sorted(to, node, op)
    products = Value((node.rows, op.h.shape[1], op.down.shape[1]))
    downs, used = matrices_of(op.down, to.target), op.h.shape[1]
    h = _rows_of(to, node, downs[0], op, used)
    biases = (op.bias,) if op.bias else ()
    for matrices in downs:
        _by_choice(to, node, op, matrices, Result("plain", biases=biases, operands={"x": h, "y": products}), 1)
    parts, constants, operands = _next(to, node, op, "moe/next")
    to.emit_elements(
        node,
        ("moe/expert_gather", _residual(op), _share(op), *parts),
        {"M": op.down.shape[1], "USED": op.h.shape[1]} | constants,
        {**_added(op), **_shares(op), "x": products} | operands,
        count=node.rows * op.down.shape[1],
        name=op.down.name,
    )


def _next(
    to: Lowering, node: Node, op: ExpertSum, folder: str
) -> tuple[tuple[str, ...], dict[str, Constant], dict[str, Operand]]:
    """The parts, constants and operands with which a sum also writes float16 for the next norm."""
    if op.quantises is None:
        return (f"{folder}/none",), {}, {}
    assert op.next_gain is not None, "sums are rounded for a norm only"
    constants, operands = in_units(to, op.quantises, node.rows)
    parts = f"{folder}/norm", TO_NORM, *ROUNDING_IN_UNITS
    return parts, constants, operands | {"next_gain": to.vector(op.next_gain)}


def _on_matrix_units(to: Lowering, node: Node, matrices: Matrices, used: int) -> bool:
    return expert_config(matrices, node.rows * used, to.target).fragment > 0


def decoded_parts(shard: Shard) -> tuple[str, ...]:
    """The parts that decode weights to float16 for tiles on matrix units."""
    if "formats/mxfp4" in shard.parts:
        return ("lib/matrix_units/of_e2m1",)
    return decoded_weights(shard), "moe/weights_of_fours"


def _rows_of(to: Lowering, node: Node, matrices: Matrices, op: Mixture, used: int) -> Value:
    """The rows of x that the kernel reads: floats, or rows that were rounded to float16."""
    if op.quantised_x:
        return op.quantised_x.value
    if not _on_matrix_units(to, node, matrices, used):
        return op.x
    wanted = rounding_for(op, node.rows)
    quantise(to, node, wanted)
    return wanted.out.value


def _by_choice(
    to: Lowering,
    node: Node,
    op: ExpertProducts | ExpertSum,
    matrices: Matrices,
    result: Result,
    input_uses: int,
    norm: Rms | None = None,
) -> None:
    """Emits one dispatch for all choices of experts in the matrices.

    `input_uses` neighbouring choices read the same x.
    """
    used = op.routing.experts.shape[1]
    choices = node.rows * used
    config = expert_config(matrices, choices, to.target)
    links = Links(
        [*matrices.reading(config, ranked=isinstance(op, ExpertProducts) and op.route is not None), *config.parts],
        matrices.constants | NUMBERS | config.constants | {"USED": used, "INPUT_USES": input_uses},
        {"w": matrices.slice, "shard": matrices.table},
    )
    links.add(_x(to, matrices, config, op, choices // input_uses, norm))
    links.add(_written(to, config, result, choices))
    chosen, tiles = _tiles(to, op, config, choices)
    links.add(chosen)
    blocks = -(-matrices.out // (config.block // matrices.count))
    shares = blocks if matrices.floats else config.shares(tiles, blocks)  # floats: several blocks are 7% slower
    to.emit(
        node,
        matrices.name,
        (config.kernel, *links.parts),
        links.constants | {"SHARES": shares},
        links.operands,
        groups=tiles * shares,
        fixed_bytes=matrices.bytes_read(node.rows, used),
        row_flops=matrices.flops(used),
        shared_bytes=config.workgroup_bytes + 4 * matrices.width * config.norms + SPARE,  # stages at most one row of x
    )


def _x(
    to: Lowering,
    matrices: Matrices,
    config: ExpertConfig,
    op: ExpertProducts | ExpertSum,
    rows: int,
    norm: Rms | None,
) -> Links:
    """The parts that decode weights and read `rows` rows of x: as floats, normed, or as float16."""
    links = Links([*matrices.format_parts(floats=config.norms)], {"INPUT_STRIDE": matrices.width})
    if config.fragment:
        unit = op.quantised_x.unit if op.quantised_x else 0.0
        links.parts += [*decoded_parts(matrices.shards[0]), rounded_rows_of(config)]
        links.parts.append("moe/unit/all" if unit else "moe/unit/row")
        links.constants |= {"X_ROWS": rows, "W_EXPONENT": w_exponent(matrices.shards[0])}
        links.constants |= {"X_UNIT": unit} if unit else {}
    if config.norms:
        staging, staged = matrices.staging(config, 1)
        normed, own, gain = to.rms_norm(norm)
        links.add(Links([normed, *staging], staged | own, dict(gain)))
    return links


def _written(to: Lowering, config: ExpertConfig, result: Result, choices: int) -> Links:
    """Links the epilogue, with or without results also written as float16."""
    links = Links(["moe/write", "lib/activation", *result.parts], result.constants, dict(result.operands))
    if result.biases:
        links.operands["biases"] = _joined(result.biases)
    if result.scales:
        links.operands["sum_scales"] = _joined(result.scales)
    if result.scale is not None:
        links.operands["input_scales"] = result.scale
    if config.fragment and not result.quantises:
        links.parts.append("moe/kept/none")
    elif config.fragment and result.quantises:
        own, operands = in_units(to, result.quantises, choices)
        links.add(Links(["moe/kept/rounded", *ROUNDING_IN_UNITS], own | {"SIDE_BY_SIDE": 1}, operands))
    return links


def _tiles(to: Lowering, op: ExpertProducts | ExpertSum, config: ExpertConfig, choices: int) -> tuple[Links, int]:
    """Links the choices of a workgroup. Returns the number of tiles of choices."""
    route = op.route if isinstance(op, ExpertProducts) else None
    if config.tb == 1 and route:
        parts = ["moe/choices/ranked", "moe/tiles", *_ranking(route.how)]
        return Links(parts, _routing(route), _ranked(to, route)), choices
    if config.tb == 1:
        return Links(["moe/choices/each", "moe/tiles"], {}, {"experts": op.routing.experts}), choices
    assert op.sorted, "choices are in the order of experts"
    tiles = op.sorted.tiles
    return Links(["moe/choices/sorted", "moe/tiles"], {}, {"order": op.sorted.order, "tiles": tiles}), tiles.shape[0]


def rounded_rows_of(config: ExpertConfig) -> str:
    """The part that reads rounded rows. It reads words if that hides the time of their load."""
    return f"moe/x/{'words' if config.ahead > 1 else 'halves'}"


def _sum_at_once(to: Lowering, node: Node, op: ExpertSum) -> None:
    """Emits the products of every row, their shares and the sum as one dispatch."""
    [matrices], used = matrices_of(op.down, to.target), op.routing.experts.shape[1]
    config = sums_at_once(op, node.rows, to.target)
    assert config is not None
    config = config.summing
    bias = f"moe/bias/{'each' if op.bias else 'none'}"
    constants: dict[str, Constant] = {"USED": used, **matrices.constants, **config.constants}
    staging, staged = matrices.staging(config, used)
    gemv = config.kernel == "moe/expert_gemv"
    parts, own, bound = _next(to, node, op, "moe/block_next")
    kernel = ("moe/expert_sum_gemv", "linear/prologue/no_norm") if gemv else ("moe/expert_sum_gemv_int", *parts)
    to.emit(
        node,
        matrices.name,
        (
            *kernel,
            "moe/chosen",
            *matrices.format_parts(floats=gemv),
            matrices.rows,
            _residual(op),
            _share(op),
            bias,
            *config.parts,
            *staging,
        ),
        constants | staged | own,
        {
            **bound,
            **_added(op),
            **_shares(op),
            **({"biases": _joined((op.bias,))} if op.bias else {}),
            "x": op.h,
            "experts": op.routing.experts,
            "w": matrices.slice,
            "shard": matrices.table,
        },
        groups=node.rows * -(-matrices.out // config.block),
        fixed_bytes=matrices.bytes_read(node.rows, used),
        row_flops=matrices.flops(used),
    )


def _sorted(to: Lowering, node: Node, op: Mixture) -> Mixture:
    """The op with sorted choices, if its kernel needs them; emits the sort if no node before has done it."""
    tile = tile_of(op, node.rows, to.target)
    if tile == 1 or op.sorted:
        return op
    order = sorting(op, tile, node.rows)
    sort_choices(to, node, order)
    return replace(op, sorted=order)


def _routing(op: Route) -> dict[str, Constant]:
    """Constants of kernels that choose experts."""
    how = op.how
    return {
        "E": op.router.shape[0],
        "USED": how.used,
        "NORMALISE": int(how.normalise),
        "MIN_SUM": MIN_SUM,
        "SHARE_SCALE": float(how.scale),
        "LOGIT_SCALE": float(how.logit_scale),
        "GROUPS": how.groups,
        "GROUPS_USED": how.groups_used,
    }


def _ranking(how: Gating) -> tuple[str, ...]:
    """The parts with which subgroups choose experts."""
    return "moe/ranking", *_gating(how), *_answering(how), _choosing(how)


def _ranked(to: Lowering, op: Route) -> dict[str, Operand]:
    """The operands of the choice."""
    return _chosen(op) | _extras(to, op.how) | {"router_logits": op.logits}


def _gating(how: Gating) -> tuple[str, str]:
    return f"moe/gating/{how.scores}", "moe/shares"


def _choosing(how: Gating) -> str:
    by = "biased" if how.selection_bias else "scores" if how.by_score else "logits"
    return f"moe/choosing/{by}"


def _answering(how: Gating) -> tuple[str]:
    return (f"moe/answer/{'scaled' if how.answer_scale else 'plain'}",)


def _extras(to: Lowering, how: Gating) -> dict[str, Operand]:
    """The vectors that the choice reads."""
    vectors = {"selection_bias": how.selection_bias, "answer_scales": how.answer_scale}
    return {name: to.vector(weight) for name, weight in vectors.items() if weight}


def _glu_parts(then: Glu) -> tuple[tuple[str, ...], dict[str, Constant]]:
    """The parts that combine gate and up, and their constants."""
    if isinstance(then, str):
        return ("moe/glu/activated",), {"THEN": NUMBER[then]}
    row = ELEMENTWISE[then.f]
    numbers = {name: float(number) for name, number in zip(row.numbers, then.numbers, strict=True)}
    return row.links, {**row.constants, **numbers}


def _joined(biases: Sequence[Weight]) -> JoinedVectors:
    """Joins the biases [E · M] of one or two matrices, or scales [E]."""
    return JoinedVectors(tuple(one.name for one in biases), tuple(one.shape[0] for one in biases))


def _chosen(op: Route) -> dict[str, Operand]:
    return {"experts": op.routing.experts, "shares": op.routing.shares}


def _share(op: ExpertSum) -> str:
    return f"moe/share/{'each' if op.weighted else 'one'}"


def _shares(op: ExpertSum) -> dict[str, Operand]:
    return {"shares": op.routing.shares} if op.weighted else {}


def _residual(op: ExpertSum) -> str:
    if op.gate is not None:
        return "moe/residual/shared"
    return "linear/epilogue/no_residual" if op.add is None else "linear/epilogue/residual"


def _added(op: ExpertSum) -> dict[str, Operand]:
    found = {"residual": op.add, "shared_rows": op.shared, "shared_gates": op.gate}
    return {name: value for name, value in found.items() if value is not None}
