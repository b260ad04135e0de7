"""Lowering of attention: rotation of q, k and v, the write of K and V to pages, and attention over the pages.

In decode, with one row per sequence, a single kernel rotates, writes and attends. A long context is split into runs
that a second kernel reduces. In any other step rows of a sequence see each other, so a separate kernel writes K and V
first. A step that verifies drafts then attends as in decode, row by row.
"""

import math
from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from ...gpu.cost import ContextCost
from ...gpu.shader import Constant
from ...kernels.matrix_tiles import matrix_units
from ...kernels.parts import LAST_WORKGROUP, ORDERED_SUBGROUP, ROUNDING_IN_UNITS
from ..attention_partition import (
    MAX_FRAGMENTS,
    AttentionPartition,
    MatrixDecodePartition,
    decode_bytes,
    decode_partition,
    in_runs,
    matrix_decode_partition,
    prompt_partition,
)
from ..graph import Node
from ..kv_format import KVFormat
from ..nodes import Attend, WriteKeys
from ..nodes.stage import Links
from ..paged import MAX_DISTANCE, factors_of, largest_power, relative_biases, rope_table
from ..run_shares import RunShares
from ..values import CachedTensor, JoinedVectors, Operand, Value
from ..vocabulary import NO_KEY, PAGE, Attention, Cache, HeadNorms, LatentAttention, LateTemperature, Rope, Weight
from .context import Lowering
from .quantising import in_units

SMALL_HEAD = 80  # maximum size of heads of which keys and values of four fragments are copied at a time, else two
QUERY_TILES = 4  # subgroups of a workgroup on matrix units
RUN_FRAGMENTS = 16  # minimum number of key fragments of a run on matrix units
MIN_COLUMNS = 16  # minimum number of vec4s of a head for a workgroup that reduces runs
REDUCING_GROUPS = 128  # workgroups that reduce runs, if heads are long enough
LOG2E = math.log2(math.e)
BLOCKS = "attention/block", "attention/blocks_of_segments"  # parts that locate the queries of a workgroup in a prompt
WRITTEN = *BLOCKS, "attention/queries/written"  # and read them


NO_SINK = ("attention/sink/none",)
PLAIN_ANSWER = (*NO_SINK, "attention/gate/none", "attention/answer/floats")


def attend(to: Lowering, node: Node, op: Attend) -> None:
    if to.shape.decode:
        # The only row of a sequence attends to itself and all earlier positions.
        # Without a causal mask, such a row is a whole text: its only score needs no bias, because the softmax is 1.
        biases = op.how.biases if op.how.causal else None
        op = replace(op, how=replace(op.how, causal=True, bounds="", ends="", biases=biases), bounds=None)
    keys, values = to.memory.caches.places[op.cache.name]
    pages = Links(operands={"keys": keys, "values": values})
    fmt, max_pages = to.memory.caches.format_of(op.cache), to.memory.caches.max_pages
    if op.chosen is not None:
        _attend_to_chosen(to, node, op, op.chosen, pages)
        return
    if to.shape.decode:
        units = _decode_units(to, node, op)
        if units is not None:
            kernel = _on_units(to, units, _write_keys(to, node, op, units.partition))
            _attend(to, node, replace(op, cached=True), units.partition, kernel + pages, LOG2E)
            return
        partition = decode_partition(op.cache, op.how, node.rows, max_pages, to.tuning, to.can)
        if to.shape.shared_pages and not op.cached:
            _write_keys(to, node, op, partition)
            op = replace(op, cached=True)
        own = _own_keys(to, partition, fmt, "attention/queries/rotate_here", "attention/keys/paged", "attention/block")
        kernel = _shared_keys(to, partition, fmt) if partition.lanes_per_key else own
        _attend(to, node, op, partition, kernel + _rotated(to, op) + pages)
        return
    partition = prompt_partition(op.cache, op.how, node.rows, max_pages, to.tuning)
    pages.operands["q"] = _write_keys(to, node, op, partition)
    if partition.runs == 1 and _on_matrix_units(to, op):
        _attend_on_matrix_units(to, node, op, partition, pages)
        return
    kernel = _own_keys(to, partition, fmt, "attention/queries/rotated", "attention/keys/paged", *WRITTEN)
    _attend(to, node, op, partition, kernel + Links(["attention/eight"]) + pages)


