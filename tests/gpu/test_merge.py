"""Two kernels in one shader: each computes the same as alone, and equal names do not clash."""

import re

import numpy as np
import pytest

from rwkv_gpu.errors import ShaderError
from rwkv_gpu.gpu.merge import merge
from rwkv_gpu.gpu.shader import Linked, Origin

STEP = "struct Step { rows: u32 }\n@group(0) @binding(0) var<uniform> step: Step;\n"
ENTRY = """const WG = 8u;
@compute @workgroup_size(WG)
fn main(@builtin(workgroup_id) group: vec3u, @builtin(local_invocation_index) lane: u32) { run(group.x, lane); }
"""
# MergedShader declare the words scale, Pair, twice, shared_sum and x; both sum over a workgroup, after a barrier.
DOUBLED = """const scale = 2.0;
struct Pair { scale: f32, x: f32 }      // of members that are called as what is declared
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
var<workgroup> shared_sum: array<f32, WG>;
fn twice(v: f32) -> f32 { return scale * v; }
fn run(group: u32, lane: u32) {
    let pair = Pair(twice(x[WG * group + lane]), 0.0);
    shared_sum[lane] = pair.scale + pair.x;
    workgroupBarrier();
    if lane == 0u {
        var sum = 0.0;
        for (var i = 0u; i < WG; i++) { sum += shared_sum[i]; }
        y[group] = sum + f32(step.rows);
    }
}
"""
SQUARED = """const scale = 3.0;
struct Pair { x: f32, twice: f32 }
@group(0) @binding(1) var<storage, read> x: array<f32>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;
var<workgroup> shared_sum: array<vec2f, WG>;
fn twice(x: f32) -> Pair { let scale = scale * x; return Pair(scale, scale * scale); }
fn run(group: u32, lane: u32) {
    let found = twice(x[WG * group + lane]);
    shared_sum[lane] = vec2f(found.x, found.twice);
    workgroupBarrier();
    if lane == 0u {
        var sum = vec2f();
        for (var i = 0u; i < WG; i++) { sum += shared_sum[i]; }
        y[2u * group] = sum.x;
        y[2u * group + 1u] = sum.y;
    }
}
"""


def kernel(name: str, own: str) -> Linked:
    texts = (("prelude", STEP), (f"{name}.wgsl", own), ("entry.wgsl", ENTRY))
    return Linked(name, "".join(text for _, text in texts), tuple(Origin.generated(file, text) for file, text in texts))


