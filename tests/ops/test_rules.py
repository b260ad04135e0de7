"""Each rule fires on its example, but not if any of its conditions is false."""

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest

from rwkv_gpu.ops.graph import Node
from rwkv_gpu.ops.nodes import AdapterDown, Copy, Gemm
from rwkv_gpu.ops.nodes.epilogue import AddResidual, GatePairs, Scale
from rwkv_gpu.ops.nodes.prologue import NormRows
from rwkv_gpu.ops.passes import NAMES, PASSES, RULES
from rwkv_gpu.ops.passes.rule import Pair, Rule, pairs
from rwkv_gpu.ops.values import Value
from rwkv_gpu.ops.vocabulary import LayerNorm, Rms, Weight
from tests.cases import each
from tests.ops.pass_examples import EXAMPLES
from tests.ops.test_passes import traced

Break = Callable[[Pair[Any, Any]], Pair[Any, Any]]
RULE = {rule.name: rule for rule in RULES}
BIAS = Weight("gain", (64,))


def matched(rule: Rule[Any, Any]) -> Pair[Any, Any]:
    """Returns the first two nodes of its example that the rule would fuse."""
    recorder = traced(EXAMPLES[rule.name])
    graph, target = recorder.graph, recorder.target
    for one in PASSES[: NAMES.index(rule.name)]:
        one.run(graph, target)
    every = [pair for node in graph.nodes for pair in pairs(rule, graph, target, node)]
    return next(pair for pair in every if rule.refused_by(pair) is None)


def change(node: str, **fields: Any) -> Break:
    """Replaces fields of a node's op. A function gets the op."""

    def changed(pair: Pair[Any, Any]) -> Pair[Any, Any]:
        one: Node = getattr(pair, node)
        own = {name: value(one.op) if callable(value) else value for name, value in fields.items()}
        one.op = replace(one.op, **own)  # changes the node in place: the graph still finds its inputs
        return pair

    return changed


def maker(**fields: Any) -> Break:
    return change("before", **fields)


def reader(**fields: Any) -> Break:
    return change("node", **fields)


def gemm(node: str, rewrite: Callable[[Gemm], Gemm]) -> Break:
    """Replaces the product of a node."""

    def changed(pair: Pair[Any, Any]) -> Pair[Any, Any]:
        one: Node = getattr(pair, node)
        one.op = rewrite(one.op)
        return pair

    return changed


def shape(**fields: Any) -> Break:
    """Replaces the shape of the step."""

    def changed(pair: Pair[Any, Any]) -> Pair[Any, Any]:
        pair.graph.shape = replace(pair.graph.shape, **fields)
        return pair

    return changed


def can(**fields: Any) -> Break:
    """Replaces the device."""
    return lambda pair: replace(pair, target=replace(pair.target, can=replace(pair.target.can, **fields)))


def tuning(**fields: Any) -> Break:
    return lambda pair: replace(pair, target=replace(pair.target, tuning=pair.target.tuning.changed(**fields)))


def at(node: str, **fields: Any) -> Break:
    """Moves a node to another place."""

    def changed(pair: Pair[Any, Any]) -> Pair[Any, Any]:
        for name, value in fields.items():
            setattr(getattr(pair, node), name, value)
        return pair

    return changed


def read_by_another(pair: Pair[Any, Any]) -> Pair[Any, Any]:
    pair.graph.append(Copy(pair.value, Value(pair.value.shape)), layer=None, rows=pair.node.rows, picked=False)
    return pair


def made_an_output(pair: Pair[Any, Any]) -> Pair[Any, Any]:
    pair.graph.outputs = (*pair.graph.outputs, pair.value)
    return pair


def made_by_two(pair: Pair[Any, Any]) -> Pair[Any, Any]:
    part = Value(pair.value.shape, base=pair.value.root)
    pair.graph.append(Copy(Value(part.shape), part), layer=None, rows=pair.node.rows, picked=False)
    return pair


def state_read_in_between(pair: Pair[Any, Any]) -> Pair[Any, Any]:
    pair.graph.insert_before(pair.node, replace(pair.before.op, y=Value(pair.value.shape)))
    return pair


