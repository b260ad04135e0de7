"""Every pass on changed examples: all values are computed before they are read, and conditions prevent wrong fusions.

Changes are generated from what a pass does to its example: each value that it removes gets another reader or becomes an
output, and at each place of the graph another node reads or replaces each state.
"""

from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

import pytest

from rwkv_gpu.gpu.plan import Slice
from rwkv_gpu.ops.graph import Graph, Node, Op
from rwkv_gpu.ops.lowering import lower
from rwkv_gpu.ops.moe import LOGITS_OF_A_LANE, products_config
from rwkv_gpu.ops.nodes import Copy, ExpertProducts, Gemm, Norm, Quantise, Route
from rwkv_gpu.ops.nodes.prologue import NormRows
from rwkv_gpu.ops.passes import NAMES, PASSES, RULES
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.values import Value
from rwkv_gpu.ops.vocabulary import Cache, Rms, State, Weight
from tests.ops.pass_examples import BRANCHES, EXAMPLES
from tests.ops.test_passes import traced


def ready(name: str) -> Recorder:
    """Returns the example of a pass, rewritten by the earlier passes."""
    recorder = traced(EXAMPLES[name])
    for one in PASSES[: NAMES.index(name)]:
        one.run(recorder.graph, recorder.target)
    return recorder


def run(name: str, recorder: Recorder) -> int:
    return PASSES[NAMES.index(name)].run(recorder.graph, recorder.target)


def made(graph: Graph) -> list[Value]:
    return [value for node in graph.nodes for value in node.op.writes]


def check_sound(graph: Graph) -> None:
    """Checks that each value is written before a node reads it, and that each output is written."""
    written = {value.root for value in graph.inputs.values()}
    roots = {value.root for value in made(graph)} | written
    assert [node.order for node in graph.nodes] == sorted(node.order for node in graph.nodes)
    for node in graph.nodes:
        for value in node.op.reads:
            assert value.root in written, f"{graph.name(value)} is read by {node.op.kind} before it is written"
        written |= {value.root for value in node.op.writes}
    for output in graph.outputs:
        assert output.root in roots, f"the output {graph.name(output)} is lost"


def vanishing(name: str) -> list[int]:
    """Returns the indices, among all values, of those that a pass removes. Rows of integers are never outputs."""
    recorder = ready(name)
    before = made(recorder.graph)
    rounded = {value for node in recorder.graph.nodes if isinstance(node.op, Quantise) for value in node.op.writes}
    run(name, recorder)
    after = {id(value) for value in made(recorder.graph)}
    return [at for at, value in enumerate(before) if id(value) not in after and value not in rounded]


@pytest.mark.parametrize("name", NAMES)
def test_a_value_with_another_reader_is_still_computed(name):
    for at in vanishing(name):
        recorder = ready(name)
        graph, value = recorder.graph, made(recorder.graph)[at]
        writer = next(node for node in graph.nodes if value in node.op.writes)
        graph.append(Copy(value, Value(value.shape)), layer=writer.layer, rows=writer.rows, picked=writer.picked)
        run(name, recorder)
        check_sound(graph)
        assert value.root in {one.root for one in made(graph)}, graph.text()


@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_is_an_output_is_still_computed(name):
    for at in vanishing(name):
        recorder = ready(name)
        graph, value = recorder.graph, made(recorder.graph)[at]
        graph.outputs = (*graph.outputs, value)
        run(name, recorder)
        check_sound(graph)
        assert value in made(graph), graph.text()


@dataclass(frozen=True)
class Touches(Op):
    """A node that reads a state and replaces it, or only reads it."""

    state: State
    y: Value
    writes_it: bool

    @property
    def states_read(self) -> tuple[State | Cache, ...]:
        return (self.state,)

    @property
    def states_written(self) -> tuple[State | Cache, ...]:
        return (self.state,) if self.writes_it else ()


def states_of(graph: Graph) -> list[State]:
    every = (state for node in graph.nodes for state in (*node.op.states_read, *node.op.states_written))
    return [state for state in dict.fromkeys(every) if isinstance(state, State)]


