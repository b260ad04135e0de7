"""Examines a device: compares each kernel variant with numpy, and checks that the chosen ones are fast."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from ..gpu.device import Device
from ..gpu.shader import link
from .cases import CHOSEN
from .trials import Outcome, Trial, run

SLOW = 1.5  # ratio to the best variant's time
TRIALS_PER_CACHE = 100  # trials after which cached pipelines are dropped
DISTANCES = 3  # number of tested distances: 1, 2 and 4 lanes


@dataclass(frozen=True)
class Report:
    """All outcomes, and their evaluation."""

    outcomes: tuple[Outcome, ...]

    @property
    def wrong(self) -> list[Outcome]:
        """Outcomes that differ from numpy, or were refused."""
        return [outcome for outcome in self.outcomes if not outcome.right]

    @property
    def slow(self) -> list[str]:
        """Cases in which another variant is much faster than the chosen one."""
        found = []
        for chosen in self.outcomes:
            if chosen.variant != CHOSEN or not chosen.right:
                continue
            others = [o for o in self.outcomes if (o.op, o.what) == (chosen.op, chosen.what) and o.right]
            best = min(others, key=lambda outcome: outcome.seconds)
            if chosen.seconds > SLOW * best.seconds:
                found.append(f"{chosen.what}: {best.variant} takes {best.seconds / chosen.seconds:.0%} of the time")
        return found


class Watcher(Protocol):
    """Is notified before and after the first check of lanes, and before and after each trial."""

    def probes(self) -> None: ...

    def probed(self, outcomes: Sequence[Outcome]) -> None: ...

    def begins(self, trial: Trial) -> None: ...

    def ended(self, outcome: Outcome) -> None: ...


def examine(device: Device, trials: Sequence[Trial], watchers: Sequence[Watcher] = ()) -> Report:
    """Runs all trials, after checking the order of lanes in a workgroup."""
    for watcher in watchers:
        watcher.probes()
    outcomes = list(_lanes(device))
    for watcher in watchers:
        watcher.probed(outcomes)
    last = None
    for number, trial in enumerate(trials):
        for watcher in watchers:
            watcher.begins(trial)
        if number % TRIALS_PER_CACHE == 0 or trial.op != last:
            device.pipelines.clear()  # they add up to gigabytes
            last = trial.op
        outcomes.append(run(device, trial))
        for watcher in watchers:
            watcher.ended(outcomes[-1])
    return Report(tuple(outcomes))


def _lanes(device: Device) -> Iterable[Outcome]:
    """Checks that adjacent lanes of a workgroup are in the same subgroup, as sums over a few lanes require."""
    size = device.capabilities.subgroup_width
    fars = [far for far in range(DISTANCES) if 1 << far < size]
    if not fars:
        return
    met = device.probe(link("probes/lanes", constants={"FARS": len(fars)}), 4 * 64 * len(fars))
    found = np.frombuffer(met, np.uint32).reshape(len(fars), 64)
    for row, far in zip(found, fars, strict=True):
        strays = float(np.count_nonzero(row != np.arange(64) ^ (1 << far)))
        yield Outcome("lanes", f"{1 << far} apart share a subgroup", f"{size} lanes", strays, 0.0, 0.0)
