"""Opens an adapter, with matrix units if the user wants them and a trial of the driver succeeded."""

import hashlib
import json
import subprocess
import sys
import warnings
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from ..errors import BadInput, NoMatrixUnits
from ..gpu import native
from ..gpu.adapters import Adapter
from ..gpu.device import Device
from ..gpu.matrix_units import MatrixUnits, fragment_of
from ..kernels.tuned import file_name, matrix_units_library
from ..replace_file import replace_text

TRIAL_SECONDS = 300.0
RIGHT = "right"
# Kernels with a separate verdict, as named in `Capabilities`: if one is wrong, only that one is disabled.
APART = "latents_on_matrix_units", "state_space_on_matrix_units"
PARTLY_RIGHT = 64  # exit status of `ops/matrix_units_trial.py` if only such kernels are wrong, plus a bit for each


@dataclass(frozen=True)
class Verdict:
    """The result of a trial of a driver."""

    text: str  # RIGHT, or the failure
    apart: tuple[str, ...] = ()  # members of `APART` that are wrong while everything else is right


def open_device(
    adapter: Adapter,
    matrix_units: MatrixUnits = "auto",
    folder: Path | None = None,
    *,
    portable: bool = False,
    checked: bool = False,
) -> Device:
    """Opens a device. `folder` holds the results of `rwkv-gpu tune` and the verdicts on drivers.

    `auto` uses matrix units if `rwkv-gpu tune` found them correct and faster with this adapter, driver and library.
    `on` uses them whenever they are correct; `off` never does. If they are unavailable, `on` raises `NoMatrixUnits`,
    and `auto` warns.
    """
    if matrix_units == "on" or (matrix_units == "auto" and not portable and wants_matrix_units(adapter, folder)):
        try:
            wrong = require_matrix_units(adapter, folder).apart
            device = Device(adapter, portable=portable, checked=checked, matrix_units=True)
            if wrong:
                device.capabilities = replace(device.capabilities, **dict.fromkeys(wrong, False))
            return device
        except NoMatrixUnits as error:
            if matrix_units == "on":
                raise
            warnings.warn(f"{error}; going on without them", stacklevel=2)
    return Device(adapter, portable=portable, checked=checked)


def wants_matrix_units(adapter: Adapter, folder: Path | None) -> bool:
    """Whether the user tuned this adapter with this library, and matrix units were faster."""
    library = matrix_units_library(adapter, folder)
    return library != "" and library == library_digest()


def require_matrix_units(adapter: Adapter, folder: Path | None) -> Verdict:
    """The verdict on a driver. Raises `NoMatrixUnits` if there are none, or kernels outside `APART` are wrong.

    A driver is tried once, in a separate process; the verdict is saved by adapter, driver, library and kernels.
    """
    fragment_of(adapter)
    verdict = _kept(adapter, folder)
    if verdict is None:
        verdict = _tried(adapter)
        _keep(adapter, folder, verdict)
    if verdict.text != RIGHT:
        raise NoMatrixUnits(f"matrix units stay off on {adapter}: {verdict.text}")
    return verdict


def library_digest() -> str:
    """A digest of the loaded wgpu-native library."""
    return hashlib.sha256(Path(native.library_path()).read_bytes()).hexdigest()[:16]


def _tried(adapter: Adapter) -> Verdict:
    command = [sys.executable, "-m", "rwkv_gpu.ops.matrix_units_trial", str(adapter.index)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return Verdict(f"trying them took more than {TRIAL_SECONDS:.0f} s")
    if done.returncode == 0:
        return Verdict(RIGHT)
    bits = done.returncode - PARTLY_RIGHT
    if 0 < bits < 1 << len(APART):
        return Verdict(RIGHT, tuple(name for bit, name in enumerate(APART) if bits >> bit & 1))
    if done.returncode < 0:
        return Verdict(f"the driver crashed (signal {-done.returncode})")
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return Verdict(lines[-1] if lines else f"trying them ended with {done.returncode}")


def _place(adapter: Adapter, folder: Path) -> Path:
    return folder / f"matrix-units-{file_name(adapter)}"


def _kept(adapter: Adapter, folder: Path | None) -> Verdict | None:
    if folder is None:
        return None
    try:
        found = json.loads(_place(adapter, folder).read_text(encoding="utf-8"))
        kept = Verdict(str(found["verdict"]), tuple(name for name in APART if name in found["wrong"]))
        return kept if found["library"] == library_digest() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(adapter: Adapter, folder: Path | None, verdict: Verdict) -> None:
    """Saves a verdict. If the folder is not writable, the next start tries the driver again."""
    if folder is None:
        return
    found = {"adapter": str(adapter), "library": library_digest(), "verdict": verdict.text, "wrong": verdict.apart}
    text = json.dumps(found)
    with suppress(BadInput):
        replace_text(_place(adapter, folder), text)