def order_of_accesses(graph: Graph, state: State, stranger: Node) -> tuple[int, int, int, int]:
    """Counts the nodes that access a state before another node, and after it."""
    at = graph.nodes.index(stranger)
    before, after = graph.nodes[:at], graph.nodes[at + 1 :]
    return (
        sum(state in node.op.states_read for node in before) > 0,
        sum(state in node.op.states_written for node in before),
        sum(state in node.op.states_read for node in after) > 0,
        sum(state in node.op.states_written for node in after),
    )


@pytest.mark.parametrize("name", NAMES)
def test_a_state_is_read_and_replaced_in_the_same_order_around_any_other_node(name):
    shape = ready(name).graph
    for which, state in enumerate(states_of(shape)):
        for at in range(len(shape.nodes)):
            for writes in (False, True):
                graph = (recorder := ready(name)).graph
                state = states_of(graph)[which]
                stranger = graph.insert_before(graph.nodes[at], Touches(state, Value((1, 1)), writes))
                before = order_of_accesses(graph, state, stranger)
                run(name, recorder)
                check_sound(graph)
                assert order_of_accesses(graph, state, stranger) == before, (at, writes, graph.text())


# ------------------------------------------------------------ what two nodes must share to be computed once

OTHERS: dict[str, Any] = {
    "x": Value((70, 64)), "how": Rms(Weight("short", (64,)), 1e-5), "add": Value((70, 64)), "scale": 2.0, "after": 3.0,
}  # fmt: skip
WRITTEN_LATER = {"quantises", "next_norm"}  # by passes after this one


def second_norm(recorder: Recorder) -> Node:
    return [node for node in recorder.graph.nodes if isinstance(node.op, Norm)][1]


def test_two_norms_are_merged_only_if_they_agree_in_every_field():
    assert OTHERS.keys() | WRITTEN_LATER | {"y"} == {field.name for field in fields(Norm)}
    assert run("share_norms", ready("share_norms")) == 1
    for name, value in OTHERS.items():
        recorder = ready("share_norms")
        node = second_norm(recorder)
        recorder.graph.replace(node, replace(node.op, **{name: value}))
        assert run("share_norms", recorder) == 0, name


def test_two_norms_are_merged_only_over_the_same_rows_and_for_readers_that_can_read_either():
    recorder = ready("share_norms")
    second_norm(recorder).picked = True
    assert run("share_norms", recorder) == 0
    recorder = ready("share_norms")
    node = second_norm(recorder)
    [y] = node.op.writes
    recorder.graph.append(Copy(y, Value(y.shape)), layer=None, rows=node.rows, picked=False)
    assert run("share_norms", recorder) == 0


def test_rows_are_quantised_once_only_if_products_need_the_same_rows():
    """The second product differs in x, in the norm, or in the integer size."""
    assert run("quantise_once", ready("quantise_once")) == 1

    def prefixed(op: Gemm) -> Gemm:
        return op.plus(NormRows(Rms(Weight("gain", (64,)), 1e-5)))

    def other_x(op: Gemm) -> Gemm:
        return replace(op, products=(replace(op.products[0], x=Value(op.products[0].x.shape)),))

    for change in (prefixed, other_x):
        recorder = ready("quantise_once")
        second = [node for node in recorder.graph.nodes if isinstance(node.op, Gemm)][1]
        recorder.graph.replace(second, change(second.op))
        assert run("quantise_once", recorder) == 2, change.__name__


def test_rows_that_are_quantised_already_are_not_quantised_again():
    recorder = ready("quantise_once")
    run("quantise_once", recorder)
    assert run("quantise_once", recorder) == 0


# ------------------------------------------------------------ conditions of passes that are not rules

Change = Callable[[Recorder], None]


def shape(**values: Any) -> Change:
    """Returns a step of another shape."""

    def change(recorder: Recorder) -> None:
        recorder.graph.shape = replace(recorder.graph.shape, **values)

    return change


def tuning(**values: Any) -> Change:
    def change(recorder: Recorder) -> None:
        target = recorder.target
        recorder.target = replace(target, tuning=target.tuning.changed(**values))

    return change


