"""Measures the resources of this process, and those that other processes leave."""

import contextlib
import ctypes
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import ClassVar

import pytest
import wgpu

NEEDS_POSIX = "needs signals, pipes, shells or permissions of POSIX"
SIGNALS = [getattr(signal, name, None) for name in ("SIGINT", "SIGTERM", "SIGHUP")]  # Windows lacks the last
PATIENCE = 280.0  # seconds that a test waits for what must come, on a machine however slow
posix = pytest.mark.skipif(os.name == "nt", reason=NEEDS_POSIX)


def until(condition: Callable[[], object], seconds: float = PATIENCE) -> None:
    """Waits until a condition is true."""
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, "it never came to be so"
        time.sleep(0.005)


def descriptors() -> int:
    """Returns the number of open files of this process, if the system provides it."""
    folder = Path("/proc/self/fd")
    return len(os.listdir(folder)) if folder.exists() else 0


def give_back_freed_memory() -> None:
    """Returns freed memory to the system. glibc keeps it in arenas: a software GPU leaves hundreds of MB there."""
    with contextlib.suppress(OSError, AttributeError):  # there is no such function elsewhere
        ctypes.CDLL("libc.so.6").malloc_trim(0)


def alive_on_gpus() -> dict[str, int]:
    """Counts devices that wgpu-native has not freed, and unreferenced commands that keep a device's memory."""
    if not hasattr(wgpu.diagnostics, "wgpu_native_counts"):  # no GPU was looked for yet
        return {}
    counts = wgpu.diagnostics.wgpu_native_counts.get_dict()
    return {kind: counts[kind]["count"] for kind in ("Device", "CommandBuffer") if counts[kind]["count"]}


def resident() -> int:
    """Returns the bytes of memory that this process uses, if the system provides it."""
    give_back_freed_memory()
    status = Path("/proc/self/statm")
    return int(status.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") if status.exists() else 0


class _Mallinfo(ctypes.Structure):
    """struct mallinfo2 of glibc."""

    _fields_: ClassVar = [(name, ctypes.c_size_t) for name in (
        "arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks", "uordblks", "fordblks", "keepcost",
    )]  # fmt: skip


def allocated() -> int:
    """Returns the bytes that malloc has handed out, if the C library is glibc 2.33 or later."""
    try:
        mallinfo = ctypes.CDLL("libc.so.6").mallinfo2
    except (OSError, AttributeError):
        return 0
    mallinfo.restype = _Mallinfo
    found = mallinfo()
    return int(found.uordblks + found.hblkhd)


def peak() -> int:
    """Returns the peak memory of this process in bytes, if the system provides it."""
    try:
        import resource
    except ImportError:  # on Windows
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * (1 if sys.platform == "darwin" else 1024)
