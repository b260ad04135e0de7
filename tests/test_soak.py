"""The short form of `tests.soak`: after many requests and many models, no resource is missing."""

import gc
from typing import Any

import pytest

import rwkv_gpu
from tests.golden_files import golden
from tests.process import alive_on_gpus, descriptors, resident
from tests.soak import KINDS, soak

LOADS = 50
GROWTH = 24 << 20  # bytes that allocators may keep
ROUNDS = 4  # maximum growth: the memory of a software GPU's compiler varies by tens of MB, a leak grows in each round


@pytest.mark.parametrize("name", ["tiny-rwkv7.gguf", "tiny-llama.gguf"])
def test_requests_of_all_kinds_leave_nothing_behind(name):
    with rwkv_gpu.load(golden(name), device="cpu", sequences=8, chunk_size=64) as llm:
        ended, wrong = soak(llm, requests=4 * len(KINDS), threads=8)
    assert wrong == []
    assert sum(ended.values()) == 32 + 4 * len(KINDS)


def test_requests_of_all_kinds_leave_nothing_behind_on_a_device(adapter):
    with rwkv_gpu.load(golden("tiny-rwkv7.gguf"), device=adapter.name, sequences=4, chunk_size=32) as llm:
        _, wrong = soak(llm, requests=2 * len(KINDS), threads=4)
    assert wrong == []


def used_after(loads: int, name: str, **options: Any) -> tuple[int, int, int]:
    """Returns memory, descriptors and Python objects after further models."""
    before = alive_on_gpus()  # commands of devices that other tests lost are never freed
    for _ in range(loads):
        with rwkv_gpu.load(golden(f"{name}.gguf"), **options) as llm:
            llm.generate("The sea", max_tokens=3)
        del llm
        gc.collect()
        assert alive_on_gpus() == before
    return resident(), descriptors(), len(gc.get_objects())


def check_flat(loads: int, name: str, *, warm: int, **options: Any) -> None:
    memory, files, objects = used_after(warm, name, **options)  # from here on, nothing is made for the first time
    grown = []
    while len(grown) < ROUNDS and (not grown or grown[-1] > GROWTH):
        more_memory, more_files, more_objects = used_after(loads, name, **options)
        assert more_files <= files
        assert more_objects <= objects + 100 * (len(grown) + 1)
        grown.append(more_memory - memory)
        memory = more_memory
    assert grown[-1] <= GROWTH, grown


def test_memory_that_grows_in_each_round_is_reported(monkeypatch):
    kept = []

    def leaking(loads: int, _: str) -> tuple[int, int, int]:
        kept.append(loads)
        return GROWTH // 4 * sum(kept) + len(kept), 0, 0  # a little over 6 MB a model

    monkeypatch.setitem(globals(), "used_after", leaking)
    with pytest.raises(AssertionError):
        check_flat(4, "any", warm=3)
    assert len(kept) == 1 + ROUNDS


def test_memory_that_is_freed_again_is_not_reported(monkeypatch):
    memory = iter([100 << 20, 140 << 20, 138 << 20])
    monkeypatch.setitem(globals(), "used_after", lambda *_: (next(memory), 0, 0))
    check_flat(4, "any", warm=3)
    assert list(memory) == []


def test_loading_and_closing_50_models_keeps_memory_flat():
    check_flat(LOADS, "tiny-rwkv7", warm=4, device="cpu")


@pytest.mark.parametrize("name", ["tiny-llama", "tiny-granitehybrid"])
def test_loading_and_closing_models_on_a_device_keeps_memory_flat(adapter, name):
    check_flat(4, name, warm=3, device=adapter.name)


def test_loading_and_closing_models_on_two_devices_keeps_memory_flat(adapter):
    check_flat(4, "tiny-granitehybrid", warm=3, device=[adapter.name] * 2, split=[1, 1])


@pytest.mark.parametrize("devices", [1, 2])
def test_a_closed_model_gives_its_devices_back_without_the_collector(adapter, devices):
    """Otherwise, a program that loads models in turn grows until the garbage collector runs, which may be late."""
    split = {"split": [1] * devices} if devices > 1 else {}
    gc.collect()
    before = alive_on_gpus()
    gc.disable()
    try:
        with rwkv_gpu.load(golden("tiny-llama.gguf"), device=[adapter.name] * devices, **split) as llm:
            llm.generate("The sea", max_tokens=2)
            assert alive_on_gpus()["Device"] == before.get("Device", 0) + devices
        del llm
        assert alive_on_gpus() == before
    finally:
        gc.enable()
