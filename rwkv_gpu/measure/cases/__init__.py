"""What a device is tried by: every registered kernel with every part of every hole, as far as it can run them."""

from collections.abc import Iterable, Iterator

from ...gpu.device import Capabilities
from ...kernels.tuning import Tuning
from ..trials import Trial
from . import (
    adapters,
    attention,
    dense,
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
    """All of them, the simplest first."""
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
    yield from moe.cases(can)
    yield from main_memory.cases(can)
    yield from sampling.cases(can)
    yield from linear.speed(can, used)


def quick(trials: Iterable[Trial]) -> Iterator[Trial]:
    """Each case by one variant of its kernel, and each variant in one case."""
    cases, variants = set(), set()
    for trial in trials:
        case, variant = (trial.op, trial.what), (trial.op, trial.variant)
        if trial.op != "speed" and (case not in cases or variant not in variants):
            yield trial
        cases.add(case)
        variants.add(variant)
