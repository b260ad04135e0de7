"""Splits a model into parts before anything is loaded.

`cut` calls the model's functions with shapes only and records the ops that they call. A call belongs to the part of its
layer. The reads and writes of the calls determine which values cross from one part to another, and which weights,
states and caches each part needs.
"""

import contextlib
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, cast

import numpy as np
import numpy.typing as npt

from ..gpu.weights import Weights
from .graph import StepShape
from .parts import Call, Interpreter, Part, SharedValue, SplittableModel, flat
from .tracer import Tracer
from .values import Value
from .vocabulary import Cache, Routing, State, Weight, found

ROWS = 2  # rows of the trace: with a single row, `pick` would return its input


@dataclass(frozen=True)
class TracedCall:
    """A recorded call with the values that it uses."""

    part: int
    arguments: Any
    result: Any
    uses: frozenset[State | Cache]
    writes: frozenset[State | Cache]


class Shapes(Tracer):
    """A tracer that computes only the shapes of results; it needs no weights."""

    def __init__(self) -> None:
        shape = StepShape(ROWS, decode=False, max_segments=ROWS, max_outputs=ROWS)
        super().__init__(cast(Weights, None), shape)

    def _groups(self, xs: Sequence[Value], weights: Sequence[Weight]) -> list[list[int]]:
        del weights  # the grouping into dispatches does not affect shapes
        return [list(range(len(xs)))]

    def _fetch(self, routing: Routing[Value], weight: Weight) -> Routing[Value]:
        del weight  # expert caches depend on the device
        return routing


class Trace:
    """A vocabulary that computes shapes only, and records the calls of a model function.

    `starts`: first layers of the parts.
    """

    def __init__(self, starts: Sequence[int]) -> None:
        self._shapes = Shapes()
        self._starts = starts
        self._part = 0
        self.layers = 0
        self.calls: list[TracedCall] = []
        self.ids = self._shapes.input("ids", np.uint32, (ROWS,))

    def input(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Value:
        """A tensor that every part has from the start. [T, *shape]"""
        return self._shapes.input(name, dtype, (ROWS, *shape))

    @contextlib.contextmanager
    def layer(self, index: int) -> Iterator[None]:
        """Enters a layer. Ops before the first layer belong to the first part, those after the last to the last."""
        self._part = max(self._part, sum(start <= index for start in self._starts) - 1)
        self.layers = max(self.layers, index + 1)
        with self._shapes.layer(index):
            yield

    def __getattr__(self, name: str) -> Any:
        return partial(self._call, getattr(self._shapes, name))

    def _call(self, op: Callable[..., Any], *args: Any, **options: Any) -> Any:
        nodes = self._shapes.graph.nodes
        before = len(nodes)
        result = op(*args, **options)
        ops = [node.op for node in nodes[before:]]
        writes = frozenset[State | Cache]().union(*(one.states_written for one in ops))
        uses = writes.union(*(one.states_read for one in ops))
        self.calls.append(TracedCall(self._part, (args, options), result, uses, writes))
        return result


def traced(model: SplittableModel, function: str, starts: Sequence[int], adapted: Interpreter) -> Trace:
    """Records the calls of a function of a model."""
    trace = Trace(starts)
    getattr(model, function)(adapted(trace), trace.ids)
    return trace


def layers_of(model: SplittableModel) -> int:
    """The number of layers of a model."""
    return traced(model, "forward", [0], lambda g: g).layers


def cut(model: SplittableModel, starts: Sequence[int], adapted: Interpreter = lambda g: g) -> list[Part]:
    """Splits a model into parts with first layers `starts`, the first of which is 0. `adapted` as in `Part.run`.

    Each part that uses a state or cache has its own copy: a call that writes it runs in all of these parts.
    So a layer can read the keys and values of a layer in another part.
    """
    trace, hidden = (traced(model, function, starts, adapted) for function in ("forward", "hidden"))
    bounds = [*starts, trace.layers]
    assert starts[0] == 0, "the first part begins with the first layer"
    assert all(a < b for a, b in itertools.pairwise(bounds)), "every part has a layer"
    calls, arrives = _crossing(trace.calls, len(starts))
    every = {"forward": calls, "hidden": _crossing(hidden.calls, len(starts))[0]}
    crossings = {crossing.name: crossing for part in arrives for crossing in part}
    parts = []
    for number in range(len(starts)):
        own = [one for one, call in zip(trace.calls, calls, strict=True) if number in call.parts]
        used = frozenset(weight.name for one in own for weight in found(one.arguments, Weight))
        kept = frozenset[State | Cache]().union(*(one.uses for one in own))
        parts.append(
            Part(
                number,
                range(bounds[number], bounds[number + 1]),
                number == len(starts) - 1,
                model,
                weights=tuple(weight for weight in model.weights if weight.name in used),
                states=tuple(state for state in model.states if state in kept),
                caches=tuple(cache for cache in model.caches if cache in kept),
                used=used,
                arrives=tuple(arrives[number]),
                leaves=tuple(one for one in crossings.values() if one.source == number),
                calls=every,
            )
        )
    return parts


def _crossing(traced: Sequence[TracedCall], parts: int) -> tuple[list[Call], list[list[SharedValue]]]:
    """The calls with their crossings, and the crossings that arrive at each part."""
    users: dict[State | Cache, set[int]] = {}
    for one in traced:
        for resource in one.uses:
            users.setdefault(resource, set()).add(one.part)
    runs = [frozenset({one.part}).union(*(users[resource] for resource in one.writes)) for one in traced]
    made: dict[int, tuple[int, int]] = {}  # by id of a value: the call that returns it, and its index in the result
    for index, one in enumerate(traced):
        for at, value in enumerate(flat(one.result)):
            made.setdefault(id(value), (index, at))
    reads: list[dict[int, SharedValue]] = [{} for _ in traced]
    leaves: list[dict[int, SharedValue]] = [{} for _ in traced]
    arrives: list[dict[int, SharedValue]] = [{} for _ in range(parts)]
    names = (f"crossing.{number}" for number in itertools.count())
    for index, one in enumerate(traced):
        for value in found(one.arguments, Value):
            source, at = made.get(id(value), (index, 0))
            readers = runs[index] - runs[source]
            if not readers:
                continue
            crossing = leaves[source].get(at)
            if crossing is None:
                crossing = SharedValue(next(names), value.shape[1:], value.dtype, min(runs[source]))
            leaves[source][at] = reads[index][id(value)] = crossing
            for part in readers:
                arrives[part][id(value)] = crossing
    calls = [
        Call(where, one.result, read, tuple(left.items()))
        for one, where, read, left in zip(traced, runs, reads, leaves, strict=True)
    ]
    return calls, [list(part.values()) for part in arrives]