def first(**fields: Any) -> Callable[[Gemm], Gemm]:
    """Replaces the first matrix of a product."""
    return lambda op: replace(op, products=(replace(op.products[0], **fields), *op.products[1:]))


def wider(weight: Weight) -> Weight:
    return replace(weight, shape=(weight.shape[0], weight.shape[1] + 8))


class Split:
    """Splits weights in two bindings each."""

    def __init__(self, weights: Any) -> None:
        self.weights = weights

    def __getitem__(self, name: str) -> Any:
        return replace(self.weights[name], shards=self.weights[name].shards * 2)


def in_two_bindings(pair: Pair[Any, Any]) -> Pair[Any, Any]:
    weights: Any = Split(pair.target.weights)
    return replace(pair, target=replace(pair.target, weights=weights))


def with_adapters(pair: Pair[Any, Any]) -> Pair[Any, Any]:
    """Uses the same norm before A x of adapters."""
    x = pair.producer.y
    low = AdapterDown((x,), (BIAS,), Value((1, 8)), (Value((1, 8)),), Value((1, 4)), whole=True)
    return replace(pair, node=replace(pair.node, op=low))


def read_otherwise(pair: Pair[Any, Any]) -> Pair[Any, Any]:
    pair.graph.append(
        Copy(pair.consumer.out.value, Value(pair.value.shape)), layer=None, rows=pair.node.rows, picked=False
    )
    return pair


def merging_behind(pair: Pair[Any, Any]) -> Pair[Any, Any]:
    pair.graph.insert_before(pair.node, replace(pair.producer, products=(), merges=True))
    return pair


