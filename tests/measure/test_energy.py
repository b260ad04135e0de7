"""Joules from a fake /sys and a fake NVML: counters, summed power, and no result without a source."""

import ctypes
import itertools
import threading
from types import SimpleNamespace

import pytest

from rwkv_gpu.measure import energy
from rwkv_gpu.measure.bench import Result, Timing
from rwkv_gpu.measure.energy import find_meter
from rwkv_gpu.measure.workload import workloads
from tests.process import PATIENCE


def no_library(name):
    raise OSError(name)


class FakeNvml:
    """A fake of NVIDIA's library with some GPUs: `energy` in mJ, None where a GPU lacks it, and `power` in mW."""

    def __init__(self, names, energy=None, power=5000):
        self.names, self.energy, self.power = names, energy, power

    def __call__(self, _name):
        return self

    def nvmlInit_v2(self):
        return 0

    def nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.names)
        return 0

    def nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = index + 1
        return 0

    def nvmlDeviceGetName(self, handle, name, size):
        assert size == 96
        name.value = self.names[handle.value - 1].encode()
        return 0

    def nvmlDeviceGetTotalEnergyConsumption(self, handle, value):
        assert isinstance(handle, ctypes.c_void_p)
        if self.energy is None:
            return 3
        value._obj.value = self.energy
        return 0

    def nvmlDeviceGetPowerUsage(self, _handle, value):
        value._obj.value = self.power
        return 0


def write(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"{text}\n")


def test_nvml_counts_the_energy_of_the_gpu_of_that_name(tmp_path):
    library = FakeNvml(["NVIDIA A100", "NVIDIA H200"], energy=7_000_000)
    meter = find_meter("NVIDIA H200", tmp_path, library)
    assert meter.source == "NVML"
    library.energy += 2500
    assert meter.joules() == 2.5
    library.energy += 500
    assert meter.joules() == 3.0


def test_power_is_added_up_where_energy_is_not_counted(tmp_path, monkeypatch):
    clock, library = iter([100.0, 110.0, 112.0]), FakeNvml(["NVIDIA GeForce GTX 970"])
    monkeypatch.setattr(energy, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    meter = find_meter("NVIDIA GeForce GTX 970", tmp_path, library)
    assert meter.joules() == 50
    library.power = 7000
    assert meter.joules() == 50 + 12


def test_power_is_sampled_even_if_joules_are_not_requested(tmp_path):
    with find_meter("NVIDIA GeForce GTX 970", tmp_path, FakeNvml(["NVIDIA GeForce GTX 970"])) as meter:
        count, often = itertools.count(), threading.Event()
        read = meter._read

        def counted() -> float:
            if next(count) == 3:
                often.set()
            return read()

        meter._read = counted
        assert often.wait(PATIENCE)


@pytest.mark.parametrize("names", [[], ["NVIDIA A100"], ["NVIDIA H200", "NVIDIA H200"]])
def test_a_gpu_that_nvml_does_not_have_or_has_twice_is_not_measured(tmp_path, names):
    assert find_meter("NVIDIA H200", tmp_path, FakeNvml(names, energy=1)) is None


@pytest.mark.parametrize(("sensor", "value"), [("energy1_input", "5000000"), ("power1_average", "9000000")])
def test_hwmon_gives_the_energy_or_the_power_of_a_card(tmp_path, sensor, value):
    card = tmp_path / "class" / "drm" / "card0" / "device"
    write(card / "vendor", "0x1002")
    write(card / "hwmon" / "hwmon3" / sensor, value)
    meter = find_meter("AMD Radeon RX 7900 XTX (RADV NAVI31)", tmp_path, no_library)
    assert meter.source == "hwmon"
    meter.joules()
    write(card / "hwmon" / "hwmon3" / sensor, "8500000")
    assert meter.joules() == 3.5 if sensor == "energy1_input" else meter.joules() > 0
    assert find_meter("Intel Arc A770", tmp_path, no_library) is None


def test_rapl_continues_where_its_counter_begins_again(tmp_path):
    zone = tmp_path / "class" / "powercap" / "intel-rapl:0"
    write(zone / "name", "package-0")
    write(zone / "energy_uj", "9000000")
    write(zone / "max_energy_range_uj", "10000000")
    meter = find_meter("cpu", tmp_path, no_library)
    write(zone / "energy_uj", "500000")
    assert meter.joules() == pytest.approx(1.5)


def test_without_energy_readings_there_is_no_meter(tmp_path):
    assert find_meter("cpu", tmp_path, no_library) is None
    assert find_meter("Apple M4", tmp_path, no_library) is None
    write(tmp_path / "class" / "powercap" / "intel-rapl:0" / "name", "package-0")  # only root may read its energy
    assert find_meter("cpu", tmp_path, no_library) is None


def test_tokens_per_joule_count_all_passes():
    [work] = workloads([0], [10], [0], [1], [512])
    passes = (Timing(1.0, 0.1), Timing(3.0, 0.1))
    assert Result(work, passes, None, None, joules=4.0).tokens_per_joule == 5.0
    assert Result(work, passes, None, None, joules=0.0).tokens_per_joule is None
    assert Result(work, passes, None, None).tokens_per_joule is None
