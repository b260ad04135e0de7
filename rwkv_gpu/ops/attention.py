"""Attention recorded: queries, keys and values rotated, K and V kept in pages, and every row's look back over them."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from ..gpu.cost import ContextCost
from ..gpu.shader import Constant
from .paged import turns
from .recording import Recording
from .spread import Spread, decode_spread, prompt_spread
from .values import Computed, Operand, Value, Vectors, stack
from .vocabulary import PAGE, Attention, Cache, Rope


@dataclass(frozen=True)
class Look:
    """A kernel that attends, with what it is made of."""

    kernel: str
    parts: tuple[str, ...]
    constants: Mapping[str, Constant]

    def joined(self, parts: tuple[str, ...], constants: Mapping[str, Constant] | None = None) -> "Look":
        """With more of both."""
        return Look(self.kernel, (*self.parts, *parts), {**self.constants, **(constants or {})})


class AttentionRecorder(Recording):
    """The op that looks back over pages.

    In a `single` plan one kernel rotates, writes and attends, and a long context is cut into runs that a second one
    joins. In any other, the rows of a sequence see each other, so a kernel of its own writes K and V first.
    """

    def attention(self, q: Value, k: Value, v: Value, cache: Cache, how: Attention) -> Value:
        keys, values = self.caches.places[cache.name]
        pages: dict[str, Operand] = {"keys": keys, "values": values}
        given, constants, parts = self._turned(self._qkv(q, k, v), cache, how)
        if self.single:
            can = self.device.capabilities
            spread = decode_spread(cache, how, self.rows, self.caches.max_pages, self.tuning, can)
            looks = (
                self._shared_keys(spread)
                if spread.lanes_per_key
                else self._own_keys(spread, "attention/queries/rotate_here")
            )
            return self._attend(cache.name, spread, looks.joined(parts, constants), given | pages)
        spread = prompt_spread(cache, how)
        lanes = self.tuning.map_lanes
        ready = Value((self.rows, how.heads * cache.size))
        items = self.rows * (how.heads + cache.heads) * cache.size // 8
        self.record(
            cache.name,
            ("attention/kv_write", *parts, "lib/lanes/plain"),
            spread.sizes | constants | {"WG": lanes},
            given | pages | {"q": ready},
            groups=-(-items // lanes),
            fixed_bytes=0,
            row_bytes=self._position_bytes(spread),
        )
        operands = {"q": ready, "segments": self.segments} | pages
        looks = self._own_keys(spread, "attention/queries/rotated").joined(("attention/eight",))
        return self._attend(cache.name, spread, looks, operands)

    def _own_keys(self, spread: Spread, rows: str) -> Look:
        """Every lane has keys of its own."""
        constants: dict[str, Constant] = {
            "SHARED": spread.shared, "ROWS": spread.rows, "KEYS": PAGE, "WG": self.tuning.attention_lanes,
        }  # fmt: skip
        return Look("attention/attention", (rows,), constants)

    def _shared_keys(self, spread: Spread) -> Look:
        """Lanes share keys; only where every sequence has one row."""
        subgroup_width = self.device.capabilities.subgroup_width
        width = math.gcd(spread.size // 4, subgroup_width)
        constants: dict[str, Constant] = {
            "SHARED": spread.shared, "LANES_PER_KEY": spread.lanes_per_key,
            "PREFETCH": spread.prefetch_depth, "SUBGROUP": subgroup_width,
            "WIDTH": width, "RUN_PAGES": spread.run_pages(self.caches.max_pages), "WG": spread.lanes,
        }  # fmt: skip
        parts = (f"attention/pack/pack_{spread.pack}", f"attention/cache/raw_{self.caches.kind}", "lib/sum/subgroup")
        return Look("attention/attention_decode", parts, constants)

    def _attend(self, name: str, spread: Spread, look: Look, operands: Mapping[str, Operand]) -> Value:
        """The rows over their pages, and where these were cut into runs, the runs joined."""
        y = Value((self.rows, spread.heads * spread.size))
        split = spread.runs > 1
        found = Value((self.rows, spread.heads * spread.runs * (spread.size + 4)))
        if spread.joins:
            operands = {**operands, "y": y, "found": found, "done": self._none_done(spread)}
        else:
            operands = {**operands, "y": found if split else y}
        few = min(self.max_segments, self.rows)
        blocks = (self.rows - few) // spread.rows + few  # sequences may each end in a block that is not full
        end = "last_workgroup" if spread.joins else "partial" if split else "whole"
        self.record(
            name,
            (
                look.kernel,
                *look.parts,
                f"attention/cache/read_{self.caches.kind}",
                "attention/partition",
                f"attention/result/{end}",
                "lib/lanes/plain",
            ),
            {**spread.sizes, **spread.cut, **look.constants, "MAX_PAGES": self.caches.max_pages},
            {**operands, "pages": self.page_tables},
            groups=blocks * spread.heads // spread.shared * spread.runs,
            fixed_bytes=0,
            row_bytes=self._position_bytes(spread) if self.single else 0,
            context_cost=ContextCost(0, self._position_bytes(spread), 4 * spread.heads * spread.size, spread.window),
        )
        if split and not spread.joins:
            self._join(name, spread, found, y)
        return y

    def _none_done(self, spread: Spread) -> Computed:
        """Counts of workgroups, which every dispatch leaves as it found them."""
        count = self.rows * spread.heads // spread.shared
        return Computed(("none done", count), lambda: np.zeros(count, np.uint32))

    def _join(self, name: str, spread: Spread, x: Value, y: Value) -> None:
        """The runs of each head, by as many lanes for each vec4 as a workgroup has."""
        columns = spread.size // 4
        lanes = max(self.tuning.map_lanes, 1 << (columns - 1).bit_length())
        parts = min(lanes // columns, spread.runs)
        heads = lanes // (columns * parts)
        constants: dict[str, Constant] = {"HEADS": heads, "PARTS": parts, "WG": lanes}
        self.record(
            name,
            ("attention/split_reduce", "attention/partition", "lib/lanes/plain"),
            {**spread.cut, "H": spread.heads, "N": spread.size, **constants},
            {"x": x, "places": self.places, "y": y},
            groups=-(-self.rows * spread.heads // heads),
        )

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
        parts = (
            "heads",
            "head_norm/rms" if how.norms else "head_norm/none",
            f"rope/{rope.pairing}",
            "eight",
            f"cache/write_{self.caches.kind}",
        )
        return operands, constants, tuple(f"attention/{part}" for part in parts)

    def _turns(self, rope: Rope, pages: int) -> npt.NDArray[np.float32]:
        factors = self.weights.read_vector(rope.factors.name) if rope.factors else None
        return turns(rope, pages, factors)

    @property
    def page_tables(self) -> Value:
        """The pages of each sequence. [S, max_pages]"""
        return self.input("pages", np.uint32, (self.max_segments, self.caches.max_pages))

    @property
    def places(self) -> Value:
        """The position of each row, and the row of all pages that holds it. [T, 2]"""
        return self.input("places", np.uint32, (self.rows, 2))
