"""Tests of `--device` with several devices."""

import pytest

from rwkv_gpu.errors import NoAdapter
from rwkv_gpu.gpu import adapters
from rwkv_gpu.gpu.adapters import Adapter, several


def adapter(index: int, backend: str, kind: str = "DiscreteGPU") -> Adapter:
    return Adapter(index, f"GPU {index}", backend, kind, "")


@pytest.fixture
def machine(monkeypatch):
    found = [adapter(0, "Vulkan"), adapter(1, "Vulkan"), adapter(2, "Vulkan", "CPU"), adapter(3, "D3D12")]
    monkeypatch.setattr(adapters, "list_adapters", lambda: found)
    return found


def test_one_device_stays_one():
    assert several("auto") == ["auto"]
    assert several("Apple M4") == ["Apple M4"]


@pytest.mark.usefixtures("machine")
def test_a_list_names_each():
    assert several("0, 1") == ["0", "1"]
    assert several("cpu,cpu") == ["cpu", "cpu"]
    with pytest.raises(NoAdapter, match="no device 7"):
        several("0,7")


def test_all_means_each_hardware_gpu_once(machine):
    assert several("all") == ["0", "1"]
    del machine[:2], machine[-1]
    with pytest.raises(NoAdapter, match="no hardware GPU"):
        several("all")
