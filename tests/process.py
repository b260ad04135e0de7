"""The resources that this process uses, and those that other processes leave."""

import contextlib
import ctypes
import os
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest
import wgpu

NEEDS_POSIX = "needs signals, pipes, shells or permissions of POSIX"
PATIENCE = 280.0  # seconds that a test waits for what must come, on a machine however slow
posix = pytest.mark.skipif(os.name == "nt", reason=NEEDS_POSIX)


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Waits until something is so."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be so"
        time.sleep(0.005)


def descriptors() -> int:
    """Open files of this process, where the system tells."""
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.exists() else 0


def give_back_freed_memory() -> None:
    """Has the allocator return what is free. glibc's keeps it in arenas: a software GPU leaves it hundreds of MB."""
    with contextlib.suppress(OSError, AttributeError):  # there is no such function elsewhere
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def alive_on_gpus() -> dict[str, int]:
    """Devices that wgpu-native has not freed, and commands that keep a device's memory though nobody refers to it."""
    if not hasattr(wgpu.diagnostics, "wgpu_native_counts"):  # no GPU was looked for yet
        return {}
    counts = wgpu.diagnostics.wgpu_native_counts.get_dict()
    return {kind: counts[kind]["count"] for kind in ("Device", "CommandBuffer") if counts[kind]["count"]}


def resident() -> int:
    """Bytes of memory that this process uses, where the system tells."""
    give_back_freed_memory()
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0


def peak() -> int:
    """Bytes of memory that this process ever used at a time, where the system tells."""
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
