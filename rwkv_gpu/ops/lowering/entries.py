"""Lowering of compressed attention: keys of a window, and entries that each stand for several positions."""

from ...gpu.cost import ContextCost
from ...gpu.shader import Constant
from ..attention_partition import NO_WINDOW, AttentionPartition
from ..graph import Node
from ..latent_partition import decode_partition
from ..nodes import AttendEntries, Compress, TurnHeads, WriteEntries
from ..nodes.stage import Links
from ..run_shares import RunShares
from ..values import Operand, Value
from ..vocabulary import NO_KEY, PAGE, Cache, Rope
from .attention import NO_SINK, PLAIN_ANSWER, reduce_runs, rope_operand, scale_of_queries
from .context import Lowering
from .key_index import pages_of_rows, strides


def turn_heads(to: Lowering, node: Node, op: TurnHeads) -> None:
    count = op.x.shape[1]
    parts, rotation, turns = _rotation(to, op.rope)
    constants = {"H": op.heads, "N": count // op.heads, "SIGN": -1.0 if op.back else 1.0, **rotation}
    to.emit_elements(node, ("attention/turn_heads", *parts), constants, turns, count=node.rows * count)


def write(to: Lowering, node: Node, op: WriteEntries) -> None:
    """Emits the write of entries that are complete to their pages."""
    [keys] = to.memory.caches.places[op.cache.name]
    fmt, size = to.memory.caches.format_of(op.cache), op.cache.size
    parts, rotation, turns = _rotation(to, op.rope)
    to.emit_elements(
        node,
        ("attention/entry_write", *parts, "attention/eight", f"attention/latent/write_{fmt.name}"),
        {"N": size, **rotation, **strides(op.cache), "PAGE": PAGE},
        {"keys": keys, **turns},
        count=node.rows * size // 8,
        name=op.cache.name,
        fixed_bytes=0,
        row_bytes=fmt.nbytes(size),
    )


def compress(to: Lowering, node: Node, op: Compress) -> None:
    """Emits the weighted means of blocks."""
    [keys] = to.memory.caches.places[op.cache.name]
    caches, fmt = to.memory.caches, to.memory.caches.format_of(op.cache)
    to.emit_elements(
        node,
        ("attention/compress", f"attention/latent/read_{fmt.name}", "attention/eight", pages_of_rows(to)),
        {
            "N": op.y.shape[1],
            "RATIO": op.ratio,
            "BLOCKS": op.cache.window // op.ratio,
            "MAX_PAGES": caches.max_pages,
            "PAGE": PAGE,
        },
        {"keys": keys, "bias": to.vector(op.bias)},
        count=node.rows * op.y.shape[1] // 4,
        name=op.cache.name,
        fixed_bytes=0,
        row_bytes=fmt.nbytes(op.cache.size) * op.cache.window // op.ratio,
    )


def attend(to: Lowering, node: Node, op: AttendEntries) -> None:
    """Emits attention over the window and over entries, and the reduction of both."""
    heads, size = op.how.heads, op.cache.size
    runs = 1 if op.entries is None else 2
    found = Value((node.rows, heads * runs * (size + 4)))
    _attend(to, node, op, op.cache, found, runs, 0)
    if op.entries is not None:
        _attend(to, node, op, op.entries, found, runs, 1)
    sinks, stride = op.how.sinks, op.entries.stride if op.entries else 1
    rest = Links([*PLAIN_ANSWER], {"ENTRY": stride})
    if sinks is not None:
        parts = ["attention/sink/logit", "attention/vectors", *(part for part in PLAIN_ANSWER if part not in NO_SINK)]
        rest = Links(parts, {"SINKS": 0, "ENTRY": stride}, {"vectors": to.vector(sinks)})
    how = AttentionPartition(heads, 1, size, op.cache.window, 1, shares=RunShares.all_even(runs))
    reduce_runs(to, node, op.cache, how, found, op.y, rest, cut="attention/latent/window_and_entries")


def _attend(to: Lowering, node: Node, op: AttendEntries, cache: Cache, found: Value, runs: int, run: int) -> None:
    """Emits attention over one cache; a workgroup has heads of one row and all its keys."""
    [keys] = to.memory.caches.places[cache.name]
    heads, caches, fmt = op.how.heads, to.memory.caches, to.memory.caches.format_of(cache)
    partition = decode_partition(heads, cache, node.rows, 1, to.tuning, to.can)
    query_scale, scales = scale_of_queries(op.how)
    chosen = op.chosen if run else None
    count = chosen.shape[-1] if chosen else caches.max_pages * PAGE
    listed: dict[str, Constant] = {"NO_KEY": NO_KEY, "COUNT": count, "BLOCK": 1}
    operands: dict[str, Operand] = {
        "keys": keys, "y": found, "r": op.q, "places": to.places(cache), "pages": to.page_tables(cache),
    }  # fmt: skip
    to.emit(
        node,
        cache.name,
        (
            *("attention/latent_attention", "attention/latent/chosen_rows", pages_of_rows(to)),
            f"attention/latent/{'chosen_keys' if chosen else 'entries_of_row'}",
            *(f"attention/latent/read_{fmt.name}", "attention/eight", f"attention/{query_scale}"),
            *("attention/result/partial", "attention/latent/whole_cut", "attention/block", "attention/reach/window"),
            "lib/lanes/plain",
        ),
        {
            **partition.constants, **scales, **listed, **strides(cache), "MAX_PAGES": caches.max_pages,
            "KEYS": partition.keys, "CHUNK": partition.chunk, "GRAIN": partition.grain, "RUNS": runs, "RUN": run,
            "WINDOW": cache.window or NO_WINDOW,
        },
        operands | ({"chosen": chosen} if chosen else {}),
        groups=node.rows * -(-heads // partition.queries),
        fixed_bytes=0,
        context_cost=ContextCost(
            0, fmt.nbytes(cache.size) // cache.stride, 4 * heads * cache.size // cache.stride, cache.window
        ),
    )  # fmt: skip


def _rotation(to: Lowering, rope: Rope | None) -> tuple[tuple[str, ...], dict[str, Constant], dict[str, Operand]]:
    """The parts, constants and operands that rotate the last dims."""
    if rope is None:
        return ("attention/latent/no_rope",), {"DIMS": 0}, {}
    turns: dict[str, Operand] = {"turns": rope_operand(to, rope)}
    return ("attention/latent/rotate", f"attention/rope/{rope.pairing}"), {"DIMS": rope.dims, "PAGE": PAGE}, turns
