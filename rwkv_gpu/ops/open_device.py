"""Opens an adapter, with matrix units where the user wants them and this driver was seen to get them right."""

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
# Kernels with a verdict of their own, as `Capabilities` names them: a driver that is wrong there keeps all others.
APART = "latents_on_matrix_units", "state_space_on_matrix_units"
PARTLY_RIGHT = 64  # the exit status of the trial, `ops/matrix_units_trial.py`, then; plus a bit for each that is wrong


@dataclass(frozen=True)
class Verdict:
    """What a trial says of a driver."""

    text: str  # RIGHT, or what is wrong
    apart: tuple[str, ...] = ()  # of `APART`, those that are wrong where the rest is right


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
    """Whether the user has tuned this adapter, with this library, and matrix units came out faster."""
    library = matrix_units_library(adapter, folder)
    return library != "" and library == library_digest()


def require_matrix_units(adapter: Adapter, folder: Path | None) -> Verdict:
    """The verdict on a driver; raises `NoMatrixUnits` where there are none, or more is wrong than what is apart.

    A driver is tried once, in a process of its own; the verdict is kept by adapter, driver, library and kernels.
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
    """Of the wgpu-native that is loaded."""
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
    """A folder that cannot be written costs another trial next time."""
    if folder is None:
        return
    told = {"adapter": str(adapter), "library": library_digest(), "verdict": verdict.text, "wrong": verdict.apart}
    text = json.dumps(told)
    with suppress(BadInput):
        replace_text(_place(adapter, folder), text)
