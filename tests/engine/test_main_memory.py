"""Weights in main memory: which ones are chosen, the output of `fit`, and answers equal to those on the GPU."""

from types import SimpleNamespace

import numpy as np
import pytest

import rwkv_gpu
from rwkv_gpu.engine import fit as fit_module
from rwkv_gpu.engine.fit import Fit, fit
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.offload import Offload, memory_size
from rwkv_gpu.engine.parameters import parameters_of
from rwkv_gpu.engine.placement import place, slot_bytes
from rwkv_gpu.errors import BadInput, OutOfMemory, UnsupportedDevice
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.loader import device_bytes, host_bytes
from rwkv_gpu.gpu.virtual import LIMITS, VirtualDevice
from rwkv_gpu.gpu.weight_slots import slot_sizes
from rwkv_gpu.measure.cases import main_memory
from rwkv_gpu.measure.trials import run
from rwkv_gpu.models.registry import load_model
from tests.golden_files import OWN
from tests.measure.tiny import EVERY, opened_layers

H200 = VirtualDevice(LIMITS["h200"])
DENSE, MIXTURE = "qwen3-0.6b-q4_k_m", "qwen3-30b-a3b-q4_k_m"


@pytest.fixture(scope="module", params=[DENSE, MIXTURE])
def parameters(request):
    with opened_layers(request.param, EVERY) as file:
        yield parameters_of(file, load_model(file))


def memory_for(path, adapter, slots: int) -> int:
    """Returns just enough memory to cache `slots` experts of each layer."""
    options = {"context": 64, "kv": "f32", "slots": 4, "tokens": 64, "drafts": 0, "chunk_size": 64}
    with GGUFFile.open(path) as file, Device(adapter) as device:
        roomy = fit(device, file, load_model(file), offload=Offload(0, 0, 1 << 30), **options)
        return roomy.needed - roomy.cache + roomy.cache // roomy.cached_experts * slots


def on_host(placement) -> set[str]:
    return {p.block for p in placement.host}


@pytest.mark.parametrize("count", [0, 1, 3, 999, -1])
def test_gpu_layers_are_the_last_ones_and_the_output_is_one(parameters, count):
    layers = 1 + max(int(p.block[4:]) for p in parameters if p.block != p.name)
    host = on_host(place(H200, parameters, Offload(gpu_layers=count), 8, None))
    first = 0 if count < 0 else max(0, layers + 1 - count)
    assert {block for block in host if block.startswith("blk.")} == {f"blk.{i}" for i in range(min(first, layers))}
    head = "output.weight" if any(p.name == "output.weight" for p in parameters) else "token_embd.weight"
    assert (head in host) == (count == 0)


def test_vectors_stay_on_the_gpu(parameters):
    placement = place(H200, parameters, Offload(gpu_layers=0), 8, None)
    assert all(len(p.tensors[0].shape) > 1 for p in placement.host)
    assert sum(p.host for p in placement.parameters) > len(parameters) / 3


def test_the_gpu_has_as_many_weights_as_fit(parameters):
    """Less memory means fewer bytes on the GPU. No layer is moved while all fit, and the choice always fits."""
    whole = device_bytes(H200, parameters)
    assert place(H200, parameters, Offload(), 8, whole).host == []
    before = whole
    for share in (0.9, 0.6, 0.4):
        placement = place(H200, parameters, Offload(), 8, int(share * whole))
        taken = device_bytes(H200, placement.parameters) + placement.cache_bytes
        assert whole / 20 < taken <= share * whole
        assert taken <= before
        assert host_bytes(H200, placement.parameters) + device_bytes(H200, placement.parameters) >= whole
        before = taken


def test_experts_go_to_main_memory_first_and_free_gpu_memory_caches_them():
    with opened_layers(MIXTURE, EVERY) as file:
        parameters = parameters_of(file, load_model(file))
    whole = device_bytes(H200, parameters)
    some = place(H200, parameters, Offload(), 8, int(0.7 * whole))
    assert all(p.is_experts or p.name == "token_embd.weight" for p in some.host)
    assert 0 < some.expert_layers < 48
    assert some.slots >= 128 // 4
    asked = place(H200, parameters, Offload(cpu_moe=1 << 16), 8, 8 << 30)
    assert asked.expert_layers == 48
    assert asked.host_layers == 0
    assert 8 <= asked.slots < 128
    assert device_bytes(H200, asked.parameters) + (asked.slots + 1) * slot_bytes(asked.parameters) > 8 << 30
    # A step reads 8 of 128 experts.
    assert asked.step_bytes == pytest.approx(host_bytes(H200, asked.host) * 8 / 128, rel=0.2)
    assert place(H200, parameters, Offload(cpu_moe=1 << 16), 8, None).slots == 0


