"""On matrix units, appends B of LoRA adapters to the columns of W, and A x to the columns of x.

    before
        %0 = quantise(x)
        %1, %2 = gemm(%0, x)  [a]  +subgroup_gemm  +quantised_x  +quantise
        %3 = gemm(%0)  [s]  +subgroup_gemm  +quantised_x
        %4, %5, %6 = adapter_down(%1, %3)  [gate.a up.a]  +norm
        %7 = gemm(%2, %4, %5, %6)  [gate_up]  +subgroup_gemm  +quantised_x  +adapters

    after
        %0 = quantise(x)
        %1, %2 = gemm(%0, x)  [a]  +subgroup_gemm  +quantised_x  +quantise
        %3 = gemm(%0)  [s]  +subgroup_gemm  +quantised_x
        %8, %9 = adapter_down(%1, %3)  [gate.a up.a]  +norm  +columns
        %7 = gemm(%2, %8, %9)  [gate_up]  +subgroup_gemm  +quantised_x  +adapters  +columns

A product would wait for B (A x) after its sums are complete. As columns, adapters are loaded together with the first
columns of W, and multiplied while later ones load. The product norms both, so A x is computed from x before the norm.
In prompts, A x is also a product on matrix units, with the unit of the rows that both read.

Condition: a product with adapters uses `subgroup_gemm` or `line_gemm` and reads rows of float16 in a unit, or all such
products use `gemm_matrix` and read the same rows; adapters have at most `MAX_COLUMNS` columns, as all of B is read.
Nothing else reads A x.
"""

from dataclasses import replace

from ...kernels.gemm_config import GemmConfig, MatrixTile, gemm_matrix
from ..gemm import gemm_op
from ..graph import Graph, Node
from ..nodes import AdapterDown, Gemm, Product
from ..nodes.epilogue import AddAdapters, ScaleColumns
from ..nodes.prologue import AdapterColumns, ReadQuantised
from ..quantising import MAX_COLUMNS, multiplies_columns, reads_units, x_start
from ..target import Target
from ..tracer import MATRICES, ROW_OF_COLUMNS
from ..values import Value, stack


def run(graph: Graph, target: Target) -> int:
    """Rewrites products, and the nodes that write A x for them. Returns the number of rewritten nodes."""
    fired = 0
    for node in list(graph.nodes):
        op = node.op
        if not isinstance(op, AdapterDown) or not op.whole or op.unit or op.scales.shape[1] > MAX_COLUMNS:
            continue
        readers = dict.fromkeys(reader for low in op.lows for reader in graph.readers(low))
        products = {reader: gemm for reader in readers if (gemm := gemm_op(reader)) and gemm.has(AddAdapters)}
        if len(products) < len(readers) or any(graph.is_output(low) for low in op.lows):
            continue
        fired += _in_prompts(graph, node, op, products, target) or _in_batches(graph, node, op, products)
    return fired


Products = dict[Node, Gemm]


def _in_batches(graph: Graph, node: Node, op: AdapterDown, products: Products) -> bool:
    """Splits A x: the part for products that read x in one unit, which they norm if A x needs a normed x.

    The other products keep a separate node, which does not wait for this one.
    """
    units = {reader: unit for reader, gemm in products.items() if (unit := _unit(gemm, normed=op.norm is not None))}
    if len(set(units.values())) != 1:
        return False
    read = {low for reader in units for low in _lows(products[reader])}
    if any(low in read for reader, gemm in products.items() if reader not in units for low in _lows(gemm)):
        return False
    own = [i for i, low in enumerate(op.lows) if low in read]
    others = [i for i, low in enumerate(op.lows) if low not in read]
    _, (*lows, columns) = stack(node.rows, [op.scales.shape[1]] * len(own) + [ROW_OF_COLUMNS])
    moved = dict(zip((op.lows[i] for i in own), lows, strict=True))
    first = replace(_part(op, own), lows=tuple(lows), columns=columns, unit=next(iter(units.values())))
    if others:
        graph.insert_before(node, first)
        graph.replace(node, _part(op, others))
    else:
        graph.replace(node, first)
    for reader in units:
        graph.replace(reader, _as_columns(products[reader], moved))
    return True


def _unit(gemm: Gemm, *, normed: bool) -> float:
    """The unit of the float16 rows that a product reads, if it norms them as required; else 0."""
    read = gemm.find(ReadQuantised)
    if read is None or not reads_units(gemm, None):
        return 0.0
    return read.rows.unit if (read.rows.eps is not None) == normed else 0.0


def _lows(gemm: Gemm) -> list[Value]:
    added = gemm.find(AddAdapters)
    return [low for lows in added.lows for low in lows] if added else []


def _part(op: AdapterDown, which: list[int]) -> AdapterDown:
    """The op for some of the factors."""
    xs, lows = (tuple(every[i] for i in which) for every in (op.xs, op.lows))
    return replace(op, xs=xs, factors=tuple(op.factors[i] for i in which), lows=lows)


def _as_columns(gemm: Gemm, moved: dict[Value, Value]) -> Gemm:
    added = gemm.find(AddAdapters)
    assert added is not None
    lows = tuple(tuple(moved.get(low, low) for low in own) for own in added.lows)
    return gemm.minus(AddAdapters).plus(AdapterColumns(lows, added.factors))


def _in_prompts(graph: Graph, node: Node, op: AdapterDown, products: Products, target: Target) -> bool:
    """Replaces the node by a product with all A, just before the first product that reads the same rows of x."""
    made = _many_rows(op, list(products.values()), target)
    if made is None:
        return False
    graph.insert_before(next(iter(products)), made)
    graph.remove(node)
    for reader, gemm in products.items():
        graph.replace(reader, _as_columns(gemm, {}))
    return True


def _many_rows(op: AdapterDown, products: list[Gemm], target: Target) -> Gemm | None:
    """A product with all A that reads the same rows as the others, and writes sums in their unit."""
    read, config = products[0].find(ReadQuantised) if products else None, _tile_of_factors(target)
    if read is None or config is None or len(op.xs) > MATRICES:
        return None
    rounded = read.rows
    alike = all((one := gemm.find(ReadQuantised)) and one.rows is rounded for gemm in products)
    if not alike or not all(gemm.config and multiplies_columns(gemm.config) for gemm in products):
        return None
    factors = tuple(Product(x, factor, low) for x, factor, low in zip(op.xs, op.factors, op.lows, strict=True))
    made = replace(Gemm(factors).plus(read, ScaleColumns(op.scales)), config=config)
    return made if all(x_start(made, i) in rounded.starts for i in range(len(factors))) else None


def _tile_of_factors(target: Target) -> GemmConfig | None:
    """A tile for A, which has few rows: one fragment per workgroup, whose subgroups divide the columns of x."""
    can = target.can
    tiles = (MatrixTile(1, 1, 1, 1, along_k, columns=64 * along_k) for along_k in (8, 4, 2, 1))
    configs = (gemm_matrix(can.fragment, can.subgroup_size, tile) for tile in tiles if can.fragment)
    return next((config for config in configs if config.runs_on(can)), None)
