"""What an engine takes of a device at its peak is what `fit` promised, within 3%."""

import pytest

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.fit import fit
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_model
from tests.golden_files import golden


@pytest.mark.parametrize("name", ["rwkv7-bf16-Q4_K_M.gguf", "qwen3-small-Q8_0.gguf"])
def test_the_peak_is_what_fit_promises(adapter, name):
    options = {"slots": 8, "chunk_size": 64, "context": 1024, "cache_bytes": 64 << 20}
    with GGUFFile.open(golden(name)) as file, Device(adapter) as device:
        model = load_model(file)
        promised = fit(device, file, model, **options)
        assert not device.memory()
        engine, peak = Engine(GpuRunner(device, file, model, **options)), 0
        for n in range(10):
            ids = [(n * 7 + k) % 200 for k in range(5 + 40 * n)]
            engine.add(Request(ids, SamplingParams(seed=n, max_tokens=4, repetition_penalty=1.1), keep=True))
        while engine.busy:
            engine.step()
            peak = max(peak, sum(device.memory().values()))
        assert abs(peak / promised.needed - 1) < 0.03, (dict(device.memory()), promised)
