"""Runs a target with generated inputs for a time. The same seed gives the same inputs in the same order."""

import faulthandler
import time
from pathlib import Path
from typing import Any

from hypothesis import HealthCheck, Phase, given, seed, settings

from tests.fuzz.targets import Target

ROUND, SLOW_ROUND = 40, 8  # inputs between two checks of the time limit
HANGS = 1800.0  # seconds of one input after which the process ends; a busy machine takes minutes for slow ones


def fuzz(target: Target, seconds: float, first: int, last: Path | None = None) -> int:
    """Returns the number of inputs. Raises the error of the smallest failing input; `last` holds the current one."""
    end = time.monotonic() + seconds
    count = 0

    @settings(
        max_examples=ROUND if target.is_quick else SLOW_ROUND,
        deadline=None,
        database=None,
        phases=(Phase.generate, Phase.shrink),
        suppress_health_check=list(HealthCheck),
    )
    @given(target.inputs)
    def check(given: Any) -> None:
        nonlocal count
        count += 1
        if last is not None:
            last.write_text(repr(given))
            faulthandler.dump_traceback_later(HANGS, exit=True)
        target.check(given)

    number = first
    while True:  # at least one round, however slow the machine is
        seed(number)(check)()
        number += 1
        if time.monotonic() >= end:
            return count
