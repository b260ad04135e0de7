"""The default context is the model's trained context if it fits, otherwise the largest that fits."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rwkv_gpu.engine import fit as module
from rwkv_gpu.engine.cache.config import DEFAULT_CHUNK, DEFAULT_CONTEXT, CacheConfig, within_bindings
from rwkv_gpu.engine.cache.kv import GpuKVCache
from rwkv_gpu.engine.fit import Companions, Fit, default_chunk, fit, with_context
from rwkv_gpu.engine.offload import Offload
from rwkv_gpu.errors import OutOfMemory
from rwkv_gpu.gpu.virtual import LIMITS, VirtualDevice
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.sampler_state import GpuSamplerState
from rwkv_gpu.ops.vocabulary import PAGE
from tests.measure.tiny import EVERY, opened_layers

NAME = "qwen3-0.6b-q4_k_m"
LONG = 1 << 40


@pytest.fixture(scope="module")
def opened():
    with opened_layers(NAME, EVERY) as file:
        yield file, load_model(file)


def virtual(**limits) -> VirtualDevice:
    """Returns a device that shares its memory with the host."""
    device = VirtualDevice(replace(LIMITS["h200"], **limits))
    device.adapter = SimpleNamespace(kind="IntegratedGPU", index=0)
    return device


@pytest.fixture(params=["cpu", "gpu"])
def device(request):
    return None if request.param == "cpu" else virtual()


def context_of(device, file, model, **options):
    return with_context(device, file, model, **options)["context"]


def loaded(device, file, model):
    """Returns the memory that loading would need with the default context."""
    return fit(device, file, model, chunk_size=64, **with_context(device, file, model))


def free(monkeypatch, nbytes: int | None) -> None:
    monkeypatch.setattr(module, "host_available", lambda: nbytes)
    monkeypatch.setattr(module, "device_available", lambda _: nbytes)


def test_the_context_is_the_trained_one_if_it_fits(opened, device, monkeypatch):
    file, model = opened
    free(monkeypatch, LONG)
    assert context_of(device, file, model) == model.context > DEFAULT_CONTEXT


@pytest.mark.parametrize("nbytes", [4 << 30, 9 << 29])
def test_a_context_that_does_not_fit_becomes_the_longest_one_that_does(opened, device, monkeypatch, nbytes):
    file, model = opened
    free(monkeypatch, nbytes)
    context = context_of(device, file, model)
    assert DEFAULT_CONTEXT < context < model.context
    result = loaded(device, file, model)
    assert result.context == context
    assert result.fits
    assert result.needed > nbytes / 2


def test_a_draft_model_leaves_a_shorter_context_that_fits(opened, device, monkeypatch):
    file, model = opened
    free(monkeypatch, 9 << 30)
    companions = Companions(draft=(file, model))
    context = context_of(device, file, model, companions=companions)
    assert DEFAULT_CONTEXT <= context < context_of(device, file, model)
    options = with_context(device, file, model, companions=companions, drafts=3)
    assert options["context"] == context
    assert fit(device, file, model, companions, chunk_size=64, **options).fits


def test_with_little_memory_the_context_has_its_minimum_and_fit_refuses(opened, device, monkeypatch):
    file, model = opened
    free(monkeypatch, 100 << 20)
    assert context_of(device, file, model) == DEFAULT_CONTEXT
    assert not loaded(device, file, model).fits


def test_caches_are_bounded_if_free_memory_is_unknown(opened, device, monkeypatch):
    file, model = opened
    free(monkeypatch, None)
    context = context_of(device, file, model)
    assert DEFAULT_CONTEXT <= context <= model.context
    config_bytes = loaded(device, file, model).state
    assert config_bytes <= module.UNKNOWN


@pytest.mark.parametrize(("drafts", "projector"), [(False, 0), (False, 1000), (True, 0)])
def test_the_context_grows_with_each_byte_that_its_pages_need(opened, device, monkeypatch, drafts, projector):
    """A draft model has its own weights, and pages of each sequence."""
    file, model = opened
    page_bytes, _ = CacheConfig.of(model).each(model.caches, model.states)
    tokens, models = 6 * module.STEP, 1 + drafts
    pages = tokens // PAGE * page_bytes * (1 + 3 * drafts)
    nbytes = math.ceil((models * module.weights_bytes(device, file, model) + projector + pages) / module.SHARE)
    companions = Companions(draft=(file, model) if drafts else None, projector=projector)
    for less, context in ((0, tokens), (2, tokens - module.STEP)):
        free(monkeypatch, nbytes - less)
        assert context_of(device, file, model, companions=companions, slots=3) == context


@pytest.mark.parametrize("limit", ["max_binding", "max_buffer"])
def test_a_device_binds_the_keys_of_the_context(opened, monkeypatch, limit):
    file, model = opened
    free(monkeypatch, LONG)
    nbytes = 8 * module.STEP // PAGE * CacheConfig.of(model).page_bytes(model.caches[0])
    assert context_of(virtual(**{limit: nbytes}), file, model) == 8 * module.STEP
    assert context_of(virtual(**{limit: nbytes - 1}), file, model) == 7 * module.STEP


@pytest.mark.parametrize(
    ("options", "pages", "context", "tokens"),
    [
        ({}, 100_000, 10_000, 10_000),
        ({}, 157, 10_000, 10_000),
        ({}, 156, 9216, 9216),
        ({}, 3, 4096, 4096),
        ({"context": 300}, None, 300, 300),
        ({"context": 300, "tokens": 900}, None, 300, 900),
        ({"tokens": 900}, None, 900, 900),
        ({"tokens": 20_000}, None, 10_000, 20_000),
    ],
)
def test_the_default_context_is_a_round_number_or_that_of_the_training(options, pages, context, tokens):
    model = SimpleNamespace(context=10_000, caches=("keys",))
    found = module.completed(model, options, lambda: pages)
    assert (found["context"], found["tokens"]) == (context, tokens)
    assert module.completed(SimpleNamespace(context=None, caches=()), {}, lambda: 0)["context"] is None


NEEDS = ("weights", "adapters", "cache", "state", "scratch", "draft", "projector")


@pytest.mark.parametrize("host", [0, 50])
def test_a_model_fits_if_there_is_memory_for_all_its_parts(host):
    fit = Fit(None, **{name: 1 << n for n, name in enumerate(NEEDS)}, available=127, host=host, host_available=host)
    fit.check()
    assert fit.needed == 127 and fit.fits
    assert {*fit.parts} == {*NEEDS} - {"cache"}
    assert {*replace(fit, adapters=0, draft=0, projector=0).parts} == {"weights", "state", "scratch"}
    for less in (replace(fit, available=126), replace(fit, host=51)):
        assert not less.fits
        with pytest.raises(OutOfMemory, match="127 bytes"):
            less.check()
    assert replace(fit, available=None, host_available=None).fits


def test_the_pool_of_tokens_bounds_the_context(opened):
    file, model = opened
    assert context_of(None, file, model, tokens=777) == 777


def test_a_recurrent_model_has_no_limit():
    with opened_layers("rwkv7-0.1b-q4_k_m", EVERY) as file:
        assert context_of(None, file, load_model(file)) is None
        assert loaded(None, file, load_model(file)).context is None


@pytest.mark.parametrize(("tokens", "pages"), [(1, 8), (512, 8), (513, 64), (4096, 64), (4097, 512), (32768, 512)])
def test_decode_plans_are_for_the_tokens_in_use_and_not_for_the_whole_context(opened, tokens, pages):
    _, model = opened
    config = CacheConfig.of(model, context=32768)
    caches = GpuKVCache(SimpleNamespace(buffer=lambda *_: None), model.caches, config)
    assert caches.plan_pages(Batch.of([(0, tokens - 1, [5])])) == pages
    assert caches.plan_pages(Batch.of([(0, 0, [5, 6])])) == 512


@pytest.mark.parametrize("name", ["falcon-h1-3.1b-q4_k_m", "llama-8b-q4_k_m"])
def test_the_default_cache_holds_the_pages_of_a_whole_chat_in_addition_to_states(name):
    """A chat of 20,000 tokens of Falcon-H1 has 622 MiB of pages; its states take 130 MiB each."""
    with opened_layers(name, EVERY) as file:
        model = load_model(file)
    config = CacheConfig.of(model, context=20_000)
    pages, state = config.each(model.caches, model.states)
    assert config.cache_bytes >= config.max_pages * pages + 4 * state
    own = CacheConfig.of(model, context=20_000, cache_bytes=300 << 20)
    assert own.cache_bytes == 300 << 20
    short = CacheConfig.of(model, context=512)
    assert short.checkpoints == config.checkpoints, "pages take no states"


@pytest.mark.parametrize(
    ("name", "states"),
    [
        ("rwkv7-0.4b-q4_k_m", 41),
        ("granite4-h-tiny-7b-q4_k_m", 16),
        ("falcon-h1-3.1b-q4_k_m", 7),
        ("mamba2-2.7b-q4_k_m", 6),
    ],
)
def test_a_chat_has_room_for_16_states_by_default_up_to_one_gibibyte(name, states):
    with opened_layers(name, EVERY) as file:
        assert CacheConfig.of(load_model(file)).checkpoints == states


def test_states_that_a_kernel_cannot_bind_are_fewer_with_fewer_steps_in_flight():
    """256 sequences of Qwen3.5 9B have states of 2 MiB in a layer: four of each sequence are over a binding."""
    h200 = SimpleNamespace(capabilities=LIMITS["h200"])
    with opened_layers("qwen3.5-9b-q4_k_m", EVERY) as file:
        model = load_model(file)
    for slots, ahead in ((64, 8), (256, 1), (400, 0)):
        config = CacheConfig.of(model, slots=slots, context=64, look_ahead=8, cache_bytes=0)
        assert within_bindings(h200, model, config).look_ahead == ahead
    with pytest.raises(OutOfMemory, match="load with fewer sequences"):
        within_bindings(h200, model, CacheConfig.of(model, slots=600, context=64, cache_bytes=0))
    with pytest.raises(OutOfMemory):  # the parts of a model have the same number of states
        within_bindings(h200, model, CacheConfig.of(model, slots=256, context=64, cache_bytes=0), whole=False)


@pytest.mark.parametrize(
    ("nbytes", "fragment", "rows"),
    [
        (module.AMPLE, 16, module.LONG_CHUNK), (module.AMPLE - 1, 16, DEFAULT_CHUNK), (None, 16, DEFAULT_CHUNK),
        (module.AMPLE, 0, DEFAULT_CHUNK),
    ],
)  # fmt: skip
def test_steps_are_longer_on_matrix_units_with_ample_memory(monkeypatch, nbytes, fragment, rows):
    free(monkeypatch, nbytes)
    assert default_chunk(SimpleNamespace(capabilities=SimpleNamespace(fragment=fragment)), None) == rows
    assert default_chunk(SimpleNamespace(), SimpleNamespace(chunk_size=96)) == 96


def test_weights_get_the_memory_that_states_intermediates_and_samplers_leave(opened, monkeypatch):
    file, model = opened
    device, budgets = VirtualDevice(LIMITS["h200"]), []
    free(monkeypatch, LONG)
    monkeypatch.setattr(module, "_scratch", lambda *_: 1000)
    monkeypatch.setattr(module, "place", lambda *given: budgets.append(given[-1]))
    config = CacheConfig.of(model, chunk_size=64, slots=3, context=64, tokens=64)
    module.placement_of(device, file, model, config, 64, Offload(gpu_memory=1 << 28), 500)
    sampler = GpuSamplerState.nbytes(3, model.vocabulary)
    assert budgets == [(1 << 28) - 500 - config.total(model.caches, model.states) - 1000 - sampler]
