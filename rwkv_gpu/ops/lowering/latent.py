"""Lowering of latent attention: latents are written to their pages, then every head of a row attends to them."""

from ...gpu.cost import ContextCost
from ...gpu.merge import lanes
from ...gpu.shader import Constant
from ...kernels.matrix_tiles import matrix_units
from ..attention_partition import AttentionPartition
from ..graph import Node
from ..latent_partition import (
    LatentPartition,
    decode_partition,
    matrix_decode_partition,
    matrix_prompt_partition,
    prompt_partition,
)
from ..nodes import AttendLatent, WriteLatent
from ..nodes.stage import Links
from ..values import Operand, Value
from ..vocabulary import NO_KEY, PAGE, Cache
from .attention import BLOCKS, NO_SINK, PLAIN_ANSWER, reduce_runs, rope_operand, scale_of_queries
from .context import Lowering, Runs
from .key_index import pages_of_rows, strides


def attend(to: Lowering, node: Node, op: AttendLatent) -> None:
    if op.chosen is not None:
        _attend_to_chosen(to, node, op, op.chosen)
        return
    [keys] = to.memory.caches.places[op.cache.name]
    heads, caches = op.how.heads, to.memory.caches
    partition = _partition(to, node, op)
    if to.shape.decode:
        blocks = partition.shares.count(node.rows) * -(-heads // partition.queries)
    else:  # each sequence may end in a block that is not full
        blocks = node.rows * heads // partition.queries + min(to.shape.max_segments, node.rows)
    found, result, written = _result(node, op, partition)
    kernel, parts, constants = _kernel(to, op, partition)
    query_scale, scales = scale_of_queries(op.how)
    to.emit(
        node,
        op.cache.name,
        (
            kernel,
            *(
                ("attention/latent/single_rows", BLOCKS[0], partition.shares.finding)
                if to.shape.decode
                else ("attention/latent/segments", *BLOCKS)
            ),
            *parts,
            f"attention/{query_scale}",
            f"attention/result/{result}",
            "attention/partition",
            partition.shares.counting,
            "attention/reach/window",
            *(() if result == "partial" else PLAIN_ANSWER),
            "lib/lanes/plain",
        ),
        partition.constants | partition.split | scales | {"MAX_PAGES": caches.max_pages} | constants,
        {"keys": keys, **written},
        groups=blocks,
        fixed_bytes=0,
        context_cost=ContextCost(0, _position_bytes(to, op.cache), 2 * heads * (op.cache.size + op.cache.latent), 0),
    )
    if result == "partial" and op.leaves_runs:
        to.runs[op.y] = Runs(found, op.cache, partition.split)
    elif result == "partial":
        _reduce(to, node, op, partition, found)


def _partition(to: Lowering, node: Node, op: AttendLatent) -> LatentPartition:
    heads, caches, tuning, can = op.how.heads, to.memory.caches, to.tuning, to.can
    halves = caches.format_of(op.cache).name == "f16"
    if to.shape.decode:
        step = node.rows, caches.max_pages, tuning, can
        units = matrix_decode_partition(heads, op.cache, *step) if halves else None
        return units or decode_partition(heads, op.cache, *step)
    units = matrix_prompt_partition(heads, op.cache, tuning, can) if halves else None
    return units or prompt_partition(heads, op.cache, tuning, can)


def _result(node: Node, op: AttendLatent, partition: LatentPartition) -> tuple[Value, str, dict[str, Operand]]:
    """The values of all runs, the part that writes the result of a workgroup, and its operands.

    Sinks are added where runs are reduced, because a prompt binds all the buffers that WebGPU guarantees.
    """
    found = Value((node.rows, partition.heads * partition.runs * (op.cache.latent + 4)))
    whole = partition.runs == 1 and op.how.sinks is None
    return found, "whole" if whole else "partial", {} if whole else {"y": found}


def _reduce(to: Lowering, node: Node, op: AttendLatent, partition: LatentPartition, found: Value) -> None:
    """Emits the reduction of runs."""
    size, grain, shares, window = op.cache.latent, partition.grain, partition.shares, op.cache.window
    rest, sinks = Links([*PLAIN_ANSWER]), op.how.sinks
    if sinks is not None:
        parts = ["attention/sink/logit", "attention/vectors", *(part for part in PLAIN_ANSWER if part not in NO_SINK)]
        rest = Links(parts, {"SINKS": 0}, {"vectors": to.vector(sinks)})
    how = AttentionPartition(partition.heads, 1, size, window, 1, 1, grain, shares)
    reduce_runs(to, node, op.cache, how, found, op.y, rest, cut="attention/every_run" if partition.runs == 1 else None)


def _kernel(
    to: Lowering, op: AttendLatent, partition: LatentPartition
) -> tuple[str, tuple[str, ...], dict[str, Constant]]:
    """The kernel of a partition, its parts and constants."""
    if partition.width_parts:
        units = matrix_units(to.can.fragment, to.can.subgroup_size)
        return (
            "attention/latent_attention_matrix",
            ("attention/softmax",),
            units | {"PREFETCH": to.tuning.attention.latent_prefetch},
        )
    read = f"attention/latent/read_{to.memory.caches.format_of(op.cache).name}"
    parts = read, "attention/eight", "attention/latent/every_key"
    return "attention/latent_attention", parts, {"KEYS": partition.keys, "CHUNK": partition.chunk}


def _attend_to_chosen(to: Lowering, node: Node, op: AttendLatent, chosen: Value) -> None:
    """Emits attention to the keys that were chosen for each row; a workgroup has heads of one row and all its keys."""
    [keys] = to.memory.caches.places[op.cache.name]
    heads, caches, count = op.how.heads, to.memory.caches, chosen.shape[2]
    partition = decode_partition(heads, op.cache, node.rows, 1, to.tuning, to.can)
    assert partition.runs == 1, "one page is one run"
    query_scale, scales = scale_of_queries(op.how)
    found, result, written = _result(node, op, partition)
    assert op.how.temperature is None, "the number of chosen keys takes the place of the position"
    to.emit(
        node,
        op.cache.name,
        (
            "attention/latent_attention",
            *("attention/latent/chosen_rows", "attention/latent/chosen_keys", pages_of_rows(to)),
            *(f"attention/latent/read_{caches.format_of(op.cache).name}", "attention/eight"),
            *(f"attention/{query_scale}", f"attention/result/{result}", "attention/partition", "attention/block"),
            *(() if result == "partial" else PLAIN_ANSWER),
            *(partition.shares.counting, "attention/reach/window", "lib/lanes/plain"),
        ),
        partition.constants
        | partition.split
        | scales
        | {"MAX_PAGES": caches.max_pages, "KEYS": partition.keys, "CHUNK": partition.chunk}
        | {"COUNT": count, "BLOCK": op.how.block, "NO_KEY": NO_KEY, "RUN": 0, **strides(op.cache)},
        {"keys": keys, **written},
        groups=node.rows * -(-heads // partition.queries),
        fixed_bytes=0,
        context_cost=ContextCost(
            0, _position_bytes(to, op.cache), 2 * heads * (op.cache.size + op.cache.latent), count
        ),
    )
    if result == "partial":
        _reduce(to, node, op, partition, found)


def write(to: Lowering, node: Node, op: WriteLatent) -> None:
    """Emits the write of latents to their pages and the rotation of the last dims of queries."""
    [keys] = to.memory.caches.places[op.cache.name]
    rope, caches, heads = op.how.rope, to.memory.caches, op.how.heads
    operands: dict[str, Operand] = {"gain": to.vector(op.how.norm), "keys": keys}
    workgroup = int(lanes(to.dispatches[-1].linked)) if op.merges else to.tuning.lanes.row_lanes
    constants: dict[str, Constant] = {
        "H": heads, "N": op.cache.latent, "WIDTH": op.cache.size, "S": op.q_rope.shape[1] // heads,
        "EPS": float(op.how.eps), "WG": workgroup,
    }  # fmt: skip
    write = f"attention/latent/write_{caches.format_of(op.cache).name}"
    parts = ["attention/latent/no_rope"]
    if rope:
        parts = ["attention/latent/rotate", f"attention/rope/{rope.pairing}"]
        operands["turns"] = rope_operand(to, rope)
        constants |= {"DIMS": rope.dims, "PAGE": PAGE}
    to.emit(
        node,
        op.cache.name,
        (
            "attention/latent_write",
            *parts,
            "attention/eight",
            write,
            f"lib/lanes/{to.tuning.lanes.reduce}",
        ),
        constants,
        operands,
        groups=node.rows,
        fixed_bytes=0,
        row_bytes=_position_bytes(to, op.cache),
        shared_bytes=8 * workgroup,
    )


def _position_bytes(to: Lowering, cache: Cache) -> int:
    """Bytes of the latent of one position."""
    return to.memory.caches.format_of(cache).nbytes(cache.size)