LAYER = LayerNorm(Weight("gain", (64,)), Weight("gain", (64,)), 1e-5)
# Changes of a rule's example that break each of its conditions; the first applies to all rules with that condition.
COMMON = {
    "nothing else reads it": read_by_another,
    "it is not an output": made_an_output,
    "steps have one row": shape(rows=2),
    "every sequence has one row": shape(rows=3, decode=False),
    "both have the same rows": at("before", picked=True),
    "both are in the same layer": at("before", layer=77),
    "no node between them touches the state": state_read_in_between,
    "one node writes all of it": made_by_two,
}
BROKEN: dict[str, dict[str, Break]] = {
    "norm_into_embedding": {
        "it embeds tokens, not positions": maker(ids=None),
        "one binding holds its matrix": lambda pair: replace(
            pair, target=replace(pair.target, weights=Split(pair.target.weights))
        ),
        "it is a layer norm": reader(how=Rms(None, 1e-5)),
    },
    "norm_into_products": {
        "the norm adds no residual": maker(add=Value((1, 64))),
        "the product reads normed values only": gemm("node", first(x=Value((1, 64)))),
        "the product has no prologue yet": gemm("node", lambda op: op.plus(NormRows(Rms(None, 1e-6)))),
        "the row is whole chunks": maker(x=Value((1, 65))),
        "only products read a layer norm": lambda pair: maker(how=LAYER)(with_adapters(pair)),
        "a layer norm has a bias": maker(how=replace(LAYER, bias=None)),
        "a layer norm has one row": lambda pair: maker(how=LAYER)(shape(rows=2)(pair)),
        "the device is faster with a fused layer norm": lambda pair: maker(how=LAYER)(
            tuning(fuses_token_shift=False)(pair)
        ),
        "a layer norm is not read by gated pairs": lambda pair: maker(how=LAYER)(
            gemm("node", lambda op: op.plus(GatePairs()))(pair)
        ),
        "the kernel sees whole rows": lambda pair: maker(how=LAYER)(can(max_workgroup_memory=64)(pair)),
    },
    "scale_into_norm": {
        "it is a scale": reader(f="silu"),
        "it is an RMS norm": maker(how=LAYER),
    },
    "scale_into_product": {
        "each number has its own factor": reader(by=Value((1, 1))),
        "it has one matrix": gemm("before", lambda op: replace(op, products=op.products * 2)),
        "it has no bias": gemm("before", first(bias=BIAS)),
        "it has no other stage": gemm("before", lambda op: op.plus(GatePairs())),
    },
    "gate_into_attention": {
        "every sequence has one row": shape(decode=False),
        "it has no gate yet": maker(gate=Value((1, 64))),
        "the device binds a gate": can(max_storage_buffers=11),
    },
    "gate_into_expert_sum": {
        "the gate is one number per row": maker(by=Value((1, 2))),
        "the producer adds a residual": maker(add=None),
        "the sum has no gate yet": reader(gate=Value((1, 1))),
        "the experts have no bias": reader(bias=BIAS),
        "the device binds a gate": can(max_storage_buffers=8),
    },
    "write_into_stack": {},
    "convolution_into_recurrence": {
        "it has no convolution yet": reader(conv=lambda op: op),
        "it has taps": maker(weight=None),
        "it ends with silu": maker(then="none"),
        "it convolves the input of the kernel": maker(first=4),
        "the device binds the taps": can(max_storage_buffers=8),
    },
    "convolution_into_product": {
        "the device is faster with this fusion": tuning(fuses_token_shift=False),
        "it has gates, and neither bias nor activation": maker(then="silu"),
        "it is over all columns, in whole chunks": maker(first=4),
        "the product has one matrix and no norm": gemm("node", lambda op: op.plus(GatePairs())),
        "the kernel sees whole rows": can(max_storage_buffers=4),
    },
    "quantise_in_producer": {
        "no norm is in between": reader(norm=Rms(None, 1e-5)),
        "the producer can": can(max_storage_buffers=8),
        "it can write these numbers": lambda pair: maker(ys=(Value((20, 32)),))(
            reader(out=lambda op: replace(op.out, size=0))(pair)
        ),
        "it writes each x as a whole": reader(widths=((0, 32),)),
    },
    "round_in_producer": {
        "it is float16": reader(out=lambda op: replace(op.out, size=2)),
        "it is one complete x": reader(widths=((0, 64), (64, 64))),
        "it is not a part of a stack": lambda pair: replace(
            pair, value=Value(pair.value.shape, base=pair.value, offset=256)
        ),
        "all readers accept rows in a unit": read_otherwise,
        "the producer can": gemm("before", lambda op: replace(op, merges=True)),
    },
    "join_columns": {
        "the first only adds to a residual": gemm("before", first(then="silu")),
        "the second only adds to a residual": gemm("node", first(then="silu")),
        "the first has no bias": gemm("before", first(bias=BIAS)),
        "both have the same scale": gemm("node", lambda op: op.plus(Scale(2.0))),
        "nothing shares the dispatch of the first": merging_behind,
        "columns are whole chunks": lambda pair: gemm("before", first(weight=wider(pair.producer.products[0].weight)))(
            pair
        ),
        "one binding holds both, in one format": can(max_binding=64),
        "the kernel supports columns of two matrices": can(max_storage_buffers=4),
    },
    "runs_into_heads": {
        "attention still reduces its runs": maker(leaves_runs=True),
        "attention has no sinks": maker(how=lambda op: replace(op.how, sinks=BIAS)),
        "it reads all heads": reader(x=Value((1, 8))),
        "the kernel gathers the row of a head": reader(
            weight=lambda op: replace(op.weight, shape=(2, 8, 1 << 14)), x=Value((1, 2 << 14))
        ),
    },
}
# The conditions of a rule that break as COMMON says.
ALONE = {"nothing else reads it", "it is not an output"}
SHARED: dict[str, set[str]] = {
    "write_into_stack": ALONE,
    "convolution_into_recurrence": ALONE | {"every sequence has one row", "no node between them touches the state"},
    "convolution_into_product": ALONE | {"steps have one row", "no node between them touches the state"},
    "join_columns": ALONE | {"steps have one row", "both are in the same layer", "both have the same rows"},
    "runs_into_heads": ALONE | {"steps have one row"},
    "norm_into_embedding": ALONE,
    "norm_into_products": set(),
    "quantise_in_producer": {"one node writes all of it"},
    "round_in_producer": {"one node writes all of it"},
    "scale_into_norm": ALONE,
    "scale_into_product": ALONE | {"both have the same rows"},
    "gate_into_attention": ALONE,
    "gate_into_expert_sum": ALONE,
}
# Conditions that imply others: a producer that cannot write numbers breaks the conditions on how it writes them, too.
IMPLIED = {
    ("join_columns", "columns are whole chunks"): {"the kernel supports columns of two matrices"},
    ("quantise_in_producer", "the producer can"): {"it can write these numbers", "it writes each x as a whole"},
    ("quantise_in_producer", "it can write these numbers"): {"it writes each x as a whole"},
    ("norm_into_products", "only products read a layer norm"): {"a layer norm is not read by gated pairs"},
}
CASES = [(rule.name, condition) for rule in RULES for condition in rule.conditions]


