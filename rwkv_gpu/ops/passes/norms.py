"""Rules and passes that fuse norms into the ops that read them, and remove duplicates."""

from dataclasses import replace
from typing import Any

from ..gemm import choose, norms_whole_rows
from ..graph import Graph, Node, Op
from ..moe import multiplies_rounded, products_config
from ..nodes import AdapterDown, Attend, Copy, Embed, ExpertProducts, Gemm, Norm
from ..nodes.epilogue import GatePairs
from ..nodes.prologue import NormRows
from ..target import Target
from ..values import Value, stack
from ..vocabulary import LayerNorm, Rms
from .rule import ALONE, Condition, Pair, Rule


def _norm_embedding(pair: Pair[Embed, Norm]) -> None:
    how = pair.consumer.how
    assert isinstance(how, LayerNorm)
    pair.into_producer(replace(pair.producer, y=pair.consumer.y, norm=how))


NORM_INTO_EMBEDDING: Rule[Embed, Norm] = Rule(
    "norm_into_embedding",
    """The layer norm of an embedding is computed while its rows are read.

        before
            %0 = embed(x)  [embedding]
            %1 = norm(%0)  [gain]

        after
            %1 = embed(x)  [embedding]  +layer_norm
    """,
    producer=Embed,
    consumer=Norm,
    reads=lambda op: (op.x,),
    conditions={
        "it embeds tokens, not positions": lambda pair: pair.producer.ids is not None,
        "one binding holds its matrix": lambda pair: len(pair.target.weights[pair.producer.weight.name].shards) == 1,
        "it is a layer norm": lambda pair: isinstance(pair.consumer.how, LayerNorm),
        **ALONE,
    },
    rewrite=_norm_embedding,
)

Reader = Gemm | AdapterDown | ExpertProducts


def _xs(op: Reader) -> tuple[Value, ...]:
    if isinstance(op, Gemm):
        return tuple(one.x for one in op.products)
    return op.xs if isinstance(op, AdapterDown) else (op.x,)


def _kernel_norms(pair: Pair[Norm, Reader]) -> bool:
    """True if the kernel of the reader, or the dispatch that rounds rows for it, sees whole rows."""
    op, how, rows, target = pair.consumer, pair.producer.how, pair.node.rows, pair.target
    if isinstance(op, AdapterDown):
        return op.whole
    if isinstance(op, ExpertProducts):
        of_experts, whole = products_config(op, rows, target)
        return bool(whole and of_experts.norms) or multiplies_rounded(op, rows, target)
    config = choose(op, rows, target)
    if isinstance(how, Rms):
        return config.norms
    return norms_whole_rows(op.plus(NormRows(how)), rows, config, target)


def _whole_chunks(pair: Pair[Norm, Reader]) -> bool:
    """True if the row is a multiple of a chunk, if the kernel requires that."""
    alone = isinstance(pair.producer.how, Rms) and not isinstance(pair.consumer, AdapterDown)
    return not alone or pair.producer.x.shape[1] % 32 == 0


def _if_layer_norm(condition: Condition) -> Condition:
    """A condition that applies to layer norms only, which need the mean of a row first."""
    return lambda pair: not isinstance(pair.producer.how, LayerNorm) or condition(pair)


def _norm_reader(pair: Pair[Norm, Reader]) -> None:
    """Moves the norm into the reader, and removes the node of the norm after its last reader."""
    graph, norm, op = pair.graph, pair.producer, pair.consumer
    if isinstance(op, Gemm):
        products = tuple(replace(one, x=norm.x) for one in op.products)
        graph.replace(pair.node, replace(op, products=products).plus(NormRows(norm.how)))
    elif isinstance(op, AdapterDown):
        assert isinstance(norm.how, Rms)
        graph.replace(pair.node, replace(op, xs=(norm.x,) * len(op.xs), norm=norm.how))
    else:
        assert isinstance(norm.how, Rms)
        graph.replace(pair.node, replace(op, x=norm.x, norm=norm.how))
    if not graph.readers(norm.y) and not graph.is_output(norm.y):
        graph.remove(pair.before)


NORM_INTO_PRODUCTS: Rule[Norm, Reader] = Rule(
    "norm_into_products",
    """Products norm x while they read it.

        before
            %0 = norm(x)  [gain]
            %1, %2 = gemm(%0)  [q k]

        after
            %1, %2 = gemm(x)  [q k]  +norm

    With an RMS norm, a product takes little longer: x is multiplied by the gain, and the sums by the root at the end.
    A layer norm needs the mean first, which is fast enough only in steps of one row.
    """,
    producer=Norm,
    consumer=(Gemm, AdapterDown, ExpertProducts),
    reads=lambda op: _xs(op)[:1],
    conditions={
        "the norm adds no residual": lambda pair: pair.producer.plain,
        "the product reads normed values only": lambda pair: all(x is pair.producer.y for x in _xs(pair.consumer)),
        "the product has no prologue yet": lambda pair: (
            not isinstance(pair.consumer, Gemm) or not pair.consumer.prologue
        ),
        "the row is whole chunks": _whole_chunks,
        "only products read a layer norm": _if_layer_norm(lambda pair: isinstance(pair.consumer, Gemm)),
        "a layer norm has a bias": _if_layer_norm(lambda pair: pair.producer.how.bias is not None),
        "a layer norm has one row": _if_layer_norm(lambda pair: pair.graph.shape.one_row),
        "the device is faster with a fused layer norm": _if_layer_norm(
            lambda pair: pair.target.tuning.fusion.fuses_token_shift
        ),
        "a layer norm is not read by gated pairs": _if_layer_norm(lambda pair: not pair.consumer.has(GatePairs)),
        "the kernel sees whole rows": _kernel_norms,
    },
    rewrite=_norm_reader,
)


