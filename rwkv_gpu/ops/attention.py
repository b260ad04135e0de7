"""Attention recorded: queries, keys and values rotated, K and V kept in pages, and every row's look back over them."""

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..gpu.reach import Reach
from ..gpu.shader import Constant
from .paged import turns
from .recording import Recording
from .values import Computed, Operand, Value, Vectors, stack
from .vocabulary import PAGE, Attention, Cache, Rope

QUERY_FLOATS = 2048  # of all queries of a workgroup: half of the memory that any device has for one
MOST_QUERIES = 16
MOST_RUNS = 64  # of a context, in decode
ENOUGH_GROUPS = 4096  # workgroups that keep any device busy: no more runs than these need
SHORT_RUNS = 2  # that are not worth joining
NO_WINDOW = 1 << 31
NO_END = 1 << 30  # of a run that is the whole context


@dataclass(frozen=True)
class Spread:
    """The heads of a layer, and how their attention is spread over workgroups."""

    heads: int
    kv_heads: int
    size: int
    window: int
    shared: int  # heads of a workgroup, all of one KV head
    rows: int  # of a workgroup
    run: int  # positions of a workgroup
    runs: int

    @property
    def sizes(self) -> dict[str, Constant]:
        """What all kernels know."""
        return {"H": self.heads, "KV": self.kv_heads, "N": self.size, "PAGE": PAGE}

    @property
    def cut(self) -> dict[str, Constant]:
        """What kernels know that attend or join."""
        return {"RUN": self.run, "RUNS": self.runs, "WINDOW": self.window or NO_WINDOW}


