"""In each mode, the shader part of each format decodes packed weights as the dequantisers of `gguf` do."""

import numpy as np
import pytest

from rwkv_gpu.gguf.codebooks import codebook
from rwkv_gpu.gguf.formats import FORMATS, Format
from rwkv_gpu.gguf.planes import dequantise_rows, pack_rows
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.plan import Dispatch, Output, Plan, Slice, StepBuffer
from rwkv_gpu.gpu.shader import Linked, Part, read
from tests.gguf.blocks import extreme_rows, finite_rows

# Products of a scale and a quant are exact or rounded once on both sides: 2 units in the last place. Below the smallest
# normal float, a GPU may return zero.
RELATIVE = 2.0**-22
ABSOLUTE = 12 * 2.0**-127  # a GPU may flush subnormal floats: 12 times the smallest scale of MXFP4
WIDTHS = {1: 77, 32: 160}  # rows that end within a word of scales, and padded rows of floats; otherwise 3 blocks

KERNEL = """
@group(0) @binding(1) var<storage, read> w: array<vec4u>;
@group(0) @binding(2) var<storage, read_write> y: array<f32>;

@compute @workgroup_size(64)
fn main(@builtin(global_invocation_id) id: vec3u) {
    let i = id.x;
    if i >= RUNS {
        return;
    }
    let scale = run_scale(i);
    var q = RUN_QUANTS(i);
    for (var j = 0u; j < RUN; j++) {
        y[i * RUN + j] = fma(scale.x, QUANT, scale.y);
    }
}
"""
# WGSL that reads the j-th quant from `q`, for each function that returns `q`.
QUANTS = {
    "run_quants": "q[j / 4u][j % 4u]",
    "run_packed": "f32((bitcast<i32>(q[j / 4u]) << (24u - 8u * (j % 4u))) >> 24u)",
}

every_format = pytest.mark.parametrize("fmt", FORMATS.values(), ids=lambda fmt: fmt.name)
every_quantised = pytest.mark.parametrize(
    "fmt", [fmt for fmt in FORMATS.values() if fmt.block > 1], ids=lambda fmt: fmt.name
)


def kernel(fmt: Format, call: str, runs: int, starts: list[int]) -> Linked:
    """Returns a kernel that decodes every run with the function `call`."""
    plane = ", ".join(f"{start}u" for start in [*starts, 0, 0, 0][:4])
    prelude = f"const RUNS = {runs}u;\nconst plane = vec4u({plane});\n"
    body = KERNEL.replace("RUN_QUANTS", call).replace("QUANT", QUANTS[call])
    texts = [
        *(Part("", "kernel", one, range(1, one.count("\n") + 1)) for one in (prelude, body)),
        *map(read, fmt.parts),
    ]
    origins = tuple(part.origin for part in texts)
    return Linked(f"decode.{fmt.shader}", "".join(part.text for part in texts), origins)


def decode(device: Device, fmt: Format, raw: np.ndarray, width: int, call: str = "run_quants") -> np.ndarray:
    """Returns the weights as the GPU decodes them. [rows, width]"""
    parts = [*pack_rows(fmt, raw), *([codebook(fmt.name)] if codebook(fmt.name).size else [])]
    planes = [np.pad(plane.reshape(-1), (0, -plane.size % 16)) for plane in parts]
    gap = np.full(16, 0xFF, np.uint8)  # so that no plane starts at the right place by chance
    together = np.concatenate([part for plane in planes for part in (gap, plane)])
    starts = (np.cumsum([16 + plane.size for plane in planes]) - [plane.size for plane in planes]) // 16
    rows, padded = len(raw), -(-width // fmt.run) * fmt.run
    runs = rows * padded // fmt.run
    w, y = device.upload(together, "weights"), device.buffer(4 * rows * padded, "test")
    pipeline = device.pipeline(kernel(fmt, call, runs, starts.tolist()))
    bound = {1: Slice(w, 0, w.nbytes), 2: Slice(y, 0, y.nbytes)}
    dispatch = Dispatch("decode", pipeline, bound, (-(-runs // 64), 1, 1), 0, 0, 0)
    output = Output(bound[2], np.float32, (rows, padded))
    plan = Plan(device, rows, [dispatch], StepBuffer(device, {}, rows), {"y": output})
    plan.run(rows, {})
    return plan.read("y", rows)[:, :width]


def assert_decodes(device: Device, fmt: Format, raw: np.ndarray, width: int, call: str = "run_quants") -> None:
    got, expected = decode(device, fmt, raw, width, call), dequantise_rows(fmt, raw)
    assert np.isfinite(expected).all()
    np.testing.assert_allclose(got, expected, rtol=RELATIVE, atol=ABSOLUTE)


@every_format
def test_shaders_decode_as_gguf_does(device, fmt):
    width = WIDTHS.get(fmt.block, 3 * fmt.block)
    assert_decodes(device, fmt, finite_rows(fmt, 37, width), width)


@every_quantised
def test_packed_quants_are_signed_bytes_in_order(device, fmt):
    width = WIDTHS.get(fmt.block, 3 * fmt.block)
    assert_decodes(device, fmt, finite_rows(fmt, 5, width, seed=1), width, "run_packed")


@every_format
def test_extreme_scales_and_quants_decode_as_gguf_does(device, fmt):
    width = WIDTHS.get(fmt.block, 3 * fmt.block)
    for fill in (0x00, 0xFF, 0x80, None):  # as many rows as above, so that the shader is the same
        assert_decodes(device, fmt, extreme_rows(fmt, fill, 37, width), width)