def can(**values: Any) -> Change:
    """Returns another device."""

    def change(recorder: Recorder) -> None:
        target = recorder.target
        recorder.target = replace(target, can=replace(target.can, **values))

    return change


def apart(recorder: Recorder) -> None:
    """Places each node in a layer of its own."""
    for number, node in enumerate(recorder.graph.nodes):
        node.layer = number


def rows(recorder: Recorder) -> int:
    return recorder.graph.nodes[0].rows


def max_rows(field: str, less: int) -> Change:
    """Sets the limit of rows in a tuning field to the example's rows minus `less`."""
    return lambda recorder: tuning(**{field: rows(recorder) - less})(recorder)


PROMPT = shape(rows=70, decode=False)
CONDITIONS: dict[str, dict[str, Change]] = {
    "adapters_into_products": {
        "few rows": max_rows("adapter_rows", 1),
        "the device binds all factors": can(max_storage_buffers=4),
    },
    "whole_norms_into_attention": {
        "one row of each sequence": shape(decode=False),
        "no rows share pages": shape(shared_pages=True),
    },
    "token_shift_into_products": {
        "the device is faster with this fusion": tuning(fuses_token_shift=False),
        "one row of each sequence": PROMPT,
        "few rows": shape(rows=1 << 20),
        "the kernel sees whole rows": can(max_storage_buffers=4),
    },
    "products_side_by_side": {"one row of each sequence": PROMPT, "one layer": apart},
    "merge_state_space": {"one row of each sequence": PROMPT, "one layer": apart},
    "lora_into_time_mix": {"one row of each sequence": PROMPT, "few rows": max_rows("lora_rows", 1)},
    "route_into_experts": {
        "the device ranks experts": tuning(fuses_routing=False),
        "the device binds the choice": can(max_storage_buffers=5),
    },
    "route_into_sort": {
        "the device ranks experts": tuning(fuses_routing=False),
        "the device binds the choice": can(max_storage_buffers=4),
        "a subgroup for every two rows": can(max_invocations=256),
    },
    "merge_shared_expert": {"one row": shape(rows=2), "one layer": apart, "few rows": max_rows("merged_rows", 1)},
    "merge_gemms": {"few rows": max_rows("merged_rows", 1), "one layer": apart},
    "merge_router": {
        "several rows": shape(rows=1),
        "few rows": max_rows("merged_batch_rows", 1),
        "one layer": apart,
    },
    "merge_latent_write": {"few rows": max_rows("merged_batch_rows", 1), "one layer": apart},
    "quantise_with_adapters": {"one layer": apart},
    "row_statistics": {"one row": shape(rows=2), "the kernel binds them": can(max_storage_buffers=4)},
}  # fmt: skip
LIMITS = {
    "adapters_into_products": "adapter_rows",
    "lora_into_time_mix": "lora_rows",
    "merge_gemms": "merged_rows",
    "merge_shared_expert": "merged_rows",
    "merge_router": "merged_batch_rows",
    "merge_latent_write": "merged_batch_rows",
}


@pytest.mark.parametrize("name", CONDITIONS)
def test_a_pass_does_not_fire_where_one_condition_is_not_met(name):
    assert run(name, ready(name)) > 0
    for condition, change in CONDITIONS[name].items():
        recorder = ready(name)
        change(recorder)
        assert run(name, recorder) == 0, condition


def test_a_pass_fires_up_to_the_rows_that_the_tuning_names():
    for name, field in LIMITS.items():
        recorder = ready(name)
        max_rows(field, 0)(recorder)
        assert run(name, recorder) > 0, name


@pytest.mark.parametrize(
    ("columns", "fused"),
    [
        ((512, 8, 8, 8), True),  # the most columns of a matrix
        ((516, 8, 8, 8), False),
        ((510, 8, 8, 8), False),  # loads have four numbers
        ((384, 384, 384, 384), True),  # the most loads of a workgroup
        ((384, 384, 384, 388), False),
    ],
)
def test_a_time_mix_computes_matrices_that_fit_its_registers(columns, fused):
    recorder = ready("lora_into_time_mix")
    outer = [node for node in recorder.graph.nodes if isinstance(node.op, Gemm)][-1]
    shapes = [
        replace(one.weight, shape=(one.weight.shape[0], count))
        for one, count in zip(outer.op.products, columns, strict=True)
    ]
    products = tuple(replace(one, weight=weight) for one, weight in zip(outer.op.products, shapes, strict=True))
    recorder.graph.replace(outer, replace(outer.op, products=products))
    assert run("lora_into_time_mix", recorder) == fused


