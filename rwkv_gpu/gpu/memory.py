"""The free memory of a device, if it can be determined."""

import os

from .device import Device
from .vram import free_vram

MEMINFO = "/proc/meminfo"


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
