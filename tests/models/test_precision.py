"""Kernels that round: their largest deviation from llama.cpp's logits."""

import numpy as np
import pytest

from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.gemm_config import TILE_F16, UNLIMITED, gemm_int8, gemv_int, skinny_gemm
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from tests.golden_files import golden

# By kernel: rms of logits of deviation 2.5, for RWKV-7 and for a dense transformer. docs/tuning.md has the results.
# We call errors below 1e-3 float32; less exact kernels run only if the user asks for them.
LIMITS = {
    gemv_int(32, 8, 2, subgroup_width=8, max_workgroups=UNLIMITED): (2e-4, 6e-4),
    skinny_gemm(32, 8, 2, 4, staged=8, subgroup_width=8): (2e-4, 6e-4),
    gemm_int8(32, 8, 32, 16, activations="int16"): (2e-4, 6e-4),
    TILE_F16: (5e-3, 1e-2),
    gemm_int8(32, 8, 32, 16, activations="int8"): (5e-2, 2e-1),
}
ROUNDING = 0.1  # minimum error relative to the limit, which proves that the kernel was used
MODELS = ("rwkv7-bf16-Q4_K_M.gguf", "llama-bpe-small-Q4_K_M.gguf")


@pytest.mark.parametrize("shape", LIMITS, ids=lambda shape: f"{shape.kernel} {shape.activations}")
@pytest.mark.parametrize("name", MODELS)
def test_rounding_stays_within_the_stated_error(fast_device, name, shape):
    can = fast_device.capabilities
    if shape.tile == "f16" and not can.f16:
        pytest.skip("this device has no f16")
    if shape.activations != "f32" and not can.subgroup:
        pytest.skip("this device has no subgroups")
    tuning = default_tuning(can).only(shape)
    with GGUFFile.open(golden(name)) as file, np.load(golden(name).with_suffix(".npz")) as answers:
        runner = GpuRunner(fast_device, file, load_model(file), chunk_size=64, slots=1, kv="f32", tuning=tuning)
        logits = runner.step(Batch.of([(0, 0, answers["tokens"])], every=True))
        far = float(np.sqrt(np.mean((logits.astype(np.float64) - answers["exact_logits"]) ** 2)))
    limit = LIMITS[shape][MODELS.index(name)]
    assert ROUNDING * limit < far < limit
