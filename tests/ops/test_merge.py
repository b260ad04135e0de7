"""Products of several formats in one dispatch: the results are the same. Several dispatches are used if necessary."""

from dataclasses import replace

import numpy as np
import pytest

from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.kernels.defaults import default_tuning, gpu_tuning
from rwkv_gpu.kernels.gemm_config import gemv, gemv_int, skinny_gemm
from rwkv_gpu.kernels.tuning import GemmLimits
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from tests.golden_files import golden
from tests.ops.test_linear import BY_NAME, Bench, normal, small
from tests.recording import bare_tuning, record, run_plan

WIDTH = 96
WEIGHTS = {
    "a": normal(40, WIDTH).astype(np.float16),
    "b": normal(33, WIDTH).astype(np.float16),
    "c": normal(40, WIDTH, seed=1),
    "bias": normal(33),
}


def says(g, w, x):
    thens = ["none", "tanh", "relu2"]
    found = g.linears([x, x, x], [w["a"], w["b"], w["c"]], then=thens, bias=[None, w["bias"], None])
    return dict(zip("abc", found, strict=True))


def planned(device, rows, merged_rows=4, asked=says):
    """Returns a plan and its results."""
    x = {"x": normal(rows, WIDTH)}
    tuning = default_tuning(device.capabilities).changed(merged_rows=merged_rows)
    plan, scratch = record(device, asked, WEIGHTS, x, rows, tuning)
    return plan, run_plan(plan, scratch, x, rows)


@pytest.mark.parametrize("rows", [1, 2])
def test_products_of_three_buffers_are_one_dispatch_that_gives_the_same_bytes(device, rows):
    (one, got), (three, want) = planned(device, rows), planned(device, rows, 0)
    assert len(one.dispatches) == 1 and len(three.dispatches) == 3
    assert all(np.array_equal(got[name], want[name]) for name in want)
    assert one.cost(rows, rows, []) == three.cost(rows, rows, [])
    assert set(one.dispatches[0].name.split(" & ")) == {dispatch.name for dispatch in three.dispatches}


def test_products_are_not_merged_above_the_row_limit(device):
    assert len(planned(device, 5)[0].dispatches) == 3


def test_products_with_too_many_bindings_are_not_merged(device, monkeypatch):
    monkeypatch.setattr(device, "capabilities", replace(device.capabilities, max_storage_buffers=5))
    assert len(planned(device, 1)[0].dispatches) == 3


def test_a_product_that_reads_another_product_is_not_merged_with_it(device):
    def chained(g, w, x):
        a = g.linear(x, w["a"])
        return {"y": g.linear(a, w["short"], add=a)}

    weights = WEIGHTS | {"short": normal(40, 40)}
    x = {"x": normal(1, WIDTH)}
    plan, _ = record(device, chained, weights, x, 1)
    assert len(plan.dispatches) == 2


def multiplied(device, formats):
    """Products of many rows in one format and of few in another, whose own configurations use other workgroups."""
    size = device.capabilities.subgroup_width if device.capabilities.subgroup_width >= 8 else 1
    integers = gemv_int(4 * size, size, 2, subgroup_width=size, max_workgroups=3) if size > 1 else gemv(64, 8, 2, 1)
    tuning = bare_tuning(gemv(max(16, 2 * size), 8, 2, 1), row_lanes=8, merged_rows=1).preferring(
        (GemmLimits(1, packed=True), integers)
    )
    bench = Bench(device, tuning, 1, spare=0)
    many = bench.matrix("many", BY_NAME[formats[0]], (90, 512))
    few = bench.matrix("few", BY_NAME[formats[1]], (20, 512))
    x = small(bench.values["many"], 1)
    return bench.check(lambda g, x: dict(zip("ab", g.linears([x, x], [few, many]), strict=True)), x=x)


@pytest.mark.parametrize("formats", [("Q4_K", "F16"), ("Q4_K", "Q6_K"), ("F16", "Q4_K"), ("Q6_K", "Q5_K")])
def test_products_whose_own_workgroups_differ_equal_the_reference(device, formats):
    """The kernel that reads less gets workgroups of the same size."""
    assert len(multiplied(device, formats).dispatches) == 1


def test_two_rows_of_two_formats_are_one_dispatch_though_their_own_workgroups_differ(fast_device):
    size = fast_device.capabilities.subgroup_width
    if size < 8:
        pytest.skip("this device has no subgroups")
    few_lanes, many_lanes = (
        skinny_gemm(lanes, size, 2, 2, staged=16, subgroup_width=size) for lanes in (2 * size, 4 * size)
    )
    tuning = bare_tuning(many_lanes, row_lanes=8, merged_rows=2)
    bench = Bench(fast_device, tuning.preferring((GemmLimits(2, max_out=40, packed=True), few_lanes)), 2, 0)
    many, own = bench.matrix("many", BY_NAME["Q4_K"], (90, 512)), bench.matrix("own", BY_NAME["Q6_K"], (40, 512))
    x = normal(2, 512)
    plan = bench.check(lambda g, x: dict(zip("ab", g.linears([x, x], [own, many]), strict=True)), x=x)
    assert len(plan.dispatches) == 1


def test_dispatches_that_exceed_workgroup_memory_are_not_merged(device, monkeypatch):
    most = 2700 if device.capabilities.subgroup_width >= 8 else 3000  # enough for each of them
    monkeypatch.setattr(device, "capabilities", replace(device.capabilities, max_workgroup_memory=most))
    assert len(multiplied(device, ("Q4_K", "F16")).dispatches) == 2


@pytest.mark.parametrize("name", ["rwkv7-bf16", "qwen3moe-small"])
def test_a_model_of_mixed_formats_gives_the_same_logits_in_fewer_dispatches(fast_device, name):
    start = gpu_tuning(replace(fast_device.capabilities, software=False))
    said, counts = [], []
    for merged_rows in (0, 2):
        with GGUFFile.open(golden(f"{name}-Q4_K_M.gguf")) as file:
            model, tuning = load_model(file), start.changed(merged_rows=merged_rows)
            runner = GpuRunner(fast_device, file, model, slots=2, tuning=tuning)
        steps = [Batch.of([(0, 0, [5])]), Batch.of([(0, 1, [9])]), Batch.of([(0, 2, [7]), (1, 0, [5])])]
        said.append(np.concatenate([runner.step(step) for step in steps]))
        counts.append([len(runner.plan_for(step).dispatches) for step in (steps[0], steps[2])])
    assert np.array_equal(*said)
    assert counts[1][0] < counts[0][0] and (name == "rwkv7-bf16") == (counts[1][1] == counts[0][1])