@pytest.mark.parametrize("name", RULE)
def test_a_rule_fires_on_its_example(name):
    rule = RULE[name]
    pair = matched(rule)
    assert rule.run(pair.graph, pair.target) > 0


@each(("name", "condition"), CASES)
def test_a_rule_does_not_fire_where_one_condition_alone_is_not_met(name, condition):
    rule, broken = RULE[name], BROKEN[name].get(condition) or COMMON[condition]
    pair = broken(matched(rule))
    assert rule.refused_by(pair) == condition
    implied = IMPLIED.get((name, condition), set())
    assert all(holds(pair) for other, holds in rule.conditions.items() if other not in implied | {condition})


def test_every_condition_of_every_rule_has_a_case_here():
    assert BROKEN.keys() == RULE.keys() == SHARED.keys()
    for name, rule in RULE.items():
        assert rule.conditions.keys() == BROKEN[name].keys() | SHARED[name], name
        assert SHARED[name].isdisjoint(BROKEN[name]), name


# Predicates of several parts, each of which is broken alone.
PARTS: dict[tuple[str, str], dict[str, Break]] = {
    ("convolution_into_product", "it has gates, and neither bias nor activation"): {
        "no gates": maker(gated=False),
        "no taps": maker(weight=None),
        "a bias": maker(bias=BIAS),
        "an activation": maker(then="silu"),
    },
    ("convolution_into_product", "it is over all columns, in whole chunks"): {
        "not from the first column": maker(first=4),
        "half a chunk": maker(state=lambda op: replace(op.state, shape=(op.state.shape[0], 48))),
    },
    ("convolution_into_product", "the product has one matrix and no norm"): {
        "two matrices": gemm("node", lambda op: replace(op, products=op.products * 2)),
        "a prologue": gemm("node", lambda op: op.plus(NormRows(Rms(None, 1e-6)))),
    },
    ("convolution_into_recurrence", "it convolves the input of the kernel"): {
        "not from the first column": maker(first=4),
        "of other columns": maker(x=Value((1, 8))),
        "a bias": maker(bias=BIAS),
    },
    ("join_columns", "the first only adds to a residual"): {
        "two matrices": gemm("before", lambda op: replace(op, products=op.products * 2)),
        "a shared dispatch": gemm("before", lambda op: replace(op, merges=True)),
        "a prologue": gemm("before", lambda op: op.plus(NormRows(Rms(None, 1e-6)))),
        "no residual": gemm("before", lambda op: op.minus(AddResidual)),
    },
    ("join_columns", "both have the same scale"): {
        "of the product": gemm("node", lambda op: op.plus(Scale(2.0))),
        "of the weight": gemm("node", lambda op: first(weight=replace(op.products[0].weight, scale=2.0))(op)),
    },
}


def test_a_condition_of_several_parts_is_not_met_where_one_part_is_not():
    for (name, condition), breaks in PARTS.items():
        for what, broken in breaks.items():
            assert not RULE[name].conditions[condition](broken(matched(RULE[name]))), (name, what)


def test_a_rule_has_conditions():
    assert all(rule.conditions and rule.doc for rule in RULES)
