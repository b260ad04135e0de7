"""Measures how fast a device reads memory, which estimates the cost of a step with weights there."""

import time

import numpy as np

from ..gpu.device import Device
from ..gpu.plan import Slice
from ..gpu.profile import time_replay
from ..gpu.weights import Weights
from ..kernels.defaults import default_tuning
from ..ops.memory import Scratch
from ..ops.values import Operand, Value

READ, READ_SOFTWARE, READ_NUMPY = 128 << 20, 16 << 20, 64 << 20  # bytes
LANES, EACH = 256, 16
REPLAYS = 3
COLUMNS = 2048


def main_memory_rate(device: Device) -> float:
    """Bytes per second that a GPU reads from main memory."""
    return _rate(device, host=True)


def memory_rate(device: Device | None) -> float:
    """Bytes of weights per second that a GPU reads from its own memory, or that numpy multiplies."""
    return _numpy_rate() if device is None else _rate(device, host=False)


def _numpy_rate() -> float:
    matrix = np.ones((COLUMNS, READ_NUMPY // 4 // COLUMNS), np.float32)  # pages of zeros would share memory
    row, seconds = np.zeros(matrix.shape[1], np.float32), []
    for _ in range(1 + REPLAYS):
        begin = time.perf_counter()
        matrix @ row
        seconds.append(time.perf_counter() - begin)
    return matrix.nbytes / min(seconds)


def _rate(device: Device, *, host: bool) -> float:
    """The best rate of several reads."""
    from ..ops.recorder import Recorder  # imports all passes, which a model in numpy does not need

    can = device.capabilities
    lanes = min(LANES, can.max_invocations)
    limit = min(READ_SOFTWARE if can.software else READ, can.max_binding, can.max_buffer)
    nbytes = 1 << (limit.bit_length() - 1)
    buffer = device.buffer(nbytes, "probe", host=host)
    g = Recorder(device, Weights(device), 1, Scratch(device), default_tuning(can))
    operands: dict[str, Operand] = {"x": Slice(buffer, 0, nbytes), "y": Value((1, 4))}
    g.kernel(("probes/stream", "lib/lanes/plain"), {"WG": lanes, "EACH": EACH}, operands, nbytes // (16 * lanes * EACH))
    plan = g.finish({})
    seconds = min(time_replay(plan, 1, {}) for _ in range(REPLAYS))
    buffer.free()
    return nbytes / seconds
