"""Keeps GPU clocks high while GPUs wait for each other.

In a model split over several devices, each device computes only part of the time. NVIDIA's driver considers such a GPU
half idle: after a pause it raises the clocks from 345 to 1,980 MHz over tens of seconds instead of a quarter of a
second, and decode has a third of its speed meanwhile. So a waiting GPU runs a loop of one lane for a part of its wait.
"""

import math
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from ..gpu.busy_loop import BusyLoop
from ..gpu.device import Device

NVIDIA = 0x10DE
PAUSE = 0.25  # seconds after which clocks may have dropped
RAISING = 0.5  # minimum seconds for them to rise
TIMING_INTERVAL = 0.1  # seconds between two timings of a loop, which becomes shorter once clocks have risen
FASTER = 0.97  # ratio to the previous token's time that indicates rising clocks
SHARE = 1.0  # the loop's share of another device's computing time; with 0.8 or 0.5, clocks rise half as fast
SLOWER = 1.12  # ratio to the recent best time that indicates dropped clocks
FORGETS = 1.001  # growth of the recent best time per token, as contexts grow


class Loop(Protocol):
    """A busy loop of a device."""

    def calibrate(self) -> None: ...
    def work(self, seconds: float) -> None: ...


class Clocks:
    """Decides when a waiting device is kept busy, and for how long. Called once per token."""

    def __init__(self, loops: Sequence[Loop], now: Callable[[], float] = time.perf_counter) -> None:
        self._loops = loops
        self._now = now
        self._last = -1e9  # time of the last token
        self._is_raising = False
        # Seconds: end of raising, last timing, token time at that timing
        self._until = self._calibrated = self._before = 0.0
        self._best = 0.0
        self._seconds = [0.0] * len(loops)  # time of the last token, by device
        self._shorter = [0.0] * len(loops)  # minimum of the last two, so that one slow token does not cause a long loop
        self._works = False

    @classmethod
    def of(cls, devices: Sequence[Device | None]) -> "Clocks | None":
        """The clocks of these devices.

        None if their driver does not lower clocks as described above, as far as known.
        """
        gpus = [one for one in devices if one is not None and one.adapter.kind == "DiscreteGPU"]
        if len(gpus) < len(devices) or any(one.adapter.handle.info["vendor_id"] != NVIDIA for one in gpus):
            return None
        return cls([BusyLoop(one) for one in gpus])

    def token(self) -> None:
        """Called before each token; all devices are idle."""
        now, total = self._now(), sum(self._seconds)
        if now - self._last > PAUSE:
            self._is_raising, self._until, total = True, now + RAISING, 0.0
            self._seconds = [0.0] * len(self._loops)
            self._calibrate(now, math.inf)
        elif self._is_raising and now > self._calibrated + TIMING_INTERVAL:
            if now > self._until and total > FASTER * self._before:
                self._is_raising, self._best = False, total
            self._calibrate(now, total)
        self._last = now
        self._best = min(self._best * FORGETS, total)
        self._works = total > 0 and (self._is_raising or total > SLOWER * self._best)

    def began(self, device: int) -> None:
        """Called when a device begins its part: other work that it gets now runs during its wait."""
        if self._works:
            others = [seconds for number, seconds in enumerate(self._shorter) if number != device]
            self._loops[device].work(SHARE * sum(others) / len(others))

    def ended(self, device: int, seconds: float) -> None:
        """Called when a device has delivered its results, after `seconds`."""
        self._shorter[device] = min(seconds, self._seconds[device] or seconds)
        self._seconds[device] = seconds

    def _calibrate(self, now: float, total: float) -> None:
        for loop in self._loops:
            loop.calibrate()
        self._calibrated, self._before = now, total
