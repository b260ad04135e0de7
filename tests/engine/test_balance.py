"""Tests of the rule that splits layers among devices."""

import itertools
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rwkv_gpu.engine import bus
from rwkv_gpu.engine.balance import Load, balanced, filled
from rwkv_gpu.engine.bus import memory_rate
from rwkv_gpu.gpu.device import Buffer
from rwkv_gpu.gpu.virtual import LIMITS, HostDevice
from rwkv_gpu.ops.recorder import Recorder


def load(room: float, rate: float, sizes: list[int]) -> Load:
    return Load(room, sizes, [size / rate for size in sizes])


def slowest(loads: list[Load], counts: tuple[int, ...] | list[int]) -> float:
    """Returns the time of the slowest part; infinite if a part does not fit."""
    took, at = [], 0
    for one, count in zip(loads, counts, strict=True):
        fits = sum(one.sizes[at : at + count]) <= one.room
        took.append(sum(one.seconds[at : at + count]) if fits and count else float("inf"))
        at += count
    return max(took)


def test_layers_are_split_by_the_speed_of_devices():
    sizes = [10] * 24
    assert balanced([load(1000, 1, sizes), load(1000, 1, sizes)]) == [12, 12]
    assert balanced([load(1000, 3, sizes), load(1000, 1, sizes)]) == [18, 6]
    assert balanced([load(1000, 1, sizes), load(1000, 2, sizes), load(1000, 1, sizes)]) == [6, 12, 6]


def test_memory_bounds_the_part_of_a_fast_device():
    sizes = [10] * 24
    assert balanced([load(100, 9, sizes), load(1000, 1, sizes)]) == [10, 14]
    assert balanced([load(100, 9, sizes), load(100, 1, sizes)]) is None


def test_a_slow_device_has_at_least_one_layer():
    sizes = [10] * 4
    assert balanced([load(1000, 1000, sizes), load(1000, 1, sizes)]) == [3, 1]
    assert balanced([load(1000, 1, sizes)] * 5) is None


@pytest.mark.parametrize("seed", range(20))
def test_no_other_split_that_fits_is_faster(seed):
    random = np.random.default_rng(seed)
    sizes = random.integers(1, 20, 9).tolist()
    loads = [load(float(random.integers(20, 120)), float(random.uniform(1, 9)), sizes) for _ in range(3)]
    every = [c for c in itertools.product(range(1, 10), repeat=3) if sum(c) == len(sizes)]
    best = min(slowest(loads, counts) for counts in every)
    found = balanced(loads)
    if found is None:
        assert best == float("inf")
    else:
        assert sum(found) == len(sizes)
        assert slowest(loads, found) == best


def test_filling_takes_chunks_in_order_and_returns_the_number_taken():
    sizes = [5, 5, 5, 9]
    assert filled([load(12, 1, sizes), load(20, 1, sizes)]) == [2, 2]
    assert filled([load(30, 1, sizes), load(20, 1, sizes)]) == [4, 0]
    assert filled([load(12, 1, sizes), load(6, 1, sizes)]) == [2, 1]


def test_the_rate_of_numpy_is_measured():
    assert memory_rate(None) > 1e7


def test_a_rate_is_that_of_the_fastest_of_several_reads(monkeypatch):
    seconds = iter([0.0, 5.0, 10.0, 13.0, 20.0, 20.5, 30.0, 32.0])  # the first is not faster
    monkeypatch.setattr(bus, "time", SimpleNamespace(perf_counter=lambda: next(seconds)))
    assert memory_rate(None) == bus.READ_NUMPY / 0.5
    monkeypatch.setattr(Recorder, "finish", lambda *_: None)
    monkeypatch.setattr(Buffer, "free", lambda _: None)
    for binding, software, nbytes in (
        (1 << 25, False, 1 << 25),
        ((1 << 25) - 4, False, 1 << 24),
        (1 << 40, True, 1 << 24),
    ):
        laps = iter([3.0, 0.25, 1.0])
        monkeypatch.setattr(bus, "time_replay", lambda *_, laps=laps: next(laps))
        device = HostDevice(replace(LIMITS["h200"], max_binding=binding, software=software))
        assert memory_rate(device) == nbytes / 0.25
        assert max(buffer.nbytes for buffer in device.buffers) == nbytes
