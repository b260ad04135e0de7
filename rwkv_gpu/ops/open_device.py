"""Opens an adapter, with matrix units where the user wants them and this driver was seen to get them right."""

import hashlib
import json
import subprocess
import sys
import warnings
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from ..errors import BadInput, NoMatrixUnits
from ..gpu import native
from ..gpu.adapters import Adapter
from ..gpu.device import Device
from ..gpu.matrix_units import MatrixUnits, fragment_of
from ..kernels.tuned import file_name, matrix_units_library
from ..replace_file import replace_text

TRIAL_SECONDS = 300.0
RIGHT, RIGHT_BUT_LATENTS = "right", "right, but not attention over latents"
LATENTS_WRONG = 3  # the exit status of the trial, `ops/matrix_units_trial.py`, then


def open_device(
    adapter: Adapter,
    matrix_units: MatrixUnits = "auto",
    folder: Path | None = None,
    *,
    portable: bool = False,
    checked: bool = False,
) -> Device:
    """The device. `folder` is where `rwkv-gpu tune` keeps what it finds, and where verdicts on drivers are kept.

    auto uses matrix units where `rwkv-gpu tune` found them right and faster with this adapter, driver and library; on
    uses them wherever they are right; off never does. Where they cannot be had, on raises `NoMatrixUnits`, auto warns.
    """
    if matrix_units == "on" or (matrix_units == "auto" and not portable and wants_matrix_units(adapter, folder)):
        try:
            verdict = require_matrix_units(adapter, folder)
            device = Device(adapter, portable=portable, checked=checked, matrix_units=True)
            if verdict == RIGHT_BUT_LATENTS:
                device.capabilities = replace(device.capabilities, latents_on_matrix_units=False)
            return device
        except NoMatrixUnits as error:
            if matrix_units == "on":
                raise
            warnings.warn(f"{error}; going on without them", stacklevel=2)
    return Device(adapter, portable=portable, checked=checked)


def wants_matrix_units(adapter: Adapter, folder: Path | None) -> bool:
    """Whether the user has tuned this adapter, with this library, and matrix units came out faster."""
    library = matrix_units_library(adapter, folder)
    return library != "" and library == library_digest()


def require_matrix_units(adapter: Adapter, folder: Path | None) -> str:
    """The verdict on a driver; raises `NoMatrixUnits` where there are none, or more than latents is wrong.

    A driver is tried once, in a process of its own; the verdict is kept by adapter, driver, library and kernels.
    """
    fragment_of(adapter)
    verdict = _kept(adapter, folder)
    if verdict is None:
        verdict = _tried(adapter)
        _keep(adapter, folder, verdict)
    if verdict not in (RIGHT, RIGHT_BUT_LATENTS):
        raise NoMatrixUnits(f"matrix units stay off on {adapter}: {verdict}")
    return verdict


def library_digest() -> str:
    """Of the wgpu-native that is loaded."""
    return hashlib.sha256(Path(native.library_path()).read_bytes()).hexdigest()[:16]


def _tried(adapter: Adapter) -> str:
    command = [sys.executable, "-m", "rwkv_gpu.ops.matrix_units_trial", str(adapter.index)]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TRIAL_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
    except subprocess.TimeoutExpired:
        return f"trying them took more than {TRIAL_SECONDS:.0f} s"
    if done.returncode == 0:
        return RIGHT
    if done.returncode == LATENTS_WRONG:
        return RIGHT_BUT_LATENTS
    if done.returncode < 0:
        return f"the driver crashed (signal {-done.returncode})"
    lines = (done.stdout.strip() or done.stderr.strip()).splitlines()
    return lines[-1] if lines else f"trying them ended with {done.returncode}"


def _place(adapter: Adapter, folder: Path) -> Path:
    return folder / f"matrix-units-{file_name(adapter)}"


def _kept(adapter: Adapter, folder: Path | None) -> str | None:
    if folder is None:
        return None
    try:
        found = json.loads(_place(adapter, folder).read_text(encoding="utf-8"))
        return str(found["verdict"]) if found["library"] == library_digest() else None
    except (OSError, ValueError, KeyError, TypeError):
        return None


def _keep(adapter: Adapter, folder: Path | None, verdict: str) -> None:
    """A folder that cannot be written costs another trial next time."""
    if folder is None:
        return
    text = json.dumps({"adapter": str(adapter), "library": library_digest(), "verdict": verdict})
    with suppress(BadInput):
        replace_text(_place(adapter, folder), text)
