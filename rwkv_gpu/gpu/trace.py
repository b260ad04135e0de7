"""Traces the start and end of steps by the GPU's clock: its busy time, and its idle time between steps."""

from typing import Any

import numpy as np
import numpy.typing as npt

from ..errors import UnsupportedDevice
from . import native, wgpu
from .device import Device
from .typed_errors import TypedErrors


class Trace:
    """Timestamps around a number of steps, each of which is one pass."""

    def __init__(self, device: Device, steps: int) -> None:
        if not device.capabilities.timestamps:
            raise UnsupportedDevice(
                f"{device.adapter} has no timestamp queries, so its idle time cannot be measured; try another --device"
            )
        self._device = device
        self._steps = steps
        self._count = 0
        with TypedErrors("tracing"):
            self._queries = device.handle.create_query_set(type=wgpu.QueryType.timestamp, count=2 * steps)

    def next(self) -> dict[str, Any] | None:
        """The timestamp writes for the next pass; None if the trace is full."""
        if self._count == self._steps:
            return None
        at, self._count = 2 * self._count, self._count + 1
        return {
            "query_set": self._queries,
            "beginning_of_pass_write_index": at,
            "end_of_pass_write_index": at + 1,
        }

    def spans(self, steps: int | None = None) -> npt.NDArray[np.float64]:
        """Start and end of each traced step, in seconds since the start of the first. [steps, 2]"""
        count, device = 2 * (self._count if steps is None else steps), self._device
        with TypedErrors("tracing"):
            usage = wgpu.BufferUsage.QUERY_RESOLVE | wgpu.BufferUsage.COPY_SRC
            resolved = device.handle.create_buffer(size=8 * count, usage=usage)
            encoder = device.handle.create_command_encoder()
            encoder.resolve_query_set(self._queries, 0, count, resolved, 0)
            device.submit([encoder.finish()])
            ticks = np.frombuffer(device.queue.read_buffer(resolved), np.int64).reshape(-1, 2)
        since: npt.NDArray[np.float64] = (ticks - ticks[0, 0]).astype(np.float64)
        return since * native.timestamp_period(device.handle) * 1e-9


def idle(spans: npt.NDArray[np.float64]) -> float:
    """The share of time without a running step, from the start of the first step to the end of the last."""
    begins, ends = spans[1:, 0], np.maximum.accumulate(spans[:-1, 1])
    waited = np.maximum(begins - ends, 0).sum()
    return float(waited / (spans[:, 1].max() - spans[0, 0]))
