"""The passes over a graph in execution order: rules that fuse two nodes, and other rewrites."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ...errors import BadInput
from ..graph import Graph
from ..target import Target
from . import (
    adapters_as_columns,
    adapters_as_products,
    adapters_into_products,
    choose_kernels,
    convolutions,
    joins,
    lora_into_time_mix,
    merges,
    norms,
    products_side_by_side,
    rounding,
    routing,
    row_statistics,
    scales_and_gates,
    token_shift_into_products,
)
from .rule import Rule


@dataclass(frozen=True)
class Pass:
    """A rewrite of the graph. `run` returns the number of rewrites."""

    name: str
    doc: str  # description, with the graph before and after
    run: Callable[[Graph, Target], int]

    @property
    def about(self) -> str:
        """The first line of `doc`."""
        return self.doc.partition("\n")[0]


def _pass(what: Rule[Any, Any] | ModuleType | Callable[[Graph, Target], int]) -> Pass:
    """Wraps a rule, a module with a `run` function, or a function as a pass."""
    if isinstance(what, Rule):
        return Pass(what.name, what.doc, what.run)
    if isinstance(what, ModuleType):
        return Pass(what.__name__.rpartition(".")[2], what.__doc__ or "", what.run)
    return Pass(what.__name__, what.__doc__ or "", what)


PASSES = tuple(
    _pass(what)
    for what in (
        norms.NORM_INTO_EMBEDDING,
        adapters_into_products,
        adapters_as_products,
        scales_and_gates.SCALE_INTO_NORM,
        scales_and_gates.SCALE_INTO_PRODUCT,
        norms.whole_norms_into_attention,
        scales_and_gates.GATE_INTO_ATTENTION,
        convolutions.WRITE_INTO_STACK,
        convolutions.CONVOLUTION_INTO_RECURRENCE,
        convolutions.CONVOLUTION_INTO_PRODUCT,
        token_shift_into_products,
        norms.NORM_INTO_PRODUCTS,
        norms.share_norms,
        products_side_by_side,
        merges.merge_state_space,
        lora_into_time_mix,
        routing.route_into_experts,
        routing.sort_once,
        routing.route_into_sort,
        scales_and_gates.GATE_INTO_EXPERT_SUM,
        merges.merge_shared_expert,
        merges.merge_gemms,
        merges.merge_router,
        merges.merge_latent_write,
        joins.RUNS_INTO_HEADS,
        choose_kernels,
        rounding.quantise_once,
        rounding.QUANTISE_IN_PRODUCER,
        rounding.ROUND_IN_PRODUCER,
        joins.JOIN_COLUMNS,
        adapters_as_columns,
        rounding.quantise_with_adapters,
        row_statistics,
    )
)
RULES: tuple[Rule[Any, Any], ...] = tuple(
    one
    for module in (convolutions, joins, norms, rounding, scales_and_gates)
    for one in vars(module).values()
    if isinstance(one, Rule)
)
NAMES = tuple(one.name for one in PASSES)
REQUIRED = ("choose_kernels", "adapters_as_products")  # lowering needs their results


def run_passes(graph: Graph, target: Target, without: Collection[str] = ()) -> dict[str, int]:
    """Runs all passes except those in `without`. Returns the number of rewrites by pass."""
    unknown = sorted(set(without) - set(NAMES))
    if unknown:
        raise BadInput(f"there is no pass '{unknown[0]}'; known: {', '.join(NAMES)}")
    needed = sorted(set(without) & set(REQUIRED))
    if needed:
        raise BadInput(f"pass '{needed[0]}' cannot be left out: every product needs a kernel")
    return {one.name: one.run(graph, target) for one in PASSES if one.name not in without}