class AttentionRecorder(Recording):
    """The op that looks back over pages.

    In a `single` plan one kernel rotates, writes and attends, and a long context is cut into runs that a second one
    joins. In any other, the rows of a sequence see each other, so a kernel of its own writes K and V first.
    """

    def attention(self, q: Value, k: Value, v: Value, cache: Cache, how: Attention) -> Value:
        spread = self._attention_spread(cache, how)
        keys, values = self.caches.places[cache.name]
        pages: dict[str, Operand] = {"keys": keys, "values": values}
        given, constants, parts = self._turned(self._qkv(q, k, v), cache, how)
        if self.single:
            return self._attend(cache.name, spread, ("attention/fresh", *parts), constants, given | pages)
        lanes = self.tuning.map_lanes
        ready = Value((self.rows, how.heads * cache.size))
        items = self.rows * (how.heads + cache.heads) * cache.size // 8
        self.record(
            cache.name,
            ("attention_write", *parts, "lanes/plain"),
            spread.sizes | constants | {"WG": lanes},
            given | pages | {"q": ready},
            groups=-(-items // lanes),
            fixed_bytes=0,
            row_bytes=self._position_bytes(spread),
        )
        operands = {"q": ready, "segments": self.segments} | pages
        return self._attend(cache.name, spread, ("attention/ready", "attention/eight"), {}, operands)

    def _attend(
        self,
        name: str,
        spread: Spread,
        parts: tuple[str, ...],
        constants: Mapping[str, Constant],
        operands: Mapping[str, Operand],
    ) -> Value:
        """The rows over their pages, and where these were cut into runs, the runs joined."""
        y = Value((self.rows, spread.heads * spread.size))
        split = spread.runs > 1
        out = Value((self.rows, spread.heads * spread.runs * (spread.size + 4))) if split else y
        few = min(self.max_segments, self.rows)
        blocks = (self.rows - few) // spread.rows + few  # sequences may each end in a block that is not full
        own: dict[str, Constant] = {
            "SHARED": spread.shared, "ROWS": spread.rows, "KEYS": PAGE,
            "MAX_PAGES": self.caches.max_pages, "WG": self.tuning.attend_lanes,
        }  # fmt: skip
        end = "attention/runs" if split else "attention/whole"
        self.record(
            name,
            ("attention", *parts, f"attention/read_{self.caches.kind}", end, "lanes/plain"),
            {**spread.sizes, **spread.cut, **own, **constants},
            {**operands, "pages": self.page_tables, "y": out},
            groups=blocks * spread.heads // spread.shared * spread.runs,
            fixed_bytes=0,
            row_bytes=self._position_bytes(spread) if self.single else 0,
            reach=Reach(0, self._position_bytes(spread), 4 * spread.heads * spread.size, spread.window),
        )
        if split:
            lanes = self.tuning.map_lanes
            self.record(
                name,
                ("attention_reduce", "lanes/plain"),
                {**spread.cut, "H": spread.heads, "N": spread.size, "WG": lanes},
                {"x": out, "places": self.places, "y": y},
                groups=-(-self.rows * spread.heads * spread.size // (4 * lanes)),
            )
        return y

    def _position_bytes(self, spread: Spread) -> int:
        """Of the keys and values of one position."""
        return 2 * spread.kv_heads * spread.size * {"f16": 2, "f32": 4}[self.caches.kind]

    def _qkv(self, q: Value, k: Value, v: Value) -> Value:
        """The stack of the three, as `linears` makes it; copied where they lie otherwise."""
        _, parts = stack(self.rows, [value.shape[1] for value in (q, k, v)])
        together = q.base is not None and q.base is k.base is v.base
        if together and [q.offset, k.offset, v.offset] == [part.offset for part in parts]:
            return q.root
        return self.copied([q, k, v])[0].root

    def _turned(
        self, qkv: Value, cache: Cache, how: Attention
    ) -> tuple[dict[str, Operand], dict[str, Constant], tuple[str, ...]]:
        """What a kernel binds that reads heads as the matrices leave them, its constants, and its parts."""
        rope, pages = how.rope, self.caches.max_pages
        table = Computed(("turns", rope, pages), lambda: self._turns(rope, pages))
        operands: dict[str, Operand] = {"qkv": qkv, "turns": table, "places": self.places}
        constants: dict[str, Constant] = {"DIMS": rope.dims, "SCALE": float(how.scale)}
        if how.norms:
            operands["norms"] = Vectors(tuple(norm.name for norm in how.norms), (cache.size, cache.size))
            constants["EPS"] = float(how.eps)
        parts = "heads", "normed" if how.norms else "unnormed", rope.pairing, "eight", f"write_{self.caches.kind}"
        return operands, constants, tuple(f"attention/{part}" for part in parts)

    def _turns(self, rope: Rope, pages: int) -> npt.NDArray[np.float32]:
        factors = self.weights.read_vector(rope.factors.name) if rope.factors else None
        return turns(rope, pages, factors)

    def _attention_spread(self, cache: Cache, how: Attention) -> Spread:
        most = min(MOST_QUERIES, QUERY_FLOATS // cache.size)
        sharing = how.heads // cache.heads
        shared = max(n for n in range(1, most + 1) if sharing % n == 0)
        rows = 1 if self.single else most // shared
        run, runs = NO_END, 1
        if self.single:
            context = self.caches.max_pages * PAGE
            wanted = min(MOST_RUNS, max(4, ENOUGH_GROUPS * shared // (self.rows * how.heads)))
            run = PAGE * max(-(-self.tuning.attend_run // PAGE), -(-context // (wanted * PAGE)))
            runs = -(-context // run)
        if runs <= SHORT_RUNS:
            run, runs = NO_END, 1
        return Spread(how.heads, cache.heads, cache.size, how.window, shared, rows, run, runs)

    @property
    def page_tables(self) -> Value:
        """The pages of each sequence. [S, max_pages]"""
        return self.input("pages", np.uint32, (self.max_segments, self.caches.max_pages))

    @property
    def places(self) -> Value:
        """The position of each row, and the row of all pages that holds it. [T, 2]"""
        return self.input("places", np.uint32, (self.rows, 2))
