"""Every pass: its docstring shows what it does, results are the same without it, and it can be left out."""

import re
import textwrap
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from rwkv_gpu.errors import BadInput
from rwkv_gpu.gpu.device import Buffer, Device
from rwkv_gpu.gpu.plan import Slice
from rwkv_gpu.gpu.virtual import LIMITS, VirtualDevice
from rwkv_gpu.gpu.weights import BY_NAME, DeviceWeight, Weights, align, as_shard, layout, upload_together
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.expert_config import ExpertMatrixTile, expert_gemm_matrix
from rwkv_gpu.kernels.gemm_config import UNLIMITED, MatrixTile, gemm_matrix, subgroup_gemm
from rwkv_gpu.kernels.tuning import ExpertLimits
from rwkv_gpu.measure.plans import Step, record_step
from rwkv_gpu.measure.trials import Stored
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.graph import Graph
from rwkv_gpu.ops.memory import Caches, Scratch
from rwkv_gpu.ops.nodes import AdapterUp, Gemm
from rwkv_gpu.ops.nodes.epilogue import AddAdapters, GatePairs
from rwkv_gpu.ops.passes import NAMES, PASSES, REQUIRED
from rwkv_gpu.ops.recorder import Recorder
from rwkv_gpu.ops.reference import Reference
from rwkv_gpu.ops.vocabulary import PAGE, Weight
from tests.measure.tiny import opened_layers
from tests.ops.pass_examples import (
    EXAMPLES,
    JOINED,
    NOT_JOINED,
    PACKED,
    READ_AS_INTEGERS,
    ROUNDED,
    WKV6,
    Example,
    plain_then_adapted,
)

SLOTS = 40


def says(example: Example, recorder: Recorder) -> dict:
    """Records the example."""
    weights = {name: Weight(name, shape) for name, (_, shape) in example.weights.items()}
    x = example.x()
    value = recorder.input("x", x.dtype, x.shape)
    return example.says(recorder, weights, {state.name: state for state in example.states}, value)


def traced(example: Example) -> Recorder:
    """Records the example as for an H200. Nothing is allocated."""
    device = VirtualDevice(replace(LIMITS["h200"], fragment=16 if example.matrix_units else 0))
    weights = laid_together(device, example)
    tuning = example.tuning(device.capabilities)
    pages = {
        name: tuple(Slice(device.buffer(a.nbytes, "kv"), 0, a.nbytes) for a in pair)
        for name, pair in kv(example).items()
    }
    recorder = Recorder(
        device,
        weights,
        example.rows,
        Scratch(device),
        tuning,
        single=example.decode,
        caches=Caches(pages, "f32", example.max_pages),
    )
    recorder.graph.outputs = tuple(says(example, recorder).values())
    return recorder


def laid_together(device: VirtualDevice, example: Example) -> Weights:
    """Places weights of one format in a shared buffer, as `upload_together` does."""
    weights, buffers, ends = Weights(device), {}, Counter()
    for name, (kind, shape) in example.weights.items():
        fmt, rows = BY_NAME[kind], int(np.prod(shape[:-1]))
        where = layout(fmt, rows, shape[-1])
        buffer = buffers.setdefault(kind, device.buffer(1 << 20, kind))
        weights.add(name, DeviceWeight(fmt, shape, (as_shard(buffer, ends[kind], fmt, 0, rows, where),)))
        ends[kind] += align(where.nbytes)
    return weights


def shown(about: str) -> dict[str, str]:
    """Returns the graphs in a docstring, before and after the pass."""
    blocks = re.findall(r"^ *(before|after)\n((?: +.*\n)+)", about, re.MULTILINE)
    return {when: textwrap.dedent(text) for when, text in blocks}


def graphs(name: str) -> tuple[Graph, dict[str, str], int]:
    """Returns the example's graph before and after a pass, and how often the pass fired."""
    recorder = traced(EXAMPLES[name])
    graph, target = recorder.graph, recorder.target
    at = NAMES.index(name)
    for one in PASSES[:at]:
        one.run(graph, target)
    before = graph.text()
    fired = PASSES[at].run(graph, target)
    return graph, {"before": before, "after": graph.text()}, fired


