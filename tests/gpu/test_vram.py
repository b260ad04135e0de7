"""Free memory of discrete GPUs, as reported by their drivers."""

import ctypes
from types import SimpleNamespace

import pytest

from rwkv_gpu.gpu import memory
from rwkv_gpu.gpu.memory import device_available

GIB = 1 << 30


class Nvml:
    """A fake of NVIDIA's library with these GPUs: names, free bytes, and functions that fail."""

    def __init__(self, gpus, failing=()):
        self.gpus, self.failing, self.shut = gpus, failing, 0

    def __getattr__(self, name):
        if name in self.failing:
            return lambda *_: 3
        return getattr(self, f"_{name}")

    def _nvmlInit_v2(self):
        return 0

    def _nvmlShutdown(self):
        self.shut += 1
        return 0

    def _nvmlDeviceGetCount_v2(self, count):
        count._obj.value = len(self.gpus)
        return 0

    def _nvmlDeviceGetHandleByIndex_v2(self, index, handle):
        handle._obj.value = index.value + 100
        return 0

    def _nvmlDeviceGetName(self, handle, label, length):
        assert length.value == ctypes.sizeof(label)
        label.value = self.gpus[handle.value - 100][0].encode()
        return 0

    def _nvmlDeviceGetMemoryInfo(self, handle, memory):
        memory._obj.free = self.gpus[handle.value - 100][1]
        return 0


@pytest.mark.parametrize(
    ("name", "gpus", "free"),
    [
        ("NVIDIA A", [("NVIDIA A", 5 * GIB)], 5 * GIB),
        ("NVIDIA A", [("NVIDIA B", 9 * GIB), ("NVIDIA A", 5 * GIB), ("NVIDIA A", 4 * GIB)], 4 * GIB),
        ("NVIDIA A/PCIe", [("NVIDIA A", 5 * GIB)], 5 * GIB),
        ("NVIDIA C", [("NVIDIA B", 9 * GIB), ("NVIDIA A", 5 * GIB)], None),
        ("NVIDIA A", [], None),
    ],
)
def test_the_free_memory_of_an_nvidia_gpu_is_found_by_its_name(name, gpus, free):
    nvml = Nvml(gpus)
    assert memory.nvidia_free(name, nvml) == free
    assert nvml.shut == 1


@pytest.mark.parametrize("failing", ["nvmlInit_v2", "nvmlDeviceGetCount_v2", "nvmlDeviceGetMemoryInfo"])
def test_free_memory_is_unknown_if_the_library_is_missing_or_fails(failing):
    assert memory.nvidia_free("NVIDIA A", Nvml([("NVIDIA A", GIB)], [failing])) is None
    assert memory.nvidia_free("NVIDIA A", None) is None


def test_the_free_memory_of_an_amd_gpu_is_read_from_linux(tmp_path, monkeypatch):
    for number, (vendor, total, used) in enumerate([("0x1002", 9, 2), ("0x1002", 8, 3), ("0x8086", 1, 0)]):
        card = tmp_path / f"card{number}" / "device"
        card.mkdir(parents=True)
        (card / "vendor").write_text(f"{vendor}\n")
        (card / "mem_info_vram_total").write_text(f"{total * GIB}\n")
        (card / "mem_info_vram_used").write_text(f"{used * GIB}\n")
    (tmp_path / "card9" / "device").mkdir(parents=True)
    monkeypatch.setattr(memory, "DRM", tmp_path)
    adapter = SimpleNamespace(name="AMD Radeon RX 7900 (RADV)", kind="DiscreteGPU")
    assert device_available(SimpleNamespace(adapter=adapter)) == 5 * GIB
    assert memory.amd_free(tmp_path / "nowhere") is None


def test_free_memory_of_other_discrete_gpus_is_unknown_and_integrated_ones_share_main_memory():
    assert device_available(SimpleNamespace(adapter=SimpleNamespace(name="Intel Arc", kind="DiscreteGPU"))) is None
    assert device_available(SimpleNamespace(adapter=SimpleNamespace(name="any", kind="IntegratedGPU"))) > 0
