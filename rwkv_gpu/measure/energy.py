"""Measures a device's energy if the system reports it: by NVIDIA's NVML, a GPU's hwmon, or a processor's RAPL.

A meter counts joules from an arbitrary start. If a driver reports only power, a thread integrates it.
"""

import ctypes
import itertools
import sys
import threading
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, Self

SYS = Path("/sys")
READING_INTERVAL = 0.02  # seconds between two power readings
VENDORS = {"0x1002": ("amd", "radeon"), "0x8086": ("intel", "arc(tm)"), "0x10de": ("nvidia", "geforce")}
NVML = "nvml.dll" if sys.platform == "win32" else "libnvidia-ml.so.1"


class Meter:
    """Joules from a counter that wraps at `wraps`, or integrated from watts. Leaving a `with` stops the thread."""

    def __init__(
        self, source: str, read: Callable[[], float], *, power: bool = False, wraps: float | None = None
    ) -> None:
        self.source = source  # origin of the numbers
        self._read, self._power, self._wraps = read, power, wraps
        self._joules, self._at, self._last = 0.0, time.perf_counter(), read()
        self._lock = threading.Lock()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stopped.set()
        self._thread.join()

    def joules(self) -> float:
        """Energy since the start."""
        with self._lock:
            now, value = time.perf_counter(), self._read()
            if self._power:
                self._joules += (self._last + value) / 2 * (now - self._at)
            else:
                gone = value - self._last
                self._joules += gone + self._wraps if gone < 0 and self._wraps else max(gone, 0.0)
            self._at, self._last = now, value
            return self._joules

    def _watch(self) -> None:
        while not self._stopped.wait(READING_INTERVAL if self._power else 1.0):
            self.joules()


def find_meter(device: str, root: Path = SYS, load: Callable[[str], Any] = ctypes.CDLL) -> Meter | None:
    """The meter of a device by name, or of the processor for `cpu`; None if the system reports nothing."""
    found = rapl(root) if device == "cpu" else itertools.chain(nvml(device, load), hwmon(device, root))
    return next(found, None)


def nvml(device: str, load: Callable[[str], Any]) -> Iterator[Meter]:
    """NVIDIA's library, if exactly one GPU has the device's name."""
    try:
        library = load(NVML)
    except OSError:
        return
    if library.nvmlInit_v2() != 0:
        return
    count = ctypes.c_uint()
    library.nvmlDeviceGetCount_v2(ctypes.byref(count))
    handles = []
    for index in range(count.value):
        handle, name = ctypes.c_void_p(), ctypes.create_string_buffer(96)
        if library.nvmlDeviceGetHandleByIndex_v2(index, ctypes.byref(handle)) == 0:
            library.nvmlDeviceGetName(handle, name, 96)
            if name.value.decode(errors="replace").lower() in device.lower():
                handles.append(handle)
    if len(handles) != 1:  # no GPU, or several of this name, which cannot be distinguished
        return
    [handle] = handles
    for function, kind, power in (
        ("nvmlDeviceGetTotalEnergyConsumption", ctypes.c_ulonglong, False),
        ("nvmlDeviceGetPowerUsage", ctypes.c_uint, True),
    ):
        call = getattr(library, function)
        if call(handle, ctypes.byref(kind())) == 0:
            yield Meter("NVML", partial(_milli, call, handle, kind), power=power)


def _milli(call: Any, handle: ctypes.c_void_p, kind: Any) -> float:
    value = kind()
    call(handle, ctypes.byref(value))
    return float(value.value) / 1000


def hwmon(device: str, root: Path) -> Iterator[Meter]:
    """The sensors of the vendor's only graphics card."""
    cards = []
    for vendor in sorted(root.glob("class/drm/card*/device/vendor")):
        names = VENDORS.get(_text(vendor), ())
        if any(name in device.lower() for name in names):
            cards.append(vendor.parent)
    if len({card.resolve() for card in cards}) != 1:
        return
    for name, power in (("energy1_input", False), ("power1_average", True), ("power1_input", True)):
        for sensor in sorted(cards[0].glob(f"hwmon/hwmon*/{name}")):
            if _micro(sensor) is not None:
                yield Meter("hwmon", partial(_joules, sensor), power=power)


def rapl(root: Path) -> Iterator[Meter]:
    """The processor packages. On most systems only root can read them."""
    zones = [
        zone
        for zone in sorted(root.glob("class/powercap/*rapl:*"))
        if _text(zone / "name").startswith("package") and _micro(zone / "energy_uj") is not None
    ]
    if len(zones) == 1:
        wraps = _micro(zones[0] / "max_energy_range_uj")
        yield Meter("RAPL", partial(_joules, zones[0] / "energy_uj"), wraps=wraps)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return ""


def _joules(path: Path) -> float:
    """A reading; a lost sensor reads as 0."""
    return _micro(path) or 0.0


def _micro(path: Path) -> float | None:
    text = _text(path)
    return int(text) / 1e6 if text.isdigit() else None
