"""Runs Metal shaders on the CPU: correct ones pass, and errors are found. Requires naga and clang++."""

import shutil
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from benchmarks.offline import metal_cpp, metal_run
from benchmarks.offline.metal_cpp import NotCompiled
from benchmarks.offline.metal_run import CpuDevice, run
from benchmarks.offline.variants import FAMILIES
from rwkv_gpu.gpu.plan import Dispatch, Slice
from rwkv_gpu.gpu.shader import Linked, link
from rwkv_gpu.kernels.gemm_config import GemmConfig, gemv, skinny_gemm
from rwkv_gpu.kernels.registry import KERNELS
from rwkv_gpu.measure.cases import dense, linear

pytestmark = pytest.mark.skipif(
    not (shutil.which("naga") and shutil.which(metal_cpp.CLANG)), reason="no `naga` or no `clang++` on the path"
)
APPLE = FAMILIES["apple"]
LANES = 64


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("programs")
    metal_cpp.runner(folder)
    return folder


@pytest.fixture
def device(programs, tmp_path) -> CpuDevice:
    return CpuDevice(APPLE, tmp_path, programs)


def ran(device: CpuDevice, source: str, arrays: Mapping[int, np.ndarray], groups: int = 1) -> tuple[str, np.ndarray]:
    """Returns the report on a dispatch, and the contents of its last array."""
    pipeline = device.pipeline(Linked("test", source, ()))
    bound = {}
    for number, array in arrays.items():
        buffer = device.upload(array, "test")
        bound[number] = Slice(buffer, 0, array.nbytes)
    said = device.dispatch(Dispatch("test", pipeline, bound, (groups, 1, 1), 0, 0, 0))
    array = arrays[max(arrays)]
    left = device.read(bound[max(arrays)].buffer, array.nbytes)
    return said, np.frombuffer(left, array.dtype)


def kernel(body: str, declarations: str = "") -> str:
    """Returns a shader of 64 lanes, from x to y."""
    return f"""
@group(0) @binding(0) var<storage, read> x: array<f32>;
@group(0) @binding(1) var<storage, read_write> y: array<f32>;
{declarations}
@compute @workgroup_size({LANES})
fn main(@builtin(local_invocation_index) lane: u32, @builtin(workgroup_id) group: vec3u) {{
    {body}
}}
"""


def of(device: CpuDevice, body: str, declarations: str = "", x: float | None = None, groups: int = 1):
    """Runs a shader whose input is the lane's number, or one number for all lanes."""
    values = np.arange(LANES, dtype=np.float32) if x is None else np.full(LANES, x, np.float32)
    return ran(device, kernel(body, declarations), {0: values, 1: np.zeros(LANES, np.float32)}, groups)


SHARED = f"var<workgroup> shared_x: array<f32, {LANES}>;"
TURNED = f"shared_x[lane] = x[lane]; BARRIER y[lane] = shared_x[{LANES - 1}u - lane];"


def test_lanes_exchange_through_workgroup_memory(device):
    said, y = of(device, TURNED.replace("BARRIER", "workgroupBarrier();"), SHARED)
    assert said == ""
    assert (y == np.arange(LANES)[::-1]).all()


@pytest.mark.parametrize("barrier", ["", "storageBarrier();"])
def test_a_planted_race_is_found(device, barrier):
    """The barrier is missing, or is for other memory."""
    said, _ = of(device, TURNED.replace("BARRIER", barrier), SHARED)
    assert "race: shared_x at byte" in said
    assert "with no barrier between" in said


@pytest.mark.parametrize(
    ("body", "declarations", "groups"),
    [
        ("shared_x[lane / 4u][lane % 4u] = x[lane]; workgroupBarrier(); y[lane] = shared_x[lane / 4u][lane % 4u];",
         "var<workgroup> shared_x: array<vec4f, 16>;", 1),
        ("shared_x = 1.0; workgroupBarrier(); y[lane] = shared_x;", "var<workgroup> shared_x: f32;", 1),
        ("y[0] = x[lane];", "", 1),
        ("y[lane] = x[lane];", "", 2),
    ],
    ids=["components of one vector", "the same value", "storage", "workgroups"],
)  # fmt: skip
def test_lanes_that_write_one_element_race(device, body, declarations, groups):
    assert "race: " in of(device, body, declarations, groups=groups)[0]


def test_lanes_that_count_by_atomics_do_not_race(device):
    body = "atomicAdd(&count, 1u); workgroupBarrier(); y[lane] = f32(atomicLoad(&count));"
    said, y = of(device, body, "var<workgroup> count: atomic<u32>;")
    assert (said, set(y)) == ("", {LANES})


