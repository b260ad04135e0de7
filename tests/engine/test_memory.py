"""An engine's peak memory on a device is within 3% of the prediction by `fit`."""

import pytest

from rwkv_gpu.engine.adapters import Adapters, adapters_of
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.fit import Companions, fit
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling import SamplingParams
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.llm.drafts import DraftOptions, drafts_of
from rwkv_gpu.models.registry import Model, load_model
from tests.engine.test_adapters import write
from tests.golden_files import golden


@pytest.mark.parametrize("name", ["rwkv7-bf16-Q4_K_M.gguf", "qwen3-small-Q8_0.gguf"])
def test_the_peak_equals_the_memory_that_fit_computes(adapter, name):
    options = {"slots": 8, "chunk_size": 64, "context": 1024, "cache_bytes": 64 << 20}
    with GGUFFile.open(golden(name)) as file, Device(adapter) as device:
        model = load_model(file)
        promised = fit(device, file, model, **options)
        assert not device.memory()
        peak = peak_of(Engine(GpuRunner(device, file, model, **options)), device)
        assert abs(peak / promised.needed - 1) < 0.03, (dict(device.memory()), promised)


def opened_with(tmp_path, file: GGUFFile) -> tuple[Adapters, Model]:
    """Opens a model with an adapter for all its matrices."""
    parts = ["attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"]
    adapters = adapters_of(str(write(tmp_path, "llama", "one", rank=32, parts=parts)), file)
    file.separate = adapters.separate
    return adapters, load_model(file)


def test_the_peak_with_adapters_equals_the_memory_that_fit_computes(adapter, tmp_path):
    options = {"slots": 8, "chunk_size": 64, "context": 1024, "cache_bytes": 64 << 20}
    with GGUFFile.open(golden("tiny-llama.gguf")) as file, Device(adapter) as device:
        adapters, model = opened_with(tmp_path, file)
        promised = fit(device, file, model, Companions(adapters), **options)
        assert promised.adapters > 0.04 * promised.needed  # more than the tolerance
        peak = peak_of(Engine(GpuRunner(device, file, model, adapters=adapters, **options)), device)
        assert abs(peak / promised.needed - 1) < 0.03, (dict(device.memory()), promised)


def test_the_memory_with_a_draft_model_equals_that_of_fit(adapter, tmp_path):
    options = {"slots": 2, "chunk_size": 64, "context": 256, "drafts": 3}
    path = golden("tiny-llama.gguf")
    with GGUFFile.open(path) as file, Device(adapter) as device:
        adapters, model = opened_with(tmp_path, file)
        with drafts_of(DraftOptions(path=path, tokens=3), file, model) as drafts:
            promised = fit(device, file, model, Companions(adapters, drafts.model), **options)
            small = GpuRunner(device, *drafts.model, slots=2, context=256, chunk_size=64, cache_bytes=0).fit
            assert not device.memory()
            runner = GpuRunner(device, file, model, adapters=adapters, draft=drafts.model, **options)
            speculator = drafts.speculator(runner, device)
            assert speculator is not None
            memory = device.memory()
            assert memory["weights"] == promised.weights + promised.adapters + small.weights
            assert memory["kv"] == promised.state + small.state
            assert promised.draft > small.weights + small.state
            assert promised.needed == sum(promised.parts.values())


def peak_of(engine: Engine, device: Device) -> int:
    """Returns the bytes on the device while requests of several lengths are answered."""
    peak = 0
    for n in range(10):
        ids = [(n * 7 + k) % 200 for k in range(5 + 40 * n)]
        engine.add(Request(ids, SamplingParams(seed=n, max_tokens=4, repetition_penalty=1.1), keep=True))
    while engine.busy:
        engine.step()
        peak = max(peak, sum(device.memory().values()))
    return peak