def fires(name: str, change: Change) -> bool:
    """True if a pass rewrites its example after a change."""
    recorder = ready(name)
    change(recorder)
    return run(name, recorder) > 0


@pytest.mark.parametrize("name", ["route_into_experts", "route_into_sort"])
def test_subgroups_choose_as_many_experts_as_they_have_logits_and_lanes_for(name):
    def routed(used: int, experts: int | None = None) -> Change:
        def change(recorder: Recorder) -> None:
            node = next(node for node in recorder.graph.nodes if isinstance(node.op, Route))
            shape = node.op.router.shape if experts is None else (experts, *node.op.router.shape[1:])
            router = replace(node.op.router, shape=shape)
            recorder.graph.replace(node, replace(node.op, router=router, how=replace(node.op.how, used=used)))

        return change

    lanes = ready(name).target.can.subgroup_width
    most = lanes if name == "route_into_sort" else products_workgroup()
    assert fires(name, routed(most)) and not fires(name, routed(most + 1))
    logits = LOGITS_OF_A_LANE * lanes
    assert fires(name, routed(2, logits)) and not fires(name, routed(2, logits + 1))


def products_workgroup() -> int:
    """Returns the lanes of the workgroups that multiply experts in the example of a route."""
    recorder = ready("route_into_experts")
    node = next(node for node in recorder.graph.nodes if isinstance(node.op, ExpertProducts))
    return products_config(node.op, node.rows, recorder.target)[0].wg


def test_at_most_two_rows_share_a_subgroup_that_sorts():
    recorder = ready("route_into_sort")
    least = -(-rows(recorder) // 2) * recorder.target.can.subgroup_size
    assert fires("route_into_sort", can(max_invocations=least))
    assert not fires("route_into_sort", can(max_invocations=least - 1))


def test_two_matrices_are_joined_if_one_binding_holds_exactly_both():
    weights = ready("join_columns").target.weights
    parts = [weights[name].shards[0].slice for name in BRANCHES]
    spanned = max(one.offset + one.nbytes for one in parts) - min(one.offset for one in parts)
    assert fires("join_columns", can(max_binding=spanned))
    assert not fires("join_columns", can(max_binding=spanned - 1))


# Gated attention may bind two more: scales of quantised keys and values.
FEWER = {"gate_into_attention": 2}


def widest(name: str, limit: int) -> int | None:
    """Returns the most buffers that a dispatch binds, where a pass fires on a device with this limit; else None."""
    recorder = ready(name)
    can(max_storage_buffers=limit)(recorder)
    if run(name, recorder) == 0:
        return None
    for one in PASSES[NAMES.index(name) + 1 :]:
        one.run(recorder.graph, recorder.target)
    places = {
        state.name: Slice(recorder.device.buffer(1 << 20, "state"), 0, 1 << 20) for state in EXAMPLES[name].states
    }
    dispatches = lower(recorder.graph, recorder.target, replace(recorder.memory, states=places))
    return max(sum(binding.access != "uniform" for binding in one.bindings.values()) for one in dispatches)


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_fires_on_every_device_that_binds_the_buffers_of_its_dispatch(name):
    if widest(name, 4) is None:
        least, bound = next((limit, found) for limit in range(5, 17) if (found := widest(name, limit)) is not None)
        assert bound == least - FEWER.get(name, 0)


def test_each_pass_is_a_rule_or_has_its_conditions_here():
    rules = {rule.name for rule in RULES}
    without = {
        "adapters_as_products", "adapters_as_columns", "share_norms", "sort_once", "choose_kernels", "quantise_once",
    }  # fmt: skip
    assert {*NAMES} == rules | CONDITIONS.keys() | without
