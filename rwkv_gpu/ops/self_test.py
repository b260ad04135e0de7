"""Kernels that a driver may get wrong, tried against the plain ones before anything relies on them."""

from dataclasses import replace

import numpy as np

from ..gpu.device import Device
from ..gpu.tuned import Tuned
from ..gpu.tuning import COOP, MANY, TILE, LinearShape, Tuning, default_tuning
from ..gpu.weights import upload_weights
from .recorder import Recorder
from .recording import Scratch
from .vocabulary import Weight

# float16 rounds a product by 1/2048 of itself; a wrong layout or a lost fragment is off by its whole.
TOLERANCE = 5e-3


def tuning_for(device: Device, tuned: Tuned | None = None) -> Tuning:
    """The device's constants, or those that were found for it; matrix units only where they give the right answer."""
    if tuned is not None:
        return (
            tuned.tuning if _does_without(tuned.tuning) or cooperative_matrix_works(device) else without(tuned.tuning)
        )
    tuning = default_tuning(device.capabilities)
    if not cooperative_matrix_works(device):
        return tuning
    return replace(tuning, linear=(*tuning.linear[:-1], (MANY, COOP)))


def _does_without(tuning: Tuning) -> bool:
    return all(shape.kernel != COOP.kernel for _, shape in (*tuning.linear, *tuning.linear_short))


def without(tuning: Tuning) -> Tuning:
    """The same with plain tiles in place of matrix units."""
    ladders = (tuning.linear, tuning.linear_short)
    linear, short = (
        tuple((bound, TILE if shape.kernel == COOP.kernel else shape) for bound, shape in ladder) for ladder in ladders
    )
    return replace(tuning, linear=linear, linear_short=short)


def cooperative_matrix_works(device: Device) -> bool:
    """Whether the kernel on matrix units gives what the plain one does, over awkward sizes."""
    can = device.capabilities
    if not (can.cooperative_matrix and can.f16 and can.subgroup_size == 32 and can.max_workgroup_memory >= 32 << 10):
        return False
    try:
        return all(_agree(device, *shape) for shape in ((16, 64, 64), (70, 130, 96)))
    except Exception:  # noqa: BLE001 - an experimental feature may fail in any way; it is then not used
        return False


def _agree(device: Device, rows: int, out: int, width: int) -> bool:
    rng = np.random.default_rng(0)
    w = (rng.standard_normal((out, width)) / np.sqrt(width)).astype(np.float16)
    x = rng.standard_normal((rows, width), dtype=np.float32)
    plain, fast = (_multiply(device, shape, w, x) for shape in (TILE, COOP))
    return bool(np.isfinite(fast).all() and np.abs(plain - fast).max() < TOLERANCE * np.abs(plain).max())


def _multiply(device: Device, shape: LinearShape, w: np.ndarray, x: np.ndarray) -> np.ndarray:
    tuning = Tuning(64, 64, "workgroup", ((MANY, shape),))
    recorder = Recorder(device, upload_weights(device, {"w": w}), len(x), Scratch(device), tuning)
    y = recorder.linear(recorder.input("x", np.float32, x.shape), Weight("w", w.shape))
    plan = recorder.finish({"y": y})
    plan.run(len(x), {"x": x})
    return plan.read("y", len(x))