@pytest.mark.parametrize("name", NAMES)
def test_the_docstring_of_a_pass_shows_its_rewrite(name):
    _, texts, fired = graphs(name)
    assert fired > 0
    assert texts["before"] != texts["after"]
    assert shown(PASSES[NAMES.index(name)].doc) == texts


@pytest.mark.parametrize("name", NAMES)
def test_a_pass_does_not_rewrite_its_own_result(name):
    graph, texts, _ = graphs(name)
    recorder = traced(EXAMPLES[name])
    PASSES[NAMES.index(name)].run(graph, recorder.target)
    assert graph.text() == texts["after"]


@pytest.mark.parametrize("name", [name for name in NAMES if name not in REQUIRED])
def test_results_are_the_same_with_a_pass_and_without(fast_device, name):
    check_with_and_without(fast_device, name, EXAMPLES[name])


@pytest.mark.parametrize("decode", [False, True], ids=["prompt", "batch"])
def test_a_token_shift_rounds_rows_for_matrix_units(fast_device, decode):
    can = fast_device.capabilities
    if not can.fragment:
        pytest.skip("this device has no matrix units")
    config = gemm_matrix(can.fragment, can.subgroup_size, MatrixTile(1, 2, 1, 1, 2, columns=64))
    example = replace(EXAMPLES["quantise_in_producer"], config=lambda _: config, decode=decode)
    check_with_and_without(fast_device, "quantise_in_producer", example)


def test_rows_are_quantised_before_a_product_that_precedes_adapters():
    """The adapters of a later product are computed too late to be fused."""
    example = EXAMPLES["quantise_with_adapters"]
    example = replace(example, says=plain_then_adapted, weights={**example.weights, "first": PACKED})
    recorder = traced(example)
    fired = {one.name: one.run(recorder.graph, recorder.target) for one in PASSES}
    assert fired["quantise_once"] == 1
    assert fired["quantise_with_adapters"] == 0


@pytest.mark.parametrize("rows", [1, 3])
@pytest.mark.parametrize("name", ["token_shift_into_products", "lora_into_time_mix"])
def test_a_time_mix_of_rwkv6_is_the_same_with_a_pass_and_without(fast_device, name, rows):
    check_with_and_without(fast_device, name, replace(WKV6, rows=rows))


@pytest.mark.parametrize("tile", [None, ExpertMatrixTile(1, 1, 2, 2, columns=64)], ids=["lanes", "matrix units"])
def test_latents_of_a_batch_are_written_in_the_dispatch_of_a_head_product(fast_device, tile):
    can = fast_device.capabilities
    if tile and not can.fragment:
        pytest.skip("this device has no matrix units")
    example = replace(EXAMPLES["merge_latent_write"], rows=5, change={"merged_batch_rows": 5})
    if tile:  # both factors of products by head become float16
        heads = ((ExpertLimits(), expert_gemm_matrix(can.fragment, can.subgroup_size, tile)),)
        example = replace(example, change={**example.change, "expert_table": heads}, tolerance=6e-3)
    check_with_and_without(fast_device, "merge_latent_write", example)


@pytest.mark.parametrize("kind", READ_AS_INTEGERS)
def test_a_recurrence_writes_the_integers_that_a_product_reads(fast_device, kind):
    if fast_device.capabilities.max_storage_buffers < 10:
        pytest.skip("this device binds too few buffers")
    check_with_and_without(fast_device, "quantise_in_producer", READ_AS_INTEGERS[kind])


@pytest.mark.parametrize("kind", ROUNDED)
def test_every_producer_of_x_rounds_it_for_matrix_units(fast_device, kind):
    check_with_and_without(fast_device, "round_in_producer", ROUNDED[kind])


@pytest.mark.parametrize(
    ("kind", "parts"), [("a product", 1), ("a sum that is normed", 1), ("a sum that is normed", 2), ("attention", 1)]
)
def test_fewer_rows_than_a_fragment_are_rounded_for_matrix_units(fast_device, kind, parts):
    can = fast_device.capabilities
    size = can.subgroup_size or 32
    config = subgroup_gemm(can.fragment or 16, size, 4, 1, max_workgroups=UNLIMITED, joined_parts=parts)
    few = replace(ROUNDED[kind], rows=5, config=lambda _: config)
    check_with_and_without(fast_device, "round_in_producer", few)


