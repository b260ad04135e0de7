"""The lowering context: the graph, the device, the memory, and the dispatches so far."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

import numpy as np

from ...gpu.cost import NO_CONTEXT_COST, ContextCost
from ...gpu.plan import Slice
from ...gpu.shader import Constant
from ...kernels.registry import link
from ..batch import SEGMENT_WORDS, of_window
from ..dispatch import UnplacedDispatch
from ..graph import Graph, Node
from ..memory import Memory
from ..nodes import Correct
from ..sampling import DRAW_WORDS, WORD_OF
from ..target import Target
from ..values import Operand, Value
from ..vocabulary import PAGE, Cache, LayerNorm, Rms, Weight

NO_OPERANDS: Mapping[str, Operand] = MappingProxyType({})
NO_CONSTANTS: Mapping[str, Constant] = MappingProxyType({})
MIN_LANES = 64  # minimum lanes of a workgroup: the number of workgroups that run at once is limited, too


@dataclass(frozen=True)
class Runs:
    """The partial results of attention, one per run of the context."""

    found: Value  # [T, H, runs, N + 4]
    cache: Cache
    constants: Mapping[str, Constant]  # how the context is split into runs


class Lowering:
    """Collects the dispatches of a graph. Refers to shaders by name, and is independent of ops."""

    def __init__(self, graph: Graph, target: Target, memory: Memory) -> None:
        self.graph = graph
        self.shape = graph.shape
        self.target = target
        self.can = target.can
        self.tuning = target.tuning
        self.weights = target.weights
        self.memory = memory
        self.dispatches: list[UnplacedDispatch] = []
        self.corrections: dict[Value, UnplacedDispatch] = {}  # by value: dispatches before all others that write it
        self._corrected: dict[Value, Value] = {}  # by input of the step
        self.runs: dict[Value, Runs] = {}  # by value: partial results that its reader reduces

    def emit(
        self,
        node: Node,
        name: str,
        shader: Sequence[str],
        constants: Mapping[str, Constant],
        operands: Mapping[str, Operand] = NO_OPERANDS,
        *,
        groups: int,
        fixed_bytes: int | None = None,
        row_bytes: int = 0,
        row_flops: int = 0,
        context_cost: ContextCost = NO_CONTEXT_COST,
        shared_bytes: int | None = None,
    ) -> None:
        """Appends a dispatch of `groups` workgroups; `shader` is the kernel and its parts, operands are by binding.

        A binding without an operand has the field of the op with its name, or an input of the step: see `_operand`.
        The cost includes the rows of all value operands; `row_bytes` are further bytes per row.
        """
        kernel, *parts = shader
        linked = link(kernel, parts, constants)
        bindings = linked.bindings()
        numbers = {binding.name: number for number, binding in bindings.items() if number}
        assert operands.keys() <= numbers.keys(), f"{linked.name} binds {sorted(numbers)}, given {sorted(operands)}"
        operands = {**operands, **{name: self._operand(node.op, name) for name in numbers if name not in operands}}
        weights = sum(operand.nbytes for operand in operands.values() if isinstance(operand, Slice))
        self.dispatches.append(
            UnplacedDispatch(
                name=_named(node.layer, name, kernel, parts),
                layer=node.layer,
                op=" +".join((node.op.kind, *node.op.fused)),
                linked=linked,
                bindings=bindings,
                operands={numbers[which]: operand for which, operand in operands.items()},
                groups=groups,
                fixed_bytes=weights if fixed_bytes is None else fixed_bytes,
                row_bytes=row_bytes + sum(o.row_bytes for o in operands.values() if isinstance(o, Value)),
                row_flops=row_flops,
                picked=node.picked,
                context_cost=context_cost,
                shared_bytes=shared_bytes,
            )
        )

    def emit_elements(
        self,
        node: Node,
        shader: Sequence[str],
        constants: Mapping[str, Constant],
        operands: Mapping[str, Operand] = NO_OPERANDS,
        *,
        count: int,
        name: str = "",
        fixed_bytes: int | None = None,
        row_bytes: int = 0,
    ) -> None:
        """Appends a dispatch with a lane for each of `count` elements, which are independent."""
        lanes = self.tuning.lanes.map_lanes
        self.emit(
            node, name, (*shader, "lib/lanes/plain"), {**constants, "WG": lanes}, operands,
            groups=-(-count // lanes), fixed_bytes=fixed_bytes, row_bytes=row_bytes,
        )  # fmt: skip

    def row_lanes(self, width: int, rows: int) -> int:
        """The number of lanes that reduce a row: fewer if not all rows can run at once, or if the rows are short."""
        lanes = self.tuning.lanes
        if lanes.reduce != "subgroup" or rows * lanes.row_lanes <= lanes.resident_lanes:
            return lanes.row_lanes
        fours = -(-width // 4)
        most = min(lanes.row_lanes, max(MIN_LANES, lanes.resident_lanes // rows))
        return min(most, -(-fours // -(-fours // most) // 32) * 32)

    def _operand(self, op: Any, binding: str) -> Operand:
        """The operand of a binding that is named like an input of the step, `state`, or a field of the op."""
        match binding:
            case "segments":
                return self.segments
            case "row_segment":
                return self.row_segment
            case "places":
                return self.places(op.cache)
            case "pages":
                return self.page_tables(op.cache)
            case "state":
                return self.memory.states[op.state.name]
        found = op.ys[0].root if binding == "y" and hasattr(op, "ys") else getattr(op, binding, None)
        assert isinstance(found, Value | Weight), f"{op.kind}: no operand for the binding {binding}"
        return self.vector(found) if isinstance(found, Weight) else found

    def vector(self, weight: Weight) -> Slice:
        """The binding of a float32 parameter that kernels read whole."""
        [shard] = self.weights[weight.name].shards
        return shard.slice

    def gain(self, norm: Rms | LayerNorm) -> Slice:
        """The weight of a norm that is fused into a product."""
        assert norm.weight is not None, "a norm without weight is a node of its own"
        return self.vector(norm.weight)

    def rms_norm(self, how: Rms | None) -> tuple[str, dict[str, Constant], dict[str, Operand]]:
        """The part that applies an optional RMS norm to rows of x while reading; its constants and operands."""
        if how is None:
            return "linear/prologue/no_norm", {}, {}
        return "linear/prologue/rms_norm", {"EPS": float(how.eps)}, {"gain": self.gain(how)}

    @property
    def segments(self) -> Value:
        """One `Segment` of `lib/step.wgsl` for each sequence of the step. [S, SEGMENT_WORDS]"""
        return self._correct("segments", self._segments, {})

    @property
    def _segments(self) -> Value:
        """The segments as the host gives them."""
        return self.graph.input("segments", np.uint32, (self.shape.max_segments, SEGMENT_WORDS))

    @property
    def row_segment(self) -> Value:
        """The segment of each row. [T]"""
        return self.graph.input("row_segment", np.uint32, (self.shape.rows,))

    def places(self, cache: Cache) -> Value:
        """The position of each row, and its place in a cache: the row counted over all pages. [T, 2]"""
        name = of_window("places", self.memory.caches.window_of(cache))
        given = self.graph.input(name, np.uint32, (self.shape.rows, 2))
        if not self.shape.follows:
            return given
        pages = self.page_tables(cache)
        operands = {"places": given, "row_segment": self.row_segment, "pages": pages}
        return self._correct("places", given, operands, {"PAGE": PAGE, "PAGES": pages.shape[1]})

    def draws(self, rows: int) -> Value:
        """The sampling parameters of each output row. [R, DRAW_WORDS]"""
        given = self.graph.input("draws", np.uint32, (rows, DRAW_WORDS))
        if not self.shape.follows:
            return given
        output_rows = self.graph.input("output_rows", np.uint32, (rows,))
        operands = {"draws": given, "row_segment": self.row_segment, "output_rows": output_rows}
        constants: dict[str, Constant] = {"WORDS": DRAW_WORDS, "NUMBER": WORD_OF["number"], "TOKENS": WORD_OF["tokens"]}
        return self._correct("draws", given, operands, constants, picked=True)

    def _correct(
        self,
        what: str,
        given: Value,
        operands: Mapping[str, Operand],
        constants: Mapping[str, Constant] = NO_CONSTANTS,
        *,
        picked: bool = False,
    ) -> Value:
        """An input of the step; if the step follows another, corrected before all other dispatches."""
        if not self.shape.follows:
            return given
        if given not in self._corrected:
            state = self.memory.sampler_state
            assert state is not None, "the device counts right drafts after it has sampled"
            y, rows = Value(given.shape, given.dtype), given.shape[0]
            operands = {"given": self._segments, "lengths": state.lengths, **operands, "y": y}
            self.emit_elements(
                Node(Correct(given, y), None, rows, picked),
                (f"sampling/known_{what}",),
                constants,
                operands,
                count=rows,
            )
            self._corrected[given], self.corrections[y] = y, self.dispatches.pop()
        return self._corrected[given]

    def page_tables(self, cache: Cache) -> Value:
        """The page table of each sequence for a cache. [S, max_pages]"""
        caches = self.memory.caches
        name = of_window("pages", caches.window_of(cache))
        return self.graph.input(name, np.uint32, (self.shape.max_segments, caches.max_pages))


def _named(layer: int | None, name: str, kernel: str, parts: Sequence[str]) -> str:
    """The display name of a dispatch: `blk.3/ffn_key gemv.q4_k`."""
    formats = [part.removeprefix("formats/") for part in parts if part.startswith("formats/")]
    shader = kernel.rpartition("/")[2] + (f".{formats[0]}" if formats else "")
    prefix = "" if layer is None else f"blk.{layer}/"
    return prefix + " ".join(filter(None, [_short(name), shader]))


def _short(name: str) -> str:
    """Shortens `blk.3.ffn_key.weight` to `ffn_key`; does so for each of several names joined by +."""
    return "+".join(re.sub(r"^(?:enc\.)?blk\.\d+\.", "", one).removesuffix(".weight") for one in name.split("+"))
