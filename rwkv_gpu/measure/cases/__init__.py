"""The trials of a device: every registered kernel with every variant of every hole that the device supports."""

from collections.abc import Iterable, Iterator

from ...gpu.device import Capabilities
from ...kernels.tuning import Tuning
from ..trials import Trial
from . import (
    adapters,
    attention,
    dense,
    entries,
    latent,
    linear,
    main_memory,
    moe,
    recurrence,
    rwkv,
    sampling,
    ssm,
)

CHOSEN = linear.CHOSEN


def cases(can: Capabilities, used: Tuning) -> Iterator[Trial]:
    """All trials, the simplest first."""
    yield from dense.cases(can)
    yield from linear.cases(can)
    yield from adapters.cases(can)
    yield from ssm.convolutions(can)
    yield from rwkv.cases(can)
    yield from ssm.cases(can)
    yield from dense.streams(can)
    yield from recurrence.cases(can)
    yield from attention.cases(can)
    yield from latent.cases(can)
    yield from entries.cases(can)
    yield from moe.cases(can)
    yield from main_memory.cases(can)
    yield from sampling.cases(can)
    yield from linear.speed(can, used)


def quick(trials: Iterable[Trial]) -> Iterator[Trial]:
    """Each case with one kernel variant, and each variant in one case."""
    cases, variants = set(), set()
    for trial in trials:
        case, variant = (trial.op, trial.what), (trial.op, trial.variant)
        if trial.op != "speed" and (case not in cases or variant not in variants):
            yield trial
        cases.add(case)
        variants.add(variant)