def ran(device, linked: Linked, arrays: dict[int, np.ndarray], groups: int) -> dict[int, np.ndarray]:
    """Returns the contents of every binding after a dispatch."""
    pipeline = device.pipeline(linked)
    buffers = {number: device.upload(array, "test") for number, array in arrays.items()}
    uniform = device.buffer(16, "test", uniform=True)
    device.write(uniform, np.array([5, 0, 0, 0], np.uint32))
    bound = {0: uniform, **buffers}
    entries = [
        {"binding": n, "resource": {"buffer": b.handle, "offset": 0, "size": b.nbytes}} for n, b in bound.items()
    ]
    encoder = device.handle.create_command_encoder()
    compute = encoder.begin_compute_pass()
    compute.set_pipeline(pipeline.handle)
    compute.set_bind_group(0, device.handle.create_bind_group(layout=pipeline.layout, entries=entries))
    compute.dispatch_workgroups(2, groups // 2)  # folded, as grids over the limit are
    compute.end()
    device.submit([encoder.finish()])
    return {n: np.frombuffer(device.read(buffers[n], array.nbytes), np.float32) for n, array in arrays.items()}


@pytest.mark.parametrize("shared", [False, True])
def test_each_kernel_gives_the_same_result_as_alone(device, shared):
    """The kernels read the same x, or one each."""
    x, z = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    same = ((0, 0), (1, 1)) if shared else ((0, 0),)
    both = merge(kernel("doubled", DOUBLED), kernel("squared", SQUARED), (2, 8), same)
    other = x if shared else z
    assert both.numbers == ({0: 0, 1: 1, 2: 3} if shared else {0: 0, 1: 3, 2: 4})
    arrays = {1: x, 2: np.zeros(16, np.float32), both.numbers[1]: other, both.numbers[2]: np.zeros(16, np.float32)}
    found = ran(device, both.linked, arrays, 10)
    doubled = 2 * x.reshape(8, 8).sum(1) + 5
    tripled = 3 * other.reshape(8, 8)
    assert np.allclose(found[2][:2], doubled[:2], rtol=1e-5) and not found[2][2:].any()
    assert np.allclose(
        found[both.numbers[2]].reshape(8, 2), np.stack([tripled.sum(1), (tripled**2).sum(1)], 1), rtol=1e-5
    )


def test_shared_declarations_occur_once_and_all_others_twice():
    both = merge(kernel("doubled", DOUBLED), kernel("squared", SQUARED), (2, 8), ((0, 0), (1, 1)))
    for text, count in (
        ("struct Step", 1),
        (r"const WG\b", 1),
        (r"> x: array", 1),
        ("struct Pair", 2),
        ("fn twice", 2),
    ):
        assert len(re.findall(text, both.linked.source)) == count, text
    both = merge(kernel("a", DOUBLED), kernel("b", DOUBLED), (2, 8), ((0, 0), (1, 1)))
    assert both.linked.source.count("fn twice") == 1  # the function uses nothing that differs
    assert both.linked.source.count("fn run") == 2  # writes another y


def test_a_kernel_merged_with_itself_does_its_work_twice(device):
    both = merge(kernel("a", DOUBLED), kernel("b", DOUBLED), (4, 8), ((0, 0), (1, 1), (2, 2)))
    assert both.linked.source.count("fn run") == 1 and not both.memory
    x = np.random.default_rng(0).normal(size=64).astype(np.float32)
    found = ran(device, both.linked, {1: x, 2: np.zeros(16, np.float32)}, 12)
    assert np.allclose(found[2][:8], 2 * x.reshape(8, 8).sum(1) + 5, rtol=1e-5) and not found[2][8:].any()


def test_merging_three_kernels_equals_merging_two_and_one(device):
    pair = merge(kernel("doubled", DOUBLED), kernel("squared", SQUARED), (2, 4), ((0, 0), (1, 1)))
    three = merge(pair.linked, kernel("doubled", DOUBLED), (6, 2), ((0, 0),))
    x, z = np.random.default_rng(0).normal(size=(2, 64)).astype(np.float32)
    y, own = np.zeros(16, np.float32), three.numbers
    found = ran(device, three.linked, {1: x, 2: y, 3: y, own[1]: z, own[2]: y}, 8)
    assert np.allclose(found[2][:2], 2 * x.reshape(8, 8).sum(1)[:2] + 5, rtol=1e-5)
    assert np.allclose(found[3][:8:2], 3 * x.reshape(8, 8).sum(1)[:4], rtol=1e-5)
    assert np.allclose(found[own[2]][:2], 2 * z.reshape(8, 8).sum(1)[:2] + 5, rtol=1e-5)


@pytest.mark.parametrize("wrong", ["first", "second"])
def test_an_error_names_the_file_and_line_that_either_was_written_in(device, wrong):
    spoilt = kernel("spoilt", SQUARED.replace("var sum = vec2f();", "var sum = 7u;"))
    good = kernel("good", DOUBLED)
    linked = (spoilt, good) if wrong == "first" else (good, spoilt)
    line = next(i for i, text in enumerate(spoilt.source.split("\n"), 1) if "sum += shared_sum" in text)
    with pytest.raises(ShaderError, match=rf"spoilt\.wgsl:{spoilt.locate(line)[1]}:"):
        device.pipeline(merge(*linked, (1, 1), ((0, 0),)).linked)