def test_the_cache_has_as_many_experts_as_fit_if_those_of_a_token_do():
    with opened_layers(MIXTURE, EVERY) as file:
        parameters = parameters_of(file, load_model(file))
    every = Offload(cpu_moe=1 << 16)
    chosen = place(H200, parameters, every, 8, None).parameters
    rest, each = device_bytes(H200, chosen) + sum(slot_sizes(H200, chosen)), slot_bytes(chosen)
    for count, fewer in ((8, 0), (9, 8), (128, 127)):
        assert place(H200, parameters, every, 8, rest + count * each).slots == count
        assert place(H200, parameters, every, 8, rest + count * each - 1).slots == fewer
    assert place(H200, parameters, every, 8, rest + 500 * each).slots == 128
    assert place(H200, parameters, every, 0, rest + 500 * each).slots == 0


@pytest.mark.parametrize("name", ["gemma-4-e4b-7.5b", MIXTURE])
def test_tables_of_which_a_token_reads_rows_go_to_main_memory_before_layers(name):
    with opened_layers(name, EVERY) as file:
        parameters = parameters_of(file, load_model(file))
    placement = place(H200, parameters, Offload(), 8, device_bytes(H200, parameters) - 1)
    table = "per_layer_token_embd.weight" if name != MIXTURE else "token_embd.weight"
    assert [p.name for p in placement.host] == [table]
    assert placement.step_bytes == placement.host_layers == placement.expert_layers == 0


@pytest.mark.long
@pytest.mark.parametrize(("name", "options"), [("qwen4exp", {"n_cpu_moe": 1}), ("gemma3n", {"gpu_layers": 11})])
def test_rows_of_a_table_in_main_memory_are_read_in_place(adapter, name, options):
    """The table of n-grams of Qwen3.8-Flash-Next, and per-layer embeddings of Gemma 3n."""
    path, record = OWN / f"tiny-{name}.gguf", np.load(OWN / f"tiny-{name}.npz")
    with GGUFFile.open(path) as file:
        placement = place(H200, parameters_of(file, load_model(file)), Offload.of(**options), 2, None)
    assert "per_layer_token_embd.weight" in on_host(placement)
    opening = {"kv": "f32", "context": 64, "chunk_size": 64, "device": str(adapter.index)}
    with rwkv_gpu.load(path, **opening, **options) as llm:
        assert llm.info.memory.host == host_bytes(H200, placement.parameters)
        off = llm.logits(record["tokens"].tolist(), chunk_size=64) - record["exact_logits"]
    assert np.sqrt(np.mean(off**2)) < 1e-4  # float32 sums in another order; a wrong row makes 0.1


@pytest.mark.parametrize("name", ["tiny-rwkv6", "tiny-arwkv7"])
def test_float_matrices_of_a_block_are_loaded_in_the_smallest_format_that_holds_all(name):
    """So that one dispatch reads them together."""
    with GGUFFile.open(OWN / f"{name}.gguf") as file:
        parameters = {one.name: one for one in parameters_of(file, load_model(file))}
    first = parameters["blk.0.time_mix_w1.weight"]
    assert (first.tensors[0].format.name, first.format.name) == ("F32", "F16")


def test_impossible_options_are_refused_in_one_line():
    with opened_layers(DENSE, EVERY) as file:
        parameters = parameters_of(file, load_model(file))
    with pytest.raises(BadInput, match="no experts"):
        place(H200, parameters, Offload(cpu_moe=3), 0, None)
    bare = VirtualDevice(LIMITS["default"])
    bare.adapter = "this GPU"
    with pytest.raises(UnsupportedDevice, match="this GPU cannot read main memory"):
        place(bare, parameters, Offload(gpu_layers=3), 0, None)
    for size in ("8X", "", "-1G", 0, True, 1.5, None, "9" * 400 + "T", "0." + "1" * 400):
        with pytest.raises(BadInput, match="gpu_memory"):
            memory_size(size)
    assert memory_size(1) == 1
    assert memory_size("8G") == memory_size(" 8GiB ") == memory_size("8192mb") == 8 << 30


