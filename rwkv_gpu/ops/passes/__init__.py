"""The passes over a graph, in the order in which they run. Each is a file: its idea, its condition and one rewrite."""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from types import ModuleType

from ...errors import BadInput
from ..graph import Graph
from ..target import Target
from . import (
    adapters_as_columns,
    adapters_as_products,
    adapters_into_products,
    choose_kernels,
    convolution_into_product,
    convolution_into_recurrence,
    gate_into_attention,
    gate_into_expert_sum,
    join_columns,
    lora_into_time_mix,
    merge_gemms,
    merge_latent_write,
    merge_router,
    merge_shared_expert,
    merge_state_space,
    norm_into_embedding,
    norm_into_products,
    products_side_by_side,
    quantise_beside_adapters,
    quantise_in_producer,
    quantise_once,
    round_in_producer,
    route_into_experts,
    route_into_sort,
    row_statistics,
    runs_into_heads,
    scale_into_norm,
    scale_into_product,
    share_norms,
    sort_once,
    token_shift_into_products,
    whole_norms_into_attention,
    write_into_stack,
)


@dataclass(frozen=True)
class Pass:
    """A rewrite of the graph. `run` tells how often it did something."""

    name: str
    run: Callable[[Graph, Target], int]
    about: str  # what it does, in a line


def _pass(module: ModuleType) -> Pass:
    return Pass(module.__name__.rpartition(".")[2], module.run, (module.__doc__ or "").partition("\n")[0])


PASSES = tuple(
    _pass(module)
    for module in (
        norm_into_embedding,
        adapters_into_products,
        adapters_as_products,
        scale_into_norm,
        scale_into_product,
        whole_norms_into_attention,
        gate_into_attention,
        write_into_stack,
        convolution_into_recurrence,
        convolution_into_product,
        token_shift_into_products,
        norm_into_products,
        share_norms,
        products_side_by_side,
        merge_state_space,
        lora_into_time_mix,
        route_into_experts,
        sort_once,
        route_into_sort,
        gate_into_expert_sum,
        merge_shared_expert,
        merge_gemms,
        merge_router,
        merge_latent_write,
        runs_into_heads,
        choose_kernels,
        quantise_once,
        quantise_in_producer,
        round_in_producer,
        join_columns,
        adapters_as_columns,
        quantise_beside_adapters,
        row_statistics,
    )
)
NAMES = tuple(one.name for one in PASSES)
REQUIRED = ("choose_kernels", "adapters_as_products")  # lowering needs what they do


def run_passes(graph: Graph, target: Target, without: Collection[str] = ()) -> dict[str, int]:
    """Rewrites the graph by every pass but those named. How often each fired."""
    unknown = sorted(set(without) - set(NAMES))
    if unknown:
        raise BadInput(f"there is no pass '{unknown[0]}'; known: {', '.join(NAMES)}")
    needed = sorted(set(without) & set(REQUIRED))
    if needed:
        raise BadInput(f"pass '{needed[0]}' cannot be left out: every product needs a kernel")
    return {one.name: one.run(graph, target) for one in PASSES if one.name not in without}