def share_norms(graph: Graph, _target: Target) -> int:
    """A norm that several ops read is computed once.

        before
            %0 = norm(x)  [gain]
            %1 = gemm(%0)  [a]
            %2 = norm(x)  [gain]
            %3 = gemm(%2)  [b]

        after
            %0 = norm(x)  [gain]
            %1 = gemm(%0)  [a]
            %3 = gemm(%0)  [b]

    Condition: the same norm of the same value.
    """
    first: dict[tuple[Any, ...], Value] = {}
    fired = 0
    for node in list(graph.nodes):
        op = node.op
        if not isinstance(op, Norm):
            continue
        y = first.setdefault((op.x, op.how, op.add, op.scale, op.after, node.picked), op.y)
        readers = graph.readers(op.y)
        if y is op.y or graph.is_output(op.y) or not all(_reads_norms(reader) for reader in readers):
            continue
        for reader in readers:
            graph.replace(reader, reading(reader.op, op.y, y))
        graph.remove(node)
        fired += 1
    return fired


def _reads_norms(node: Node) -> bool:
    return isinstance(node.op, AdapterDown | Gemm | ExpertProducts | Norm)


def reading(op: Op, old: Value, new: Value) -> Op:
    """The same op, reading `new` in place of `old`."""
    if isinstance(op, Gemm):
        return replace(op, products=tuple(replace(one, x=new if one.x is old else one.x) for one in op.products))
    if isinstance(op, AdapterDown):
        return replace(op, xs=tuple(new if x is old else x for x in op.xs))
    assert isinstance(op, ExpertProducts | Norm)
    return replace(op, x=new)


def whole_norms_into_attention(graph: Graph, _target: Target) -> int:
    """Attention norms q and k over all their heads.

        before
            %0, %1, %2 = gemm(x)  [q k v]
            %3 = norm(%0)  [gain]
            %4 = norm(%1)  [short]
            %5 = copy(%3)
            %6 = copy(%4)
            %7 = copy(%2)
            %9 = attend(%8)  state kv

        after
            %0, %1, %2 = gemm(x)  [q k v]
            %9 = attend(%10)  state kv  +norm

    The norms write new values, which are copied into a stack with v. Instead, attention reads the stack that the
    product wrote, and computes both norms while it stages its heads.

    Condition: every sequence has one row, and no row reads the cache entries of another one; nothing else reads the
    norms; q, k and v are in one stack before the norms.
    """
    fired = 0
    for node in list(graph.nodes) if graph.shape.decode and not graph.shape.shared_pages else []:
        op = node.op
        if isinstance(op, Attend) and not op.cached and op.how.norms is None and op.chosen is None:
            fired += _fuse_norms(graph, node, op)
    return fired


def _fuse_norms(graph: Graph, node: Node, op: Attend) -> bool:
    copies = [one for one in graph.nodes if isinstance(one.op, Copy) and one.op.y.base is op.qkv]
    ops = [one.op for one in copies if isinstance(one.op, Copy)]
    if len(ops) != 3 or graph.readers(op.qkv) != [node] or graph.is_output(op.qkv):
        return False
    writers = [graph.writer(one.x) for one in ops[:2]]
    norms = [one.op for one in writers if one and isinstance(one.op, Norm) and one.op.plain]
    if len(norms) != 2 or not all(isinstance(norm.how, Rms) for norm in norms):
        return False
    sources = [norms[0].x, norms[1].x, ops[2].x]
    base = sources[0].base
    _, parts = stack(sources[0].shape[0], [source.shape[1] for source in sources])
    placed = base is not None and all(source.base is base for source in sources)
    if base is None or not placed or [source.offset for source in sources] != [part.offset for part in parts]:
        return False
    if any(len(graph.readers(norm.y)) != 1 or graph.is_output(norm.y) for norm in norms):
        return False
    for one in (*copies, *(writer for writer in writers if writer)):
        graph.remove(one)
    q, k = norms[0].how, norms[1].how
    assert isinstance(q, Rms)
    assert isinstance(k, Rms)
    graph.replace(node, replace(op, qkv=base, whole_norms=(q, k)))
    return True
