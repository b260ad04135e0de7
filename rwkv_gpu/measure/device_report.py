"""A device's report: all that an issue about an unknown GPU needs, in one file that is written as the doctor works.

The file is JSON Lines: what the machine and the device are, a line for each trial, then the verdict. A trial's line is
begun before the trial runs. If the driver ends the process, the last line is cut short and names the kernel.
"""

import json
import math
import platform
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
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
        self._began: float | None = None  # when the trial did whose line has no end yet
        self._line({"kind": "system", **system()})

    def listed(self, adapters: Sequence[Adapter]) -> None:
        """All that wgpu found: a GPU has several backends, and one that is missing is a report, too."""
        self._line({"kind": "adapters", "found": [f"{adapter}: {adapter.driver}" for adapter in adapters]})

    def opening(self, adapter: Adapter) -> None:
        """The adapter, before anything is asked of the driver."""
        self._line({"kind": "adapter", **adapter.facts()})

    def opened(self, device: Device, tuning: Tuning, trials: int) -> None:
        """What kernels may rely on, and how they are configured."""
        self._line({"kind": "device", "capabilities": asdict(device.capabilities), "tuning": repr(tuning)})
        self._line({"kind": "matrix_units", "offered": _matrix_units(device.adapter)})
        self._line({"kind": "plan", "trials": trials, "shaders": fingerprint()})

    def begins(self, trial: Trial) -> None:
        """Which trial is next: without the end of its line."""
        names = {"kind": "trial", "op": trial.op, "what": trial.what, "variant": trial.variant}
        self._write(json.dumps(names).removesuffix("}"))
        self._began = time.perf_counter()

    def ended(self, outcome: Outcome) -> None:
        """The rest of the line that `begins` wrote."""
        assert self._began is not None
        total = 1e3 * (time.perf_counter() - self._began)  # with compiling, which takes FXC minutes
        result = {**_result(outcome), "total_milliseconds": round(total, 1)}
        self._write(", " + json.dumps(result).removeprefix("{") + "\n")
        self._began = None

    def failed(self, error: Exception) -> None:
        """Why there are no more lines. The trial that it ended keeps its line, cut short."""
        if self._began is not None:
            self._write("\n")
        self._line({"kind": "error", "type": type(error).__name__, "message": " ".join(str(error).split())})

    def verdict(self, report: Report) -> None:
        """What all of it means, with the outcomes that are of no trial."""
        lanes = [{"what": o.what, "variant": o.variant, **_result(o)} for o in report.outcomes if o.op == "lanes"]
        counts = {"outcomes": len(report.outcomes), "wrong": len(report.wrong), "slow": report.slow}
        self._line({"kind": "verdict", "lanes": lanes, **counts})

    def _line(self, data: Mapping[str, object]) -> None:
        self._write(json.dumps(data) + "\n")

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()  # a driver that crashes leaves what was written before


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


def _result(outcome: Outcome) -> dict[str, object]:
    return {
        "right": outcome.right,
        "error": outcome.error if math.isfinite(outcome.error) else None,
        "allowed": outcome.allowed,
        "milliseconds": round(1e3 * outcome.seconds, 4),
        "refusal": outcome.refusal,
    }
