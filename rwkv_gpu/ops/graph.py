"""The ops of one step as a graph: nodes in the order of the model, each with its reads and writes.

A model's calls append nodes, passes rewrite them, lowering turns each into dispatches. Only the reads and writes of a
node (values, states and caches) decide what may be fused or moved. This module knows no shader.
"""

import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy.typing as npt

from .values import Quantised, Value
from .vocabulary import Cache, Routing, State

Resource = Value | State | Cache


@dataclass(frozen=True)
class Op:
    """The operation of a node. Fields hold its inputs and results; subclasses override properties where needed."""

    makes: ClassVar[tuple[str, ...]] = ("y", "ys")  # names of the fields that hold results
    # Fields that passes fill in, with a display name for each. `quantises`: y as integers or float16, for its reader.
    fuses: ClassVar[Mapping[str, str]] = {"quantises": "quantise"}
    state_inputs: ClassVar[tuple[str, ...]] = ()  # names of the fields whose states or caches it reads
    state_outputs: ClassVar[tuple[str, ...]] = ()  # names of the fields whose states or caches it replaces
    named_by: ClassVar[str] = "weight"  # the field that `label` shows: a weight or several, an op, or a text

    @property
    def reads(self) -> tuple[Value, ...]:
        """The input values: all values in its fields except the results."""
        return values_in(one for name, one in vars(self).items() if name not in self.makes)

    @property
    def writes(self) -> tuple[Value, ...]:
        """The results. No two nodes write the same value."""
        quantised: Quantised | None = getattr(self, "quantises", None)
        made = values_in(one for name, one in vars(self).items() if name in self.makes)
        return (*made, quantised.value) if quantised else made

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        """The states and caches that it reads."""
        return tuple(getattr(self, name) for name in self.state_inputs)

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        """The states and caches that it replaces."""
        return tuple(getattr(self, name) for name in self.state_outputs)

    @property
    def label(self) -> str:
        """Names of its parameters, for display."""
        return " ".join(_names(getattr(self, self.named_by, None)))

    @property
    def fused(self) -> tuple[str, ...]:
        """Names of the work that passes have fused into it, for display."""
        return tuple(name for field, name in self.fuses.items() if getattr(self, field, None))

    @property
    def kind(self) -> str:
        """The class name in snake case: `token_shift`."""
        return re.sub(r"(?<!^)(?=[A-Z])", "_", type(self).__name__).lower()


def values_in(found: Iterable[Any]) -> tuple[Value, ...]:
    """The values among some objects, including those inside tuples and routings."""
    every = itertools.chain.from_iterable(map(_parts, found))
    return tuple(one for one in every if isinstance(one, Value))


def _parts(one: Any) -> tuple[Any, ...]:
    if isinstance(one, Routing):
        return one.experts, one.shares
    return one if isinstance(one, tuple) else (one,)


def _names(named: Any) -> Iterator[str]:
    """The names in the field that labels an op."""
    if isinstance(named, tuple):
        for one in named:
            yield from _names(one)
    elif isinstance(named, str):
        yield named
    elif named is not None:
        yield named.label if isinstance(named, Op) else named.name


class ReplacesState(Op):
    """Base of ops that read their `state` and replace it."""

    state: State
    state_inputs = state_outputs = ("state",)


@dataclass(eq=False)
class Node:
    """An op at its place in the graph. Passes replace the op through `Graph.replace`."""

    op: Op
    layer: int | None  # number of its layer; None outside all layers
    rows: int  # all rows of the step, or only the picked ones
    picked: bool  # whether it runs over the picked rows only
    order: float = 0.0  # nodes run in ascending order


@dataclass(frozen=True)
class StepShape:
    """The step that a graph is recorded for."""

    rows: int  # maximum
    decode: bool  # whether every sequence has one row
    max_segments: int  # maximum number of sequences
    max_outputs: int  # maximum number of picked rows
    shared_pages: bool = False  # whether rows may attend to keys that other rows of the step write
    follows: bool = False  # whether the device corrects positions by the right drafts of the step before

    @property
    def one_row(self) -> bool:
        """True if the step has a single row."""
        return self.rows == 1

    @property
    def row_each(self) -> bool:
        """True if every sequence has one row."""
        return self.decode or self.one_row