def write_keys(to: Lowering, node: Node, op: WriteKeys) -> None:
    """Emits the write of keys and values alone: like `attend`, without query heads."""
    y = Value((node.rows, 4))  # nothing is written to it
    sizes: dict[str, Constant] = {"H": 0, "KV": op.cache.heads, "N": op.cache.size, "PAGE": PAGE}
    _emit_write(to, node, Attend(op.kv, op.cache, replace(op.how, heads=0), y), sizes, y)


def _attend_to_chosen(to: Lowering, node: Node, op: Attend, chosen: Value, pages: Links) -> None:
    """Emits attention to the positions that were chosen for each row; a workgroup has heads of one row and its list."""
    _, lists, length = chosen.shape
    partition = prompt_partition(op.cache, op.how, node.rows, 1, to.tuning)
    partition = replace(partition, rows=1, window=length)
    kernel = _own_keys(
        to,
        partition,
        to.memory.caches.format_of(op.cache),
        *("attention/queries/chosen", "attention/keys/chosen", "attention/eight", *WRITTEN),
    )
    constants: dict[str, Constant] = {"LISTS": lists, "LENGTH": length, "NO_KEY": NO_KEY}
    rotated = Links([], constants, {"q": _write_keys(to, node, op, partition), "chosen": chosen})
    _attend(to, node, op, partition, kernel + rotated + pages)


def _decode_units(to: Lowering, node: Node, op: Attend) -> MatrixDecodePartition | None:
    """The partition for decode on matrix units; None if they are not used."""
    if op.whole_norms or op.how.biases or to.memory.caches.format_of(op.cache).name != "f16":
        return None
    return matrix_decode_partition(op.cache, op.how, node.rows, to.memory.caches.max_pages, to.tuning, to.can)


def _on_units(to: Lowering, units: MatrixDecodePartition, q: Value) -> Links:
    """The decode kernel on matrix units: heads that share keys are rows of a fragment."""
    constants: dict[str, Constant] = {
        "SHARED": units.partition.shared, "QUERIES": units.queries, "KEY_TILES": units.key_tiles,
        "WG": units.partition.lanes, **matrix_units(to.can.fragment, to.can.subgroup_size),
    }  # fmt: skip
    parts = ["attention/attention_decode_matrix", "attention/softmax", units.partition.shares.finding]
    return Links(parts, constants, {"q": q})


def _write_keys(to: Lowering, node: Node, op: Attend, partition: AttentionPartition) -> Value:
    """Emits the write of keys and values to their pages. Returns the rotated queries. [T, H N]"""
    q = Value((node.rows, op.how.heads * op.cache.size))
    _emit_write(to, node, op, partition.sizes, q)
    return q


def _emit_write(to: Lowering, node: Node, op: Attend, sizes: Mapping[str, Constant], q: Value) -> None:
    keys, values = to.memory.caches.places[op.cache.name]
    rotated = _rotated(to, op)
    heads = op.how.heads + (0 if op.cached else op.cache.heads)
    to.emit_elements(
        node,
        ("attention/kv_write", *rotated.parts),
        {**sizes, **rotated.constants},
        {**rotated.operands, "keys": keys, "values": values, "q": q},
        count=node.rows * heads * op.cache.size // 8,
        name=op.cache.name,
        fixed_bytes=0,
        row_bytes=_position_bytes(to, op),
    )


def _on_matrix_units(to: Lowering, op: Attend) -> bool:
    """True if a prompt attends on matrix units: the cache is float16, and heads have at most 16 fragments."""
    side = to.can.fragment
    wanted = to.tuning.attention.prompts_on_matrix_units and to.memory.caches.format_of(op.cache).name == "f16"
    if not wanted or op.cache.size % 8:
        return False
    fits = matrix_attention_bytes(op.cache.size, side) <= to.can.max_workgroup_memory
    return op.how.biases is None and op.cache.size <= 2 * MAX_FRAGMENTS * side and fits


