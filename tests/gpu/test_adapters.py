"""Tests of the choice of an adapter."""

from types import SimpleNamespace

import pytest
import wgpu

from rwkv_gpu.errors import BadInput, NoAdapter
from rwkv_gpu.gpu.adapters import Adapter, choose, list_adapters, several

SOFT = Adapter(0, "llvmpipe (LLVM 15)", "Vulkan", "CPU", "Mesa")
SOFT_GL = Adapter(1, "llvmpipe (LLVM 15)", "OpenGL", "CPU", "Mesa")
INTEGRATED = Adapter(2, "Intel Iris", "Vulkan", "IntegratedGPU", "")
DISCRETE_GL = Adapter(3, "GeForce RTX 4090", "OpenGL", "DiscreteGPU", "")
DISCRETE = Adapter(4, "GeForce RTX 4090", "Vulkan", "DiscreteGPU", "")
ALL = [SOFT, SOFT_GL, INTEGRATED, DISCRETE_GL, DISCRETE]


@pytest.mark.parametrize(
    ("adapters", "wanted", "chosen"),
    [
        (ALL, "auto", DISCRETE),
        (ALL[:3], "auto", INTEGRATED),
        (ALL[:2], "auto", None),
        ([], "auto", None),
        (ALL, "cpu", None),
        (ALL, "CPU", None),
        (ALL, "0", SOFT),
        (ALL, "1", SOFT_GL),
        (ALL, "llvm", SOFT),
        (ALL, "geforce", DISCRETE),
        (ALL, "4090", DISCRETE),
        (ALL, "opengl", DISCRETE_GL),
        (ALL, "iris", INTEGRATED),
    ],
)
def test_a_device_name_chooses_the_expected_adapter(adapters, wanted, chosen):
    assert choose(adapters, wanted).adapter == chosen


@pytest.mark.parametrize("wanted", ["5", "99", "radeon", "-1", "9" * 10])
def test_an_unknown_device_names_the_known_ones(wanted):
    with pytest.raises(NoAdapter) as error:
        choose(ALL, wanted)
    assert wanted in str(error.value)
    assert "0 = llvmpipe" in str(error.value)
    assert "\n" not in str(error.value)


def test_an_index_of_thousands_of_digits_is_unknown_too():
    with pytest.raises(NoAdapter, match="no device 9999"):
        choose(ALL, "9" * 5000)


def test_without_adapters_the_remedy_is_a_driver():
    with pytest.raises(NoAdapter, match="apt install mesa-vulkan-drivers"):
        choose([], "nvidia")
    assert "apt install mesa-vulkan-drivers" in choose([], "auto").reason


def test_a_software_gpu_is_used_only_if_it_is_named():
    choice = choose(ALL[:2], "auto")
    assert choice.adapter is None
    assert "only when named" in choice.reason


def test_listing_devices_prints_nothing(adapter, capfd):
    capfd.readouterr()
    found = list_adapters()
    assert adapter in found
    assert [a.index for a in found] == list(range(len(found)))
    assert capfd.readouterr() == ("", "")


@pytest.mark.parametrize(
    ("backend", "vendor", "description", "driver"),
    [
        ("Vulkan", "NVIDIA", "570.86", "570.86"),
        ("D3D12", "31.0.15.5222", "", "31.0.15.5222"),
        ("Metal", "", "", ""),
    ],
)
def test_the_version_of_a_driver_is_where_its_backend_has_it(monkeypatch, backend, vendor, description, driver):
    """`rwkv-gpu tune` uses the version to detect that results were measured with another driver."""
    info = {"device": "GPU", "adapter_type": "CPU", "backend_type": backend}
    handle = SimpleNamespace(
        info={**info, "vendor": vendor, "description": description},
        features=(),
        limits={"max-storage-buffer-binding-size": 1 << 27},
    )
    monkeypatch.setattr(wgpu.gpu, "enumerate_adapters_sync", lambda: [handle])
    [found] = list_adapters()
    assert found.driver == driver


@pytest.mark.parametrize("wanted", ["0,", ",0", "cpu,,cpu", ","])
def test_a_list_with_an_empty_name_is_refused(wanted):
    with pytest.raises(BadInput, match="without a name"):
        several(wanted)