def test_a_barrier_that_is_removed_from_a_kernel_is_detected_as_missing(programs, monkeypatch):
    """The unchanged kernel passes the same trial."""
    trial = next(t for t in dense.cases(APPLE) if (t.op, t.variant) == ("softmax", "subgroup"))
    verdict = run(APPLE, trial, programs)
    assert verdict.right, str(verdict)

    def broken(linked: Linked, folder: Path) -> metal_cpp.Program:
        head, share, tail = linked.source.partition("fn share(")
        assert share
        return metal_cpp.compiled(
            Linked(linked.name, head + share + tail.replace("workgroupBarrier();", ""), ()), folder
        )

    monkeypatch.setattr(metal_run, "compiled", broken)
    verdict = run(APPLE, trial, programs)
    assert not verdict.right
    assert "race: shared_subgroups" in str(verdict)


@pytest.mark.parametrize(
    "config",
    [gemv(64, 4, 2, 1), skinny_gemm(96, 8, 1, 1, staged=8, subgroup_width=32, max_workgroups=3)],
    ids=lambda config: config.kernel,
)
def test_a_normed_row_is_stored_without_a_race_where_a_workgroup_has_more_lanes_than_it_stages(
    programs, config: GemmConfig
):
    """Lanes that do not stage also read a row. They must not store what others will store."""
    [_, rows] = linear._token_shift(APPLE, "", KERNELS[config.kernel], config)
    verdict = run(APPLE, rows, programs)
    assert verdict.right, str(verdict)


def test_an_access_out_of_bounds_is_found(device):
    assert f"out of bounds: y of {4 * LANES} bytes at byte {4 * LANES}" in of(device, "y[lane + 1u] = x[lane];")[0]


def test_tanh_of_large_numbers_is_nan(device):
    """This is Metal's behaviour, so the test finds a kernel that does not clamp."""
    assert not np.isfinite(of(device, "y[lane] = tanh(x[lane]);", x=50)[1]).any()
    assert (of(device, "y[lane] = tanh(clamp(x[lane], -10.0, 10.0));", x=50)[1] == 1).all()


def test_comparisons_do_not_detect_nan_but_bit_tests_do(device):
    assert (of(device, "y[lane] = select(0.0, 1.0, x[lane] != x[lane]);", x=np.nan)[1] == 0).all()
    bits = "y[lane] = select(0.0, 1.0, (bitcast<u32>(x[lane]) & 0x7fffffffu) > 0x7f800000u);"
    assert (of(device, bits, x=np.nan)[1] == 1).all()


def test_a_simd_group_has_32_lanes_that_are_neighbours(device):
    assert ran(device, link("probes/subgroup").source, {0: np.zeros(4, np.uint32)})[1][0] == 32
    said, met = ran(device, link("probes/lanes", constants={"FARS": 3}).source, {0: np.zeros(3 * 64, np.uint32)})
    assert said == ""
    for row, far in zip(met.reshape(3, 64), (1, 2, 4), strict=True):
        assert (row == np.arange(64) ^ far).all()


def test_more_threadgroup_memory_than_apple_has_is_refused():
    """A size of 32 KiB passes, and 16 bytes more fail."""
    for vectors, taken in ((2048, True), (2049, False)):
        source = kernel("shared_x[lane] = vec4f(x[lane]);", f"var<workgroup> shared_x: array<vec4f, {vectors}>;")
        if taken:
            metal_cpp.check_types(metal_cpp.msl_of(source))
        else:
            with pytest.raises(NotCompiled, match="threadgroup memory"):
                metal_cpp.check_types(metal_cpp.msl_of(source))


def test_more_buffers_than_a_stage_has_are_refused():
    """One of the 31 buffers has the lengths of the others."""
    for more, taken in ((28, True), (29, False)):
        names = [f"more{n}x" for n in range(more)]
        declared = "\n".join(
            f"@group(0) @binding({n + 2}) var<storage, read> {name}: array<f32>;" for n, name in enumerate(names)
        )
        source = kernel(f"y[lane] = x[lane] + {' + '.join(f'{name}[lane]' for name in names)};", declared)
        if taken:
            metal_cpp.check_types(metal_cpp.msl_of(source))
        else:
            with pytest.raises(NotCompiled, match="buffers of a stage"):
                metal_cpp.check_types(metal_cpp.msl_of(source))


def test_a_dispatch_that_does_not_end_is_stopped(device, monkeypatch):
    monkeypatch.setattr(metal_run, "LIMIT_S", 1)
    body = "var at = lane; while x[at] < 1.0 { y[lane] += 1.0; at = (at + 1u) % 64u; }"
    assert of(device, body, x=0)[0] == "runs for more than 1 s"
