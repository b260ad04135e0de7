"""Opens an adapter, with matrix units if a trial found that its driver computes correctly on them."""

import warnings
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from ..errors import NoMatrixUnits
from ..gpu.adapters import Adapter
from ..gpu.device import Capabilities, Device
from ..gpu.matrix_units import MatrixUnits, fragment_of
from ..kernels.tuned import own_tuning
from .driver_verdict import BackgroundTrial, Verdict, kept_verdict, library_digest, verdict_of

SWITCH = "matrix-units-off"  # a file of this name in the folder turns `auto` off


def open_device(
    adapter: Adapter,
    matrix_units: MatrixUnits = "auto",
    folder: Path | None = None,
    *,
    portable: bool = False,
    checked: bool = False,
    at_once: bool = False,
) -> Device:
    """Opens a device. `folder` holds the results of `rwkv-gpu tune` and the verdicts on drivers.

    `on` uses matrix units if they are correct, and raises `NoMatrixUnits` if they are unavailable; `off` never does.
    `auto` uses them if `wants_matrix_units` is true, and continues without them if they are unavailable. The first use
    of a driver tries it. With `at_once`, `auto` does not wait for the trial: `Device.apply_trial_result` enables matrix
    units after it.
    """
    if matrix_units == "off" or (matrix_units == "auto" and (portable or not wants_matrix_units(adapter, folder))):
        return Device(adapter, portable=portable, checked=checked)
    try:
        if matrix_units == "auto" and at_once and folder is not None and kept_verdict(adapter, folder) is None:
            device = Device(adapter, checked=checked, matrix_units=True)
            _enable_later(device, BackgroundTrial(adapter, folder).verdict)
            return device
        verdict = require_matrix_units(adapter, folder)
        device = Device(adapter, portable=portable, checked=checked, matrix_units=True)
        device.capabilities = allowed(device.capabilities, verdict)
        return device
    except NoMatrixUnits as error:
        if matrix_units == "on":
            raise
        if library_tuned(adapter, folder) == library_digest():  # matrix units were in use before
            warnings.warn(f"{error}; continuing without them", stacklevel=2)
    return Device(adapter, portable=portable, checked=checked)


def wants_matrix_units(adapter: Adapter, folder: Path | None) -> bool:
    """True if `auto` uses the matrix units of an adapter if its driver is correct.

    True for GPUs, unless the user switched matrix units off, or `tune` found plain kernels faster on this adapter.
    """
    if folder is not None and (folder / SWITCH).exists():
        return False
    library = library_tuned(adapter, folder)
    if library is not None:
        return library != ""
    return adapter.kind != "CPU" and _offered(adapter)


def state_of_matrix_units(adapter: Adapter, folder: Path | None) -> str:
    """Describes the use of an adapter's matrix units by `auto`: "in use", or the reason why not."""
    if folder is not None and (folder / SWITCH).exists():
        return f"off: switched off by {folder / SWITCH}"
    if not wants_matrix_units(adapter, folder):
        slower = library_tuned(adapter, folder) is not None
        return "off: `rwkv-gpu tune` found plain kernels faster" if slower else "off: a software device"
    verdict = kept_verdict(adapter, folder)
    if verdict is None:
        return "not tested yet: the first use tests them"
    return "in use" if verdict.right else f"off: {verdict.text}"


def library_tuned(adapter: Adapter, folder: Path | None) -> str | None:
    """The wgpu library that an adapter was tuned with on matrix units; "" if tuned without them, None if not tuned."""
    tuned = own_tuning(adapter, folder)
    return None if tuned is None else tuned.library


def require_matrix_units(adapter: Adapter, folder: Path | None) -> Verdict:
    """The verdict on a driver. Raises `NoMatrixUnits` if there are none, or they are wrong."""
    fragment_of(adapter)
    verdict = verdict_of(adapter, folder)
    if not verdict.right:
        raise NoMatrixUnits(f"matrix units stay off on {adapter}: {verdict.text}")
    return verdict


def allowed(can: Capabilities, verdict: Verdict) -> Capabilities:
    """The capabilities without the kernels that a driver gets wrong."""
    return replace(can, **dict.fromkeys(verdict.apart, False))


def _offered(adapter: Adapter) -> bool:
    try:
        return fragment_of(adapter) > 0
    except NoMatrixUnits:
        return False


def _enable_later(device: Device, verdict: Callable[[], Verdict | None]) -> None:
    """Uses plain kernels until there is a verdict on the driver."""
    full, plain = device.capabilities, device.without_matrix_units()

    def capabilities_after_test() -> Capabilities | None:
        found = verdict()
        return None if found is None else allowed(full, found) if found.right else plain

    device.capabilities, device.pending = plain, capabilities_after_test
