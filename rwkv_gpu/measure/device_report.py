"""A device's report: all that an issue about an unknown GPU needs, in one file that is written as the doctor works.

The file is JSON Lines: what the device is, then a line for each trial, then the verdict. A trial's line is begun before
the trial runs. If the driver ends the process, the last line is cut short and names the kernel.
"""

import json
import math
import platform
import sys
from collections.abc import Mapping
from dataclasses import asdict
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import TextIO

from ..gpu.adapters import Adapter
from ..gpu.device import Device
from ..gpu.shader import fingerprint
from ..kernels.tuning import Tuning
from .doctor import Report
from .trials import Outcome, Trial

PACKAGES = "rwkv-gpu", "wgpu", "numpy"


class DeviceReport:
    """The file, open for writing. It holds no paths, no names of users and no text of models."""

    def __init__(self, file: TextIO) -> None:
        self._file = file

    def opening(self, adapter: Adapter) -> None:
        """The machine and the adapter, before anything is asked of the driver."""
        self._line({"kind": "system", **system()})
        self._line({"kind": "adapter", **adapter.facts()})

    def opened(self, device: Device, tuning: Tuning, trials: int) -> None:
        """What kernels may rely on, and how they are configured."""
        self._line({"kind": "device", "capabilities": asdict(device.capabilities), "tuning": repr(tuning)})
        self._line({"kind": "plan", "trials": trials, "shaders": fingerprint()})

    def begins(self, trial: Trial) -> None:
        """Which trial is next: without the end of its line."""
        names = {"kind": "trial", "op": trial.op, "what": trial.what, "variant": trial.variant}
        self._write(json.dumps(names).removesuffix("}"))

    def ended(self, outcome: Outcome) -> None:
        """The rest of the line that `begins` wrote."""
        self._write(", " + json.dumps(_result(outcome)).removeprefix("{") + "\n")

    def failed(self, error: Exception) -> None:
        """Why there are no more lines."""
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
        "machine": platform.machine(),
        "python": sys.version.split()[0],
        "packages": {name: _version(name) for name in PACKAGES},
    }


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "not installed as a package"


def _result(outcome: Outcome) -> dict[str, object]:
    return {
        "right": outcome.right,
        "error": outcome.error if math.isfinite(outcome.error) else None,
        "allowed": outcome.allowed,
        "milliseconds": round(1e3 * outcome.seconds, 4),
        "refusal": outcome.refusal,
    }