@pytest.mark.parametrize("free", [None, 1_000_000])
def test_the_error_of_too_little_main_memory_has_the_numbers(free):
    Fit(None, 1000, 10, 10, available=free, host=1_000_000, host_available=1_000_000).check()
    with pytest.raises(OutOfMemory, match="1,000,001 in main memory, where 1,000,000 are"):
        Fit(None, 1000, 10, 10, available=free, host=1_000_001, host_available=1_000_000).check()


def test_weights_that_do_not_fit_on_a_discrete_gpu_go_to_main_memory_by_default(monkeypatch):
    options = {"context": 64, "kv": "f32", "slots": 1, "tokens": 64, "chunk_size": 1}
    device = VirtualDevice(LIMITS["h200"])
    device.adapter = SimpleNamespace(kind="DiscreteGPU")
    monkeypatch.setattr(fit_module, "main_memory_rate", lambda _: 2.0)
    monkeypatch.setattr(fit_module, "host_available", lambda: 1 << 34)
    with GGUFFile.open(OWN / "tiny-qwen3moe.gguf") as file:
        model = load_model(file)
        monkeypatch.setattr(fit_module, "device_available", lambda _: 1 << 34)
        whole = fit(device, file, model, **options)
        assert whole.fits and not whole.host
        monkeypatch.setattr(fit_module, "device_available", lambda _: whole.needed - 100_000)  # more than embeddings
        monkeypatch.setattr(fit_module, "SCRATCH_SHARE", 1.0)  # most memory of a model this small is scratch
        less = fit(device, file, model, **options)
        device.adapter.kind = "IntegratedGPU"  # moving weights within one memory gains nothing
        assert not fit(device, file, model, **options).fits
        shared = fit(device, file, model, offload=Offload(gpu_layers=0), **options)
    assert shared.host_available == (1 << 34) - shared.needed
    assert less.host_available == 1 << 34 and less.step_seconds == less.step_bytes / 2
    assert less.fits and less.host and less.expert_layers
    assert less.needed < whole.needed
    assert less.host + less.weights == whole.weights


def test_logits_equal_those_of_a_model_wholly_on_the_gpu(adapter, monkeypatch):
    """A whole prompt first copies a layer's weights. Single tokens read them directly, and experts by the cache."""
    path, chunks = OWN / "tiny-qwen3moe.gguf", (40, 1)
    ids = np.load(OWN / "tiny-qwen3moe.npz")["tokens"].tolist()
    made = []
    build = GpuRunner.__init__

    def noted(self, *given, **more):
        build(self, *given, **more)
        made.append(self)

    monkeypatch.setattr(GpuRunner, "__init__", noted)
    opening = {"kv": "f32", "context": 64, "chunk_size": 64, "device": str(adapter.index)}
    with rwkv_gpu.load(path, **opening) as llm:
        wanted = [llm.logits(ids, chunk_size=chunk) for chunk in chunks]
    slots = 2  # experts of a layer, of which a token uses 2
    with rwkv_gpu.load(path, **opening, gpu_layers=0, gpu_memory=memory_for(path, adapter, slots)) as llm:
        for chunk, logits in zip(chunks, wanted, strict=True):
            assert np.abs(llm.logits(ids, chunk_size=chunk) - logits).max() < 1e-5
        [_, runner] = made
        assert runner.device.memory()["weights in main memory"] == runner.fit.host > runner.fit.weights
        assert llm.info.memory is runner.fit
        assert runner.fit.step_seconds == runner.fit.step_bytes / runner.fit.main_memory_rate > 0
        assert [cache.slots for cache in runner.expert_caches] == [slots] * 2
        for cache in runner.expert_caches:
            choices, misses = cache.misses(runner.device)
            assert 4 < misses < choices == 2 * len(ids)


def test_cached_experts_of_codebook_formats_are_read_with_their_tables(fast_device):
    trials = [trial for trial in main_memory.cases(fast_device.capabilities) if trial.slots]
    assert [trial.what for trial in trials] == [*main_memory.CACHED]
    for trial in trials:
        assert run(fast_device, trial).right, trial.what
