"""Rules that fuse the producer of a value with a consumer, and `fuse`, which applies a rule to a graph.

A rule names the kinds of both ops, its conditions, and one rewrite. Every condition is a named predicate, so that tests
can check each one with a graph that violates it alone.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar, cast

from ..graph import Graph, Node, Op
from ..target import Target
from ..values import Value

Producer = TypeVar("Producer", bound=Op)
Consumer = TypeVar("Consumer", bound=Op)
Kinds = type[Any] | tuple[type[Any], ...]


@dataclass(frozen=True)
class Pair(Generic[Producer, Consumer]):
    """Two nodes that a rule may fuse."""

    graph: Graph
    target: Target
    before: Node  # the producer
    node: Node  # the consumer
    value: Value

    @property
    def producer(self) -> Producer:
        """The op that writes the value."""
        return cast(Producer, self.before.op)

    @property
    def consumer(self) -> Consumer:
        """The op that reads the value."""
        return cast(Consumer, self.node.op)

    def into_consumer(self, op: Op) -> None:
        """Replaces both nodes by one op at the place of the consumer."""
        self.graph.remove(self.before)
        self.graph.replace(self.node, op)

    def into_producer(self, op: Op) -> None:
        """Replaces both nodes by one op at the place of the producer."""
        self.graph.remove(self.node)
        self.graph.replace(self.before, op)


Condition = Callable[[Pair[Any, Any]], bool]


@dataclass(frozen=True)
class Rule(Generic[Producer, Consumer]):
    """A fusion of two nodes that applies if all conditions are met."""

    name: str
    doc: str  # description, with the graph before and after
    producer: Kinds
    consumer: Kinds
    reads: Callable[[Any], Iterable[Value | None]]  # candidate values to fuse over, given the consumer
    conditions: Mapping[str, Callable[[Pair[Producer, Consumer]], bool]]  # by description
    rewrite: Callable[[Pair[Producer, Consumer]], None]

    def run(self, graph: Graph, target: Target) -> int:
        """Applies the rule to a graph. Returns the number of rewrites."""
        return fuse(self, graph, target)

    def refused_by(self, pair: Pair[Producer, Consumer]) -> str | None:
        """The first condition that a pair violates; None if it meets all."""
        return next((name for name, holds in self.conditions.items() if not holds(pair)), None)


def fuse(rule: Rule[Any, Any], graph: Graph, target: Target) -> int:
    """Applies a rule to every consumer in order, at most once each. Returns the number of rewrites."""
    fired = 0
    for node in list(graph.nodes):
        for pair in pairs(rule, graph, target, node):
            if rule.refused_by(pair) is None:
                rule.rewrite(pair)
                fired += 1
                break
    return fired


def pairs(rule: Rule[Any, Any], graph: Graph, target: Target, node: Node) -> list[Pair[Any, Any]]:
    """The pairs of a consumer and a producer that a rule may fuse."""
    if not isinstance(node.op, rule.consumer):
        return []
    found = ((value, _maker(graph, value)) for value in rule.reads(node.op) if value is not None)
    return [Pair(graph, target, one, node, value) for value, one in found if one and isinstance(one.op, rule.producer)]


def _maker(graph: Graph, value: Value) -> Node | None:
    """The node that writes a value, or all parts of it."""
    makers = graph.writers(value)
    return makers[0] if len(makers) == 1 else graph.writer(value)


def only_reader(pair: Pair[Any, Any]) -> bool:
    """True if the consumer is the only reader of the value and of other parts of its stack."""
    return pair.graph.readers(pair.value) == [pair.node]


def no_output(pair: Pair[Any, Any]) -> bool:
    """True if the value is not an output of the step."""
    return not pair.graph.is_output(pair.value)


ALONE: dict[str, Condition] = {"nothing else reads it": only_reader, "it is not an output": no_output}
