"""A kernel of one lane that runs for a given time, so that the driver keeps the GPU's clocks up."""

import time

import numpy as np

from . import native
from .device import Device
from .shader import link
from .typed_errors import TypedErrors

FIRST = 10_000  # rounds of the first attempt
LONG = 0.0005  # seconds; shorter work cannot be timed well
MOST = 1 << 20  # maximum rounds: a tenth of a second at the lowest clocks


class BusyLoop:
    """The kernel, and its current number of rounds per second."""

    def __init__(self, device: Device) -> None:
        self._device = device
        pipeline = device.pipeline(link("probes/busy_loop"))
        self._state = device.buffer(16, "probe")
        with TypedErrors("binding a busy loop"):
            group = device.bind_group(pipeline, {0: (self._state, 0, 16)})
        self._kept = pipeline, group  # kept alive, as the program has only raw handles
        self._program = native.program([(pipeline.handle, group, (1, 1, 1))])
        self._rounds = 0
        self._rate = 0.0  # rounds per second

    def calibrate(self) -> None:
        """Times the kernel; the device must be idle."""
        rounds, seconds = FIRST, 0.0
        while seconds < LONG and rounds < MOST:
            self._set(rounds)
            begin = time.perf_counter()
            self._submit()
            native.wait(self._device.handle)
            seconds = time.perf_counter() - begin
            self._rate, rounds = rounds / seconds, rounds * 4

    def work(self, seconds: float) -> None:
        """Submits work for about `seconds`."""
        rounds = min(MOST, int(seconds * self._rate))
        if abs(rounds - self._rounds) > self._rounds // 4:
            self._set(rounds)
        self._submit()

    def _set(self, rounds: int) -> None:
        self._rounds = rounds
        self._device.write(self._state, np.array([rounds], np.uint32))

    def _submit(self) -> None:
        self._device.submit([native.encode(self._device.handle, [self._program])])
