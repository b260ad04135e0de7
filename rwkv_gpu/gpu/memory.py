"""How much memory a device can still give, where that can be known."""

import os

from .device import Device
from .vram import free_vram

MEMINFO = "/proc/meminfo"


def host_available() -> int | None:
    """Bytes of main memory that programs may still take."""
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
    """Bytes that the device can give; None for a GPU with memory of its own whose driver does not say."""
    return free_vram(device.adapter.name) if device.adapter.kind == "DiscreteGPU" else host_available()