def matrix_attention_bytes(size: int, side: int) -> int:
    """Bytes of workgroup memory: a block of keys and values, and the scores and exponentials of each query tile."""
    keys, scored, dims = _keys(size, side), 2 * side, -(-size // side) * side  # padded with zeros
    queries, of_values = QUERY_TILES * side, -(-dims // side // pieces(size, side)) * side
    stored = max(queries * (dims + 8), keys * (dims + 8 + of_values + 8))
    return 2 * stored + queries * (4 * (scored + 4) + 2 * (scored + 8) + 4) + 32


def pieces(size: int, side: int) -> int:
    """The number of workgroups that share the dimensions of a head's result."""
    return 2 if size > MAX_FRAGMENTS * side else 1


def _keys(size: int, side: int) -> int:
    """The number of keys that a workgroup copies at a time."""
    return 4 * side if size <= SMALL_HEAD else 2 * side


def _attend_on_matrix_units(to: Lowering, node: Node, op: Attend, partition: AttentionPartition, bound: Links) -> None:
    """Emits prompt attention on matrix units. A workgroup has four query tiles, of 1, 2 or 4 heads of one KV head."""
    side, lanes = to.can.fragment, to.can.subgroup_size
    sharing = partition.heads // partition.kv_heads
    shared = max(count for count in (1, 2, QUERY_TILES) if sharing % count == 0)
    rows = side * QUERY_TILES // shared
    few = min(to.shape.max_segments, node.rows)
    blocks = (node.rows - few) // rows + few
    groups = blocks * partition.heads // shared * pieces(op.cache.size, side)
    if op.how.causal:
        partition = in_runs(partition, groups, RUN_FRAGMENTS * side, to.memory.caches.max_pages, to.tuning)
    found = Value((node.rows, partition.heads * partition.runs * (partition.size + 4)))
    own: dict[str, Constant] = {
        "SHARED": shared, "ROWS": rows, "WG": QUERY_TILES * lanes, "MAX_PAGES": to.memory.caches.max_pages,
        "KEYS": _keys(op.cache.size, side), "PIECES": pieces(op.cache.size, side),
    }  # fmt: skip
    links = _scores(to, op, LOG2E) + _sink(op) + bound
    barrier = "subgroup" if lanes == ORDERED_SUBGROUP else "workgroup"
    shares = "attention/partition", partition.shares.counting
    operands: dict[str, Operand] = {
        **_bounds(op), "y": found if partition.runs > 1 else op.y,
    }  # fmt: skip
    to.emit(
        node,
        op.cache.name,
        (
            "attention/attention_matrix",
            f"attention/meeting/{barrier}",
            "attention/softmax",
            "attention/blocks",
            *shares,
            *BLOCKS,
            *links.parts,
            partition.reach,
            "lib/lanes/plain",
        ),
        {**partition.sizes, **partition.split, **own, **links.constants, **matrix_units(side, lanes)},
        links.operands | operands,
        groups=groups * partition.runs,
        fixed_bytes=0,
        context_cost=ContextCost(0, _position_bytes(to, op), 4 * partition.heads * partition.size, partition.window),
    )
    if partition.runs > 1:
        reduce_runs(to, node, op.cache, partition, found, op.y, _answer(to, node, op), cut="attention/every_run")


def _own_keys(to: Lowering, partition: AttentionPartition, fmt: KVFormat, *queries: str) -> Links:
    """The kernel in which each lane has its own keys."""
    constants: dict[str, Constant] = {
        "SHARED": partition.shared, "ROWS": partition.rows, "KEYS": PAGE, "WG": to.tuning.attention.workgroup_lanes,
        "ROLLED": int(to.tuning.attention.rolls_loops),
    }  # fmt: skip
    return Links(["attention/attention", *queries, *_stored(fmt, partition.size, "read")], constants)


def _shared_keys(to: Lowering, partition: AttentionPartition, fmt: KVFormat) -> Links:
    """The decode kernel in which several lanes share a key."""
    subgroup, caches = to.can.subgroup_width, to.memory.caches
    constants: dict[str, Constant] = {
        "SHARED": partition.shared, "LANES_PER_KEY": partition.lanes_per_key,
        "PREFETCH": partition.prefetch_depth, "SUBGROUP": subgroup, "WIDTH": math.gcd(partition.size // 4, subgroup),
        "RUN_PAGES": partition.run_pages(caches.max_pages), "WG": partition.lanes,
    }  # fmt: skip
    raw = "blocks" if fmt.quantised else fmt.name
    scores = "integers" if fmt.quantised and to.can.integer_dot else "floats"
    parts = [
        "attention/attention_decode",
        f"attention/pack/pack_{partition.pack}",
        f"attention/scores/{scores}",
        f"attention/cache/raw_{raw}",
        *_stored(fmt, partition.size, "read"),
        "lib/sum/subgroup",
        partition.shares.finding,
    ]
    return Links(parts, constants)


def _attend(
    to: Lowering, node: Node, op: Attend, partition: AttentionPartition, kernel: Links, base: float = 1.0
) -> None:
    """Emits attention, and the reduction of runs if the context is split; `base` as in `_scores`."""
    split = partition.runs > 1
    found = Value((node.rows, partition.heads * partition.runs * (partition.size + 4)))
    operands: dict[str, Operand] = {"y": found if split else op.y}
    if partition.joins:
        operands = {"y": op.y, "found": found, "done": _none_done(node.rows, partition)}
    few = min(to.shape.max_segments, node.rows)
    blocks = (node.rows - few) // partition.rows + few  # each sequence may end in a block that is not full
    result = "last_workgroup" if partition.joins else "partial" if split else "whole"
    nbytes = _position_bytes(to, op)
    links = kernel + _scores(to, op, base)
    links.add(Links() if result == "partial" else _answer(to, node, op))
    to.emit(
        node,
        op.cache.name,
        (
            *dict.fromkeys(links.parts),
            partition.reach,
            "attention/partition",
            partition.shares.counting,
            f"attention/result/{result}",
            *([LAST_WORKGROUP] if partition.joins else []),
            "lib/lanes/plain",
        ),
        {**partition.sizes, **partition.split, **links.constants, "MAX_PAGES": to.memory.caches.max_pages},
        {**links.operands, **operands, **_bounds(op)},
        groups=partition.shares.count(blocks) * partition.heads // partition.shared,
        fixed_bytes=0,
        row_bytes=nbytes if to.shape.decode and not op.cached else 0,
        shared_bytes=_workgroup_bytes(to, partition),
        context_cost=ContextCost(0, nbytes, 4 * partition.heads * partition.size, partition.window),
    )
    if split and not partition.joins:
        reduce_runs(to, node, op.cache, partition, found, op.y, _answer(to, node, op))


def _workgroup_bytes(to: Lowering, partition: AttentionPartition) -> int | None:
    """The maximum bytes of workgroup memory if lanes share keys; else None."""
    if not partition.lanes_per_key:
        return None
    return decode_bytes(partition.shared, partition.size, partition.lanes // to.can.subgroup_width)


def _none_done(rows: int, partition: AttentionPartition) -> CachedTensor:
    """Zeroed counters of finished workgroups; every dispatch resets them."""
    count = rows * partition.heads // partition.shared
    return CachedTensor(("none done", count), lambda: np.zeros(count, np.uint32))


def joining(shares: RunShares) -> tuple[str, ...]:
    """The parts that reduce runs. The number of runs depends on the length of the row's context."""
    return "attention/partition", shares.counting, "attention/run_sums"


def reduce_runs(
    to: Lowering,
    node: Node,
    cache: Cache,
    partition: AttentionPartition,
    found: Value,
    y: Value,
    sink: Links | None = None,
    *,
    cut: str | None = None,
) -> None:
    """Emits the reduction of the runs of each head. The part `cut` counts those of a row, by default by its length.

    Several lanes share a vec4. Several workgroups share a head if there would be too few workgroups otherwise.
    """
    total, slices = partition.size // 4, 1
    while (
        total % (2 * slices) == 0 and total // slices >= 2 * MIN_COLUMNS
    ) and node.rows * partition.heads * slices < REDUCING_GROUPS:
        slices *= 2
    columns = total // slices
    lanes = max(to.tuning.lanes.map_lanes, 1 << (columns - 1).bit_length())
    parts = min(lanes // columns, partition.runs)
    heads = lanes // (columns * parts)
    constants: dict[str, Constant] = {"HEADS": heads, "RUN_LANES": parts, "COLUMNS": columns, "WG": lanes}
    sink = sink or Links([*PLAIN_ANSWER])
    to.emit(
        node,
        cache.name,
        (
            "attention/split_reduce",
            *((cut, "attention/run_sums") if cut else joining(partition.shares)),
            partition.reach,
            *sink.parts,
            "lib/lanes/plain",
        ),
        {**partition.split, "H": partition.heads, "N": partition.size, **constants, **sink.constants},
        {"x": found, "places": to.places(cache), "y": y, **sink.operands},
        groups=-(-node.rows * partition.heads // heads) * slices,
    )


def _stored(fmt: KVFormat, size: int, way: str) -> tuple[str, ...]:
    """The parts that read or write a cache."""
    if not fmt.quantised:
        return f"attention/cache/{way}_{fmt.name}", "attention/cache/words_of_four", "attention/cache/as_they_are"
    count = "two" if fmt.bits == 8 and fmt.width(size) % 2 == 0 else "one"
    parts = [f"words_of_{count}", "blocks", f"bits_{fmt.name}", "hadamard" if fmt.rotated else "as_they_are"]
    if way == "write":
        parts += ["write_rotated" if fmt.rotated else "write_blocks", f"put_{count}"]
    else:
        parts.append("read_blocks")
    return tuple(f"attention/cache/{part}" for part in parts)


def _position_bytes(to: Lowering, op: Attend) -> int:
    """Bytes of the keys and values of one position."""
    return 2 * op.cache.heads * to.memory.caches.format_of(op.cache).nbytes(op.cache.size)


def _rotated(to: Lowering, op: Attend) -> Links:
    """The parts, constants and operands of a kernel that reads unrotated heads."""
    how, rope, norms = op.how, op.how.rope, op.how.norms
    operands: dict[str, Operand] = {"qkv": op.qkv}
    query_scale, scales = scale_of_queries(how)
    constants: dict[str, Constant] = {"DIMS": rope.dims if rope else 0, **scales}
    parts = [
        "heads",
        f"head_norm/{'whole' if op.whole_norms else _head_norm(norms)}",
        "value_norm/unit" if norms and norms.v else "value_norm/none",
        f"rope/{rope.pairing}" if rope else "rope/none",
        query_scale,
        "source/cached" if op.cached else "source/own",
        "eight",
    ]
    if rope:
        operands["turns"] = rope_operand(to, rope)
        parts.append("turns")
    constants["HEAD"] = how.head or op.cache.size
    if op.whole_norms:
        constants["EPS"] = float(op.whole_norms[0].eps)
    if norms:
        constants |= {"EPS": float(norms.eps)}
    if op.whole_norms or (norms and _weighted(norms)):
        operands["vectors"] = _vectors(op)
        parts.append("vectors")
    stored = _stored(to.memory.caches.format_of(op.cache), op.cache.size, "write")
    return Links([*(f"attention/{part}" for part in parts), *stored], constants, operands)


def scale_of_queries(how: Attention | LatentAttention) -> tuple[str, dict[str, Constant]]:
    """The part that scales a query, and its constants."""
    scale, warm = float(how.scale), how.temperature
    if warm is None:
        return "query_scale/constant", {"SCALE": scale}
    if isinstance(warm, LateTemperature):
        return "query_scale/late", {"SCALE": scale, "START": warm.start}
    return "query_scale/temperature", {
        "SCALE": scale,
        "TEMPERATURE": float(warm.scale),
        "PERIOD": warm.period,
        "SHIFT": warm.shift,
    }


def rope_operand(to: Lowering, rope: Rope) -> CachedTensor:
    """The table of rotations for all positions of a plan."""
    pages, weights = to.memory.caches.max_pages, to.weights  # so that `make` does not keep `to` alive
    factors = factors_of(rope, to.memory.caches.context)

    def make() -> npt.NDArray[np.float32]:
        return rope_table(rope, pages, weights.read_vector(factors.name) if factors else None)

    return CachedTensor(("turns", rope, pages), make)


def _head_norm(norms: HeadNorms | None) -> str:
    """The part that norms heads of q and k."""
    if norms is None or not norms.qk:
        return "none"
    return ("turned" if norms.turned else "rms") if _weighted(norms) else "unit"


def _weighted(norms: HeadNorms) -> bool:
    return norms.qk and norms.q is not None


def _vectors(op: Attend) -> JoinedVectors:
    """The weights of head norms, followed by the sinks, if there are any."""
    norms, sinks, size = op.how.norms, op.how.sinks, op.cache.size
    weighted = norms if norms and _weighted(norms) else None
    rows: list[tuple[Weight | None, int]] = []
    for one in (weighted.q, weighted.k) if weighted else ():
        count = op.how.head or size
        rows += [(one, count), (None, size - count)][: 2 if count < size else 1]  # padding has zeros
    for norm, heads in zip(op.whole_norms or (), (op.how.heads, op.cache.heads), strict=False):
        rows.append((norm.weight, heads * size))
    rows += [(sinks, op.how.heads)] if sinks else []
    return JoinedVectors(tuple(one.name if one else None for one, _ in rows), tuple(length for _, length in rows))


def _scores(to: Lowering, op: Attend, base: float) -> Links:
    """The part that transforms scores. The kernel computes e^(score / base)."""
    how = op.how
    assert not (how.softcap and (how.alibi or how.biases)), "scores that are biased have no cap"
    if how.alibi:
        power = largest_power(how.heads)
        slopes: dict[str, Constant] = {"SLOPES": float(power), "SLOPE_STEP": how.alibi / power}
        return Links(["attention/logit/alibi"], slopes | {"SLOPE_UNIT": float(base)})
    if how.biases:
        return Links(["attention/logit/relative"], {"MAX_APART": float(MAX_DISTANCE)}, _biases(to, how))
    if how.softcap:
        return Links(["attention/logit/capped"], {"CAP": how.softcap * base})
    return Links(["attention/logit/plain"])


def _biases(to: Lowering, how: Attention) -> dict[str, Operand]:
    """The biases of each head by relative position. All layers with the same table share them."""
    assert how.biases is not None
    table, heads, causal, weights = how.biases, how.heads, how.causal, to.weights  # `make` must not keep `to` alive
    made = CachedTensor(
        ("biases", table.name), lambda: relative_biases(weights.read_vector(table.name), heads, causal=causal)
    )
    return {"biases": made}


def _bounds(op: Attend) -> dict[str, Operand]:
    """The positions that each row sees, for the part that reads them."""
    return {"bounds": op.bounds} if op.bounds is not None else {}


def _sink(op: Attend) -> Links:
    """The part that adds a sink to the softmax, for the kernel that divides by the sum."""
    if op.how.sinks is None:
        return Links([*NO_SINK])
    vectors = _vectors(op)
    constants: dict[str, Constant] = {"SINKS": sum(vectors.lengths) - op.how.heads, "H": op.how.heads}
    return Links(["attention/sink/logit", "attention/vectors"], constants, {"vectors": vectors})


def _answer(to: Lowering, node: Node, op: Attend) -> Links:
    """The parts for the kernel that writes the result: sink, gate, and optional rounding."""
    gate = ["attention/gate/none" if op.gate is None else "attention/gate/each"]
    found = _sink(op) + Links(gate, {}, {} if op.gate is None else {"gates": op.gate})
    if op.quantises is None:
        return found + Links(["attention/answer/floats"])
    return found + Links(["attention/answer/rounded", *ROUNDING_IN_UNITS], *in_units(to, op.quantises, node.rows))
