"""Measures a device's limits by two small kernels: reading memory, and multiply-adds in registers."""

from collections.abc import Iterator
from dataclasses import dataclass

from ..gpu.device import Device
from ..gpu.plan import Plan, Slice
from ..gpu.profile import time_replay
from ..gpu.shader import Constant
from ..gpu.weights import Weights
from ..kernels.defaults import default_tuning
from ..ops.memory import Scratch
from ..ops.recorder import Recorder
from ..ops.values import Operand, Value

STREAMED, STREAMED_SOFTWARE = 1 << 30, 64 << 20  # bytes: more than any cache
ROUNDS, ROUNDS_SOFTWARE = 4096, 512
GROUPS, GROUPS_SOFTWARE = 8192, 64
CHAIN_FLOPS = 8 * 4 * 2  # per round of a lane
REPLAYS = 5
WARM = 0.2  # seconds of work until a GPU's clocks are high


@dataclass(frozen=True)
class Roofline:
    """The best measured rates."""

    bytes_per_second: float
    flops_per_second: float  # float32, without matrix units
    half_flops_per_second: float | None  # float16, if supported

    def seconds(self, nbytes: float, flops: float) -> float:
        """The minimum time for this much work."""
        return max(nbytes / self.bytes_per_second, flops / self.flops_per_second)


def measure_roofline(device: Device) -> Roofline:
    """Tries a few workgroup sizes, and takes the best of each kernel."""
    halves = device.capabilities.f16
    return Roofline(
        max(_stream_rates(device)),
        max(_compute_rates(device, "f32")),
        max(_compute_rates(device, "f16")) if halves else None,
    )


def _stream_rates(device: Device) -> Iterator[float]:
    """Yields bytes per second."""
    can = device.capabilities
    limit = min(STREAMED_SOFTWARE if can.software else STREAMED, can.max_binding, can.max_buffer)
    nbytes = 1 << (limit.bit_length() - 1)
    buffer = device.buffer(nbytes, "probe")
    for lanes in (8, 64) if can.software else (128, 256):
        for each in (64,) if can.software else (16, 64):
            g = _recorder(device)
            constants: dict[str, Constant] = {"WG": lanes, "EACH": each}
            operands: dict[str, Operand] = {"x": Slice(buffer, 0, nbytes), "y": Value((1, 4))}
            g.kernel(("probes/stream", "lib/lanes/plain"), constants, operands, nbytes // (16 * lanes * each))
            yield nbytes / best_seconds(g.finish({}))
    buffer.free()


def _compute_rates(device: Device, kind: str) -> Iterator[float]:
    """Yields flops per second."""
    software = device.capabilities.software
    rounds, groups = (ROUNDS_SOFTWARE, GROUPS_SOFTWARE) if software else (ROUNDS, GROUPS)
    for lanes in (8, 64) if software else (128, 256):
        g = _recorder(device)
        constants: dict[str, Constant] = {"WG": lanes, "ROUNDS": rounds, "Number": kind}
        g.kernel(("probes/fused_multiply_add", "lib/lanes/plain"), constants, {"y": Value((1, 4))}, groups)
        yield CHAIN_FLOPS * rounds * lanes * groups / best_seconds(g.finish({}))


def _recorder(device: Device) -> Recorder:
    return Recorder(device, Weights(device), 1, Scratch(device), default_tuning(device.capabilities))


def best_seconds(plan: Plan) -> float:
    """Best time of one run, after warming up the device."""
    warm = 0.0
    while warm < WARM and not plan.device.capabilities.software:
        warm += time_replay(plan, 1, {})
    return min(time_replay(plan, 1, {}) for _ in range(REPLAYS))