@pytest.mark.parametrize("kind", ROUNDED)
def test_the_producer_of_x_rounds_it(kind):
    recorder = traced(ROUNDED[kind])
    fired = {one.name: one.run(recorder.graph, recorder.target) for one in PASSES}
    assert fired["round_in_producer"] == 1


@pytest.mark.parametrize("kind", JOINED)
def test_two_products_that_are_added_to_one_residual_are_merged(fast_device, kind):
    check_with_and_without(fast_device, "join_columns", JOINED[kind])


def test_a_joined_product_emits_statistics():
    recorder = traced(JOINED["statistics of both are emitted"])
    fired = {one.name: one.run(recorder.graph, recorder.target) for one in PASSES}
    assert (fired["join_columns"], fired["row_statistics"]) == (1, 1)


@pytest.mark.parametrize("kind", NOT_JOINED)
def test_products_that_must_not_be_joined_are_left_apart(kind):
    recorder = traced(NOT_JOINED[kind])
    assert {one.name: one.run(recorder.graph, recorder.target) for one in PASSES}["join_columns"] == 0


def test_adapters_of_a_gated_pair_are_added_by_its_product_in_steps_of_any_size():
    """The sums before the gate are not available to another product."""
    example = replace(EXAMPLES["adapters_as_columns"], matrix_units=False, config=None, change={"adapter_rows": 0})
    recorder = traced(example)
    fired = {one.name: one.run(recorder.graph, recorder.target) for one in PASSES}
    assert (fired["adapters_into_products"], fired["adapters_as_products"]) == (0, 1)
    products = [node.op for node in recorder.graph.nodes if isinstance(node.op, Gemm)]
    assert [op.has(AddAdapters) and op.has(GatePairs) for op in products].count(True) == 1
    assert not any(isinstance(node.op, AdapterUp) for node in recorder.graph.nodes)


@pytest.mark.long
def test_a_layer_of_rwkv6_takes_seven_dispatches_at_one_row():
    with opened_layers("rwkv6-3b-q4_k_m") as file:
        step = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(1))
    assert sum(one.layer == 1 for one in step.dispatches) == 7


def check_with_and_without(fast_device: Device, name: str, example: Example) -> None:
    """Checks that a pass fires, saves a dispatch, and changes no result."""
    if not fast_device.capabilities.subgroup:
        pytest.skip("this device has no subgroups")
    if example.matrix_units and not fast_device.capabilities.fragment:
        pytest.skip("this device has no matrix units")
    stored = {
        n: Stored.random(BY_NAME[fmt], *(shape if len(shape) > 1 else (1, *shape)), seed=i)
        for i, (n, (fmt, shape)) in enumerate(example.weights.items())
    }
    tensors = {n: (one.format, one.raw, example.weights[n][1]) for n, one in stored.items()}
    tuning, found, dispatches = example.tuning(fast_device.capabilities), [], []
    for without in ((), (name,)):
        plan, got, states, fired = run(fast_device, example, tensors, tuning, without)
        assert fired.get(name, 0) > 0 or without, f"{name} has not fired"
        assert name not in fired or not without
        found.append({**got, **states})
        dispatches.append(len(plan.dispatches))
    assert dispatches[0] < dispatches[1] or name in ("row_statistics", "adapters_as_columns")
    values = {n: one.values.reshape(example.weights[n][1]) for n, one in stored.items()}
    want = on_cpu(example, values)
    for n in want:
        scale = max(1.0, np.abs(want[n]).max())
        assert np.abs(found[0][n] - want[n]).max() < example.tolerance * scale, n
        off = np.abs(found[0][n] - found[1][n]).max()
        assert off == 0 if example.exact else off < example.tolerance * scale, n


def batch_of(example: Example) -> Batch:
    """Returns a batch. Each sequence reads one state and writes another, as in the engine."""
    rows = [(slot, 3, [0]) for slot in range(example.rows)] if example.decode else [(0, 3, [0] * example.rows)]
    pages = {slot: [slot] for slot in range(example.rows)} if example.caches else None
    return Batch.of(rows).placed(pages, states={slot: (slot, SLOTS - 1 - slot) for slot, _, _ in rows})


