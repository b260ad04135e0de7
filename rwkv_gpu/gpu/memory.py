"""The free memory of a device, as reported by the system, NVIDIA's management library or Linux's amdgpu."""

import ctypes
import os
import sys
from pathlib import Path
from typing import Any

from .device import Device

MEMINFO = "/proc/meminfo"
DRM = Path("/sys/class/drm")
AMD = "0x1002"  # the PCI vendor
NAME_LENGTH = 96


def host_available() -> int | None:
    """Free bytes of main memory."""
    try:
        with open(MEMINFO, encoding="ascii") as file:
            for line in file:
                if line.startswith("MemAvailable:"):
                    return int(line.split()[1]) * 1024
    except OSError:
        pass
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, ValueError, OSError):
        return None


def device_available(device: Device) -> int | None:
    """Free bytes for a device; None for a discrete GPU whose driver does not report it."""
    return free_vram(device.adapter.name) if device.adapter.kind == "DiscreteGPU" else host_available()


class NvmlMemory(ctypes.Structure):
    """nvmlMemory_t"""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


def free_vram(name: str) -> int | None:
    """Free bytes of the GPU with this name, the minimum if there are several; None if no source reports it."""
    if "NVIDIA" in name:
        return nvidia_free(name, _nvml())
    if "AMD" in name or "Radeon" in name:
        return amd_free(DRM)
    return None


def _nvml() -> Any:
    """NVIDIA's management library, which comes with its driver."""
    try:
        return ctypes.CDLL("nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1")
    except OSError:
        return None


def nvidia_free(name: str, nvml: Any) -> int | None:
    """Free bytes as reported by the library, whose functions return 0 for success."""
    if nvml is None or nvml.nvmlInit_v2():
        return None
    try:
        count, found = ctypes.c_uint(), []
        if nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)):
            return None
        for index in range(count.value):
            handle, label, memory = ctypes.c_void_p(), ctypes.create_string_buffer(NAME_LENGTH), NvmlMemory()
            failed = (
                nvml.nvmlDeviceGetHandleByIndex_v2(ctypes.c_uint(index), ctypes.byref(handle))
                or nvml.nvmlDeviceGetName(handle, label, ctypes.c_uint(NAME_LENGTH))
                or nvml.nvmlDeviceGetMemoryInfo(handle, ctypes.byref(memory))
            )
            if not failed:
                found.append((label.value.decode(errors="replace"), memory.free))
    finally:
        nvml.nvmlShutdown()
    alike = [free for label, free in found if label == name] or [free for _, free in found[:1] if len(found) == 1]
    return min(alike, default=None)


def amd_free(folder: Path) -> int | None:
    """Free bytes as reported by Linux's driver, the minimum over all cards, as names do not distinguish them."""
    found = []
    for card in folder.glob("card*/device"):
        try:
            if (card / "vendor").read_text().strip() == AMD:
                total, used = (int((card / f"mem_info_vram_{what}").read_text()) for what in ("total", "used"))
                found.append(total - used)
        except (OSError, ValueError):
            continue
    return min(found, default=None)
