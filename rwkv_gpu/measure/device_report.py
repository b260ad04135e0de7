"""A device's report: all that an issue about an unknown GPU needs, in one file that is written as the doctor works.

The file is JSON Lines: what the machine and the device are, a line for each trial, then the verdict. A trial's line is
begun before the trial runs. If the driver ends the process, the last line is cut short and names the kernel. If the
user does, or an error, one more line says so.
"""

import json
import math
import os
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from threading import RLock
from typing import TextIO

from ..errors import NoMatrixUnits
from ..gpu.adapters import Adapter
from ..gpu.device import Device
from ..gpu.matrix_units import fragment_of
from ..gpu.shader import fingerprint
from ..kernels.tuning import Tuning
from .doctor import Report
from .trials import Outcome, Trial

PACKAGES = "rwkv-gpu", "wgpu", "numpy"


class DeviceReport:
    """The file, open for writing. It holds no paths, no names of users and no text of models."""

    def __init__(self, file: TextIO) -> None:
        self._file = file
        self._began: float | None = None  # when the line that has no end yet was
        self._lock = RLock()  # a signal writes from a thread of its own
        self._line({"kind": "system", **system()})

    def listed(self, adapters: Sequence[Adapter]) -> None:
        """All that wgpu found: a GPU has several backends, and one that is missing is a report, too."""
        self._line({"kind": "adapters", "found": [f"{adapter}: {adapter.driver}" for adapter in adapters]})

    def opening(self, adapter: Adapter) -> None:
        """The adapter, before anything is asked of the driver."""
        self._line({"kind": "adapter", **adapter.facts()})

    def opened(self, device: Device, tuning: Tuning, trials: int, options: Mapping[str, object]) -> None:
        """What kernels may rely on, how they are configured, and which of them are tried."""
        self._line({"kind": "device", "capabilities": asdict(device.capabilities), "tuning": repr(tuning)})
        self._line({"kind": "matrix_units", "offered": _matrix_units(device.adapter)})
        self._line({"kind": "plan", "trials": trials, "shaders": fingerprint(), **options})

    def probes(self) -> None:
        """The first shader is next: without the end of its line."""
        self._begin({"kind": "lanes"})

    def probed(self, outcomes: Sequence[Outcome]) -> None:
        """The rest of the line that `probes` wrote."""
        self._end({"found": [{"what": o.what, "variant": o.variant, **_result(o)} for o in outcomes]})

    def begins(self, trial: Trial) -> None:
        """Which trial is next: without the end of its line."""
        self._begin({"kind": "trial", "op": trial.op, "what": trial.what, "variant": trial.variant})

    def ended(self, outcome: Outcome) -> None:
        """The rest of the line that `begins` wrote."""
        self._end(_result(outcome))

    def failed(self, error: Exception) -> None:
        """Why there are no more lines. The trial that it ended keeps its line, cut short."""
        self._last({"kind": "error", "type": type(error).__name__, "message": _public(str(error))})

    def stopped(self, signal: str) -> None:
        """The user ended the doctor: a trial whose line is cut short is no crash."""
        self._last({"kind": "stopped", "signal": signal})

    def verdict(self, report: Report) -> None:
        """What all of it means."""
        counts = {"outcomes": len(report.outcomes), "wrong": len(report.wrong), "slow": report.slow}
        self._line({"kind": "verdict", **counts})

    def _begin(self, names: Mapping[str, object]) -> None:
        with self._lock:
            self._write(json.dumps(names).removesuffix("}"))
            self._began = time.perf_counter()

    def _end(self, result: Mapping[str, object]) -> None:
        with self._lock:
            assert self._began is not None
            total = 1e3 * (time.perf_counter() - self._began)  # with compiling, which takes FXC minutes
            self._write(", " + json.dumps({**result, "total_milliseconds": round(total, 1)}).removeprefix("{") + "\n")
            self._began = None

    def _last(self, data: Mapping[str, object]) -> None:
        with self._lock:
            if self._began is not None:
                self._write("\n")
            self._line(data)

    def _line(self, data: Mapping[str, object]) -> None:
        self._write(json.dumps(data) + "\n")

    def _write(self, text: str) -> None:
        """A driver that crashes, and one that takes the system with it, leaves what was written before."""
        with self._lock:
            self._file.write(text)
            self._file.flush()
            with suppress(OSError):  # a pipe
                os.fsync(self._file.fileno())


def system() -> dict[str, object]:
    """The operating system, Python and the packages that matter."""
    return {
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": platform.system(),
        "release": platform.release(),
        "version": platform.mac_ver()[0] or platform.version(),  # of macOS, and of Windows, with which GPU drivers come
        "machine": platform.machine(),
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed as a package"


def _matrix_units(adapter: Adapter) -> str:
    """What kernels could use, or why they cannot."""
    try:
        side = fragment_of(adapter)
    except NoMatrixUnits as error:
        return str(error)
    return f"{side}x{side}"


def _public(message: str) -> str:
    """In one line, without the folder that has the user's name."""
    home = os.path.expanduser("~")
    line = " ".join(message.split())
    return line.replace(home, "~") if len(home) > 1 else line


def _result(outcome: Outcome) -> dict[str, object]:
    return {
        "right": outcome.right,
        "error": outcome.error if math.isfinite(outcome.error) else None,
        "allowed": outcome.allowed,
        "milliseconds": round(1e3 * outcome.seconds, 4),
        "refusal": _public(outcome.refusal),
    }