def kv(example: Example) -> dict[str, tuple[np.ndarray, ...]]:
    """Returns a page of keys and values for each sequence."""
    rng = np.random.default_rng(4)
    shape = {c.name: (len(c.stored), example.rows, PAGE, c.heads, c.size) for c in example.caches}
    return {n: tuple(rng.standard_normal(one).astype(np.float32)) for n, one in shape.items()}


def slots(example: Example) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(3)
    return {s.name: rng.standard_normal((SLOTS, *s.shape)).astype(np.float32) for s in example.states}


def whole(buffer: Buffer) -> Slice:
    return Slice(buffer, 0, buffer.nbytes)


def run(device, example, tensors, tuning, without):
    """Returns the plan without some passes, its results, the states after it, and how often each pass fired."""
    scratch, before = Scratch(device), slots(example)
    states = {name: device.upload(array, "state") for name, array in before.items()}
    pages = {name: tuple(whole(device.upload(a, "kv")) for a in pair) for name, pair in kv(example).items()}
    recorder = Recorder(
        device, upload_together(device, tensors), example.rows, scratch, tuning,
        {name: Slice(buffer, 0, buffer.nbytes) for name, buffer in states.items()},
        single=example.decode, without=without, caches=Caches(pages, "f32", example.max_pages),
    )  # fmt: skip
    plan, batch = recorder.finish(says(example, recorder)), batch_of(example)
    inputs = {"x": example.x(), **batch.arrays()}
    for buffer in scratch.buffers:
        device.write(buffer, np.full(buffer.nbytes // 4, 0xFFFFFFFF, np.uint32))
    plan.run(example.rows, inputs, len(batch.segments), example.rows)
    got = {name: plan.read(name, example.rows) for name in plan.outputs}
    after = {
        name: np.frombuffer(device.read(buffer), np.float32)[: before[name].size].reshape(before[name].shape)
        for name, buffer in states.items()
    }
    return plan, got, after, recorder.fired


def on_cpu(example: Example, values) -> dict[str, np.ndarray]:
    """Returns the results of the reference, and the states after it."""
    weights = {name: Weight(name, shape) for name, (_, shape) in example.weights.items()}
    states = slots(example)
    reference = Reference(values, states, batch_of(example), kv(example))
    return {**example.says(reference, weights, {s.name: s for s in example.states}, example.x()), **states}


def test_an_unknown_pass_is_refused_with_the_known_names():
    recorder = traced(EXAMPLES["share_norms"])
    recorder.without = ("fuse_all",)
    with pytest.raises(BadInput, match="there is no pass 'fuse_all'; known: norm_into_embedding, "):
        recorder.dispatches([])


def test_the_pass_that_chooses_kernels_cannot_be_left_out():
    recorder = traced(EXAMPLES["share_norms"])
    recorder.without = REQUIRED
    with pytest.raises(BadInput, match="cannot be left out"):
        recorder.dispatches([])


@pytest.mark.long
def test_a_mixer_parallel_to_attention_does_not_wait_for_it():
    with opened_layers("falcon-h1-3.1b") as file:
        graph = record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(16)).graph
    kinds = [line.split(" = ")[1] for line in graph.splitlines() if line.startswith("blk.1 ")]
    mixer = next(i for i, line in enumerate(kinds) if "[ssm_in]" in line)
    assert mixer < next(i for i, line in enumerate(kinds) if line.startswith("attend("))
    assert mixer == next(i for i, line in enumerate(kinds) if "[attn_v]" in line) + 1


@pytest.mark.long
def test_a_state_space_shares_the_dispatch_of_parallel_attention():
    """A layer has five dispatches for one row. For several rows, both are separate dispatches."""
    with opened_layers("falcon-h1-3.1b-q4_k_m") as file:
        steps = [record_step(file, LIMITS["h200"], default_tuning(LIMITS["h200"]), Step(rows)) for rows in (1, 4)]
    layers = [[one for one in step.dispatches if one.layer == 1] for step in steps]
    assert len(layers[0]) == 5
    assert [one.name for one in layers[0] if "ssd" in one.name] == ["ssm ssd & kv attention_decode"]
    names = [one.name.partition(" ")[2] for one in layers[1]]
    assert names.index("ssd") == names.index("attention_decode") + 1
