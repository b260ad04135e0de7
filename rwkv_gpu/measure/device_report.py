"""A device report for issues about an unknown GPU, in one file that is written while the doctor works.

The file is JSON Lines: machine and device, a line per trial, then the verdict. A trial's line is started before the
trial runs. If the driver crashes the process, the last line is cut short and names the kernel. If the user or an error
ends it, one more line reports that.
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
from typing import IO

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
    """The open report file. Contains no paths, user names or text of models."""

    def __init__(self, file: IO[str]) -> None:
        self._file = file
        self._began: float | None = None  # start time of the unfinished line
        self._lock = RLock()  # signals write from another thread
        self._line({"kind": "system", **system()})

    def listed(self, adapters: Sequence[Adapter]) -> None:
        """Records all adapters found by wgpu: a GPU has several backends, and a missing one is informative, too."""
        self._line({"kind": "adapters", "found": [f"{adapter}: {adapter.driver}" for adapter in adapters]})

    def opening(self, adapter: Adapter) -> None:
        """Records the adapter, before the driver is used."""
        self._line({"kind": "adapter", **adapter.facts()})

    def opened(self, device: Device, tuning: Tuning, trials: int, options: Mapping[str, object]) -> None:
        """Records capabilities, tuning, and the selected trials."""
        self._line({"kind": "device", "capabilities": asdict(device.capabilities), "tuning": repr(tuning)})
        self._line({"kind": "matrix_units", "offered": _matrix_units(device.adapter)})
        self._line({"kind": "plan", "trials": trials, "shaders": fingerprint(), **options})

    def probes(self) -> None:
        """Starts the line of the first shader."""
        self._begin({"kind": "lanes"})

    def probed(self, outcomes: Sequence[Outcome]) -> None:
        """Completes the line started by `probes`."""
        self._end({"found": [{"what": o.what, "variant": o.variant, **_result(o)} for o in outcomes]})

    def begins(self, trial: Trial) -> None:
        """Starts the line of the next trial."""
        self._begin({"kind": "trial", "op": trial.op, "what": trial.what, "variant": trial.variant})

    def ended(self, outcome: Outcome) -> None:
        """Completes the line started by `begins`."""
        self._end(_result(outcome))

    def failed(self, error: Exception) -> None:
        """Records why the report ends. The trial that caused it keeps its unfinished line."""
        self._last({"kind": "error", "type": type(error).__name__, "message": _public(str(error))})

    def stopped(self, signal: str) -> None:
        """Records that the user ended the doctor, so that an unfinished line does not count as a crash."""
        self._last({"kind": "stopped", "signal": signal})

    def verdict(self, report: Report) -> None:
        """Records the result of all trials."""
        counts = {"outcomes": len(report.outcomes), "wrong": len(report.wrong), "slow": report.slow}
        self._line({"kind": "verdict", **counts})

    def _begin(self, names: Mapping[str, object]) -> None:
        with self._lock:
            self._write(json.dumps(names).removesuffix("}"))
            self._began = time.perf_counter()

    def _end(self, result: Mapping[str, object]) -> None:
        with self._lock:
            assert self._began is not None
            total = 1e3 * (time.perf_counter() - self._began)  # including compilation, which takes FXC minutes
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
        """Writes and syncs, so that earlier lines survive a crash of the driver or system."""
        with self._lock:
            self._file.write(text)
            self._file.flush()
            with suppress(OSError):  # the file may be a pipe
                os.fsync(self._file.fileno())


def system() -> dict[str, object]:
    """The operating system, Python and relevant packages."""
    return {
        "written": datetime.now(UTC).isoformat(timespec="seconds"),
        "system": platform.system(),
        "release": platform.release(),
        "version": platform.mac_ver()[0] or platform.version(),  # macOS and Windows ship GPU drivers
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
    """The matrix units that kernels could use, or why they cannot."""
    try:
        side = fragment_of(adapter)
    except NoMatrixUnits as error:
        return str(error)
    return f"{side}x{side}"


def _public(message: str) -> str:
    """The message on one line, without the user's home folder."""
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
