"""On matrix units, B of LoRA adapters are further columns of W, and A x further columns of x.

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
        %4, %5 = adapter_down(%1, %3)  [gate.a up.a]  +norm  +columns
        %7 = gemm(%2, %4, %5)  [gate_up]  +subgroup_gemm  +quantised_x  +adapters  +columns

What a product adds to its sums, it waits for when they are there. Its first columns it asks for together with those of
W, and multiplies them while these are on their way. The product norms both, so A x is of an x that is not normed.

In prompts A x is a product on matrix units, too, in the units of the rows that both read.

Condition: every product that adds them is one of `subgroup_gemm` or `line_gemm` and reads rows of float16 of one unit,
or all are of `gemm_matrix` and read the same rows; adapters have at most `MOST_COLUMNS` columns, as all of B is read.
"""

from dataclasses import replace

from ...kernels.gemm_config import GemmConfig, MatrixTile, gemm_matrix
from ..gemm import gemm_op
from ..graph import Graph
from ..nodes import AdapterDown, Gemm, Product
from ..quantising import BY_SUBGROUPS, MOST_COLUMNS, TILES_OF_MATRICES, x_start
from ..target import Target
from ..tracer import MATRICES


def run(graph: Graph, target: Target) -> int:
    """Products that bind A x as columns, and the nodes that write it so."""
    fired = 0
    for node in list(graph.nodes):
        op = node.op
        if not isinstance(op, AdapterDown) or not op.whole or op.unit or op.scales.shape[1] > MOST_COLUMNS:
            continue
        readers = dict.fromkeys(reader for low in op.lows for reader in graph.readers(low))
        products = [gemm for gemm in map(gemm_op, readers) if gemm and gemm.quantised_x]
        if not products or len(products) < len(readers):
            continue
        made = _few_rows(op, products) or _many_rows(op, products, target)
        if made is None:
            continue
        if isinstance(made, Gemm):  # which reads what is made right before the product
            graph.insert_before(next(iter(readers)), made)
            graph.remove(node)
        else:
            graph.replace(node, made)
        for reader, product in zip(readers, products, strict=True):
            assert product.adapters is not None
            graph.replace(reader, replace(product, adapters=replace(product.adapters, columns=None)))
        fired += 1
    return fired


def _few_rows(op: AdapterDown, products: list[Gemm]) -> AdapterDown | None:
    """The same in the unit of what all products read, which they norm if A x would be of a normed x."""
    every = [gemm.quantised_x for gemm in products if gemm.quantised_x]
    units = {(one.unit, one.eps is not None) for one in every}
    if len(units) != 1 or any(gemm.config is None or gemm.config.kernel not in BY_SUBGROUPS for gemm in products):
        return None
    [(unit, normed)] = units
    return replace(op, unit=unit) if unit and normed == (op.norm is not None) else None


def _many_rows(op: AdapterDown, products: list[Gemm], target: Target) -> Gemm | None:
    """A product of all A that reads the same rows as the others, in whose units it leaves its sums."""
    rounded, config = products[0].quantised_x, _tile_of_factors(target)
    alike = all(gemm.quantised_x is rounded for gemm in products) and len(op.xs) <= MATRICES
    tiles = all(gemm.config and gemm.config.kernel == TILES_OF_MATRICES for gemm in products)
    if not (alike and tiles) or config is None or rounded is None:
        return None
    factors = tuple(Product(x, factor, low) for x, factor, low in zip(op.xs, op.factors, op.lows, strict=True))
    made = Gemm(factors, config=config, quantised_x=rounded, columns_of=op.scales)
    return made if all(x_start(made, i) in rounded.starts for i in range(len(factors))) else None


def _tile_of_factors(target: Target) -> GemmConfig | None:
    """Few columns of A and many of x: a fragment for each workgroup, whose subgroups share out the columns of x."""
    can = target.can
    tiles = (MatrixTile(1, 1, 1, 1, along_k, columns=64 * along_k) for along_k in (8, 4, 2, 1))
    configs = (gemm_matrix(can.fragment, can.subgroup_size, tile) for tile in tiles if can.fragment)
    return next((config for config in configs if config.runs_on(can)), None)