class Graph:
    """Nodes in order, indexed by what they read and write."""

    def __init__(self, shape: StepShape) -> None:
        self.shape = shape
        self.nodes: list[Node] = []
        self.inputs: dict[str, Value] = {}
        self.outputs: tuple[Value, ...] = ()
        self.names: dict[Value, str] = {}  # assigned by `text`
        self._readers: dict[Resource, set[Node]] = {}
        self._writers: dict[Resource, set[Node]] = {}

    def input(self, name: str, dtype: npt.DTypeLike, shape: tuple[int, ...]) -> Value:
        """Returns the input of that name, a tensor that every step uploads. Creates it on the first call."""
        return self.inputs.setdefault(name, Value(shape, dtype, name))

    def append(self, op: Op, *, layer: int | None, rows: int, picked: bool) -> None:
        """Appends the next op of the model."""
        order = self.nodes[-1].order + 1 if self.nodes else 0.0
        self._add(Node(op, layer, rows, picked, order), len(self.nodes))

    def insert_before(self, node: Node, op: Op) -> Node:
        """Inserts an op that runs just before a node, over the same rows."""
        at = self.nodes.index(node)
        before = self.nodes[at - 1].order if at else node.order - 1
        new = Node(op, node.layer, node.rows, node.picked, (before + node.order) / 2)
        self._add(new, at)
        return new

    def replace(self, node: Node, op: Op) -> None:
        """Replaces the op of a node."""
        self._forget(node)
        node.op = op
        self._index(node)

    def remove(self, node: Node) -> None:
        """Removes a node whose work other nodes have taken over."""
        self.nodes.remove(node)
        self._forget(node)

    def readers(self, resource: Resource) -> list[Node]:
        """The nodes that read a state or a value, in order. Parts of a stack count as the whole stack."""
        return _ordered(self._readers.get(_whole(resource), ()))

    def writers(self, resource: Resource) -> list[Node]:
        """The nodes that write a state or a value, in order. Parts of a stack count as the whole stack."""
        return _ordered(self._writers.get(_whole(resource), ()))

    def writer(self, value: Value) -> Node | None:
        """The node that writes a value; None for an input of the step."""
        return next((node for node in self._writers.get(value.root, ()) if value in node.op.writes), None)

    def is_output(self, value: Value) -> bool:
        """True if a value, or another part of its stack, is read after the step."""
        return any(output.root is value.root for output in self.outputs)

    def between(self, first: Node, last: Node) -> Iterator[Node]:
        """The nodes after `first` and before `last`."""
        start = self.nodes.index(first) + 1
        return itertools.takewhile(lambda node: node is not last, self.nodes[start:])

    def move_before(self, node: Node, other: Node) -> None:
        """Moves a node to just before another."""
        self.nodes.remove(node)
        at = self.nodes.index(other)
        before = self.nodes[at - 1].order if at else other.order - 2
        node.order = (before + other.order) / 2
        self.nodes.insert(at, node)

    def touches(self, node: Node, state: State | Cache) -> bool:
        """True if a node reads or replaces a state."""
        return state in node.op.states_read or state in node.op.states_written

    def text(self, parameters: bool = True) -> str:
        """One line per node, for display: `blk.0  %3, %4 = token_shift(%1)  state shift_time`."""
        return "".join(f"{_line(node, self, parameters)}\n" for node in self.nodes)

    def name(self, value: Value) -> str:
        """The display name of a value: its own name, or a number assigned on first use."""
        return value.name or self.names.setdefault(value, f"%{len(self.names)}")

    def _add(self, node: Node, at: int) -> None:
        self.nodes.insert(at, node)
        self._index(node)

    def _index(self, node: Node) -> None:
        for index, resources in self._touched(node):
            for resource in resources:
                index.setdefault(resource, set()).add(node)

    def _forget(self, node: Node) -> None:
        for index, resources in self._touched(node):
            for resource in resources:
                index[resource].discard(node)

    def _touched(self, node: Node) -> Iterator[tuple[dict[Resource, set[Node]], set[Resource]]]:
        op = node.op
        yield self._readers, {*(value.root for value in op.reads), *op.states_read}
        yield self._writers, {*(value.root for value in op.writes), *op.states_written}


def _ordered(nodes: Iterable[Node]) -> list[Node]:
    return sorted(nodes, key=lambda node: node.order)


def _whole(resource: Resource) -> Resource:
    return resource.root if isinstance(resource, Value) else resource


def _line(node: Node, graph: Graph, parameters: bool) -> str:
    op = node.op
    where = "" if node.layer is None else f"blk.{node.layer}  "
    reads = ", ".join(map(graph.name, op.reads))
    writes = ", ".join(map(graph.name, op.writes))
    line = f"{where}{writes} = {op.kind}({reads})"
    own = f"^(?:enc\\.)?blk\\.{node.layer}\\."
    if parameters and op.label:
        line += f"  [{' '.join(re.sub(own, '', part).removesuffix('.weight') for part in op.label.split())}]"
    if op.states_read or op.states_written:
        read, written = ({re.sub(own, "", s.name) for s in some} for some in (op.states_read, op.states_written))
        how = {
            name: "reads" if name not in written else "writes" if name not in read else "state"
            for name in read | written
        }
        line += "".join(f"  {how[name]} {name}" for name in sorted(how))
    return line + "".join(f"  +{one}" for one in op.fused)
