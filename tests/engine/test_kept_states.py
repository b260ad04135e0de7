"""A step may save the state after each of its rows. A sequence can return to any of them without new computation."""

from typing import NamedTuple

import numpy as np
import pytest

from rwkv_gpu.engine.device_sampling import skipped_row
from rwkv_gpu.engine.runner import Runner, prefill
from rwkv_gpu.engine.step_result import SamplingInputs
from rwkv_gpu.ops.batch import Batch
from tests.engine.test_engine import ids_of, small

RECURRENT = (
    "rwkv7", "arwkv7", "rwkv4", "rwkv6", "rwkv6qwen2", "qwen35", "kimi-linear", "mamba", "mamba2", "falcon-h1", "lfm2",
    "minimax-01", "qwen4exp",
)  # fmt: skip
KERNELS = (
    "rwkv7",
    "rwkv4",
    "rwkv6",
    "qwen35",
    "mamba",
    "mamba2",
    "minimax-01",
)  # together they have all ops with a state
BEFORE, ROWS = 11, 6


class Span(NamedTuple):
    """A step of one sequence that saves its states."""

    slot: int
    start: int
    end: int
    keeps: bool
    unverified: int = 0


def kept_step(runner: Runner, slot: int, start: int, ids: list[int]) -> None:
    """Feeds rows and saves the state after each."""
    [placement] = runner.store.place([Span(slot, start, start + len(ids), True)])
    batch = Batch.of([(slot, start, ids)], placements=[placement])
    runner.submit(batch, SamplingInputs.of(np.array([skipped_row()]))).wait()


@pytest.mark.parametrize("start", [0, BEFORE])
@pytest.mark.parametrize("name", RECURRENT)
def test_the_state_after_each_row_equals_that_after_as_many_tokens(name, start):
    """Rows in one step are summed in another order."""
    check(small(f"tiny-{name}.gguf", drafts=8), small(f"tiny-{name}.gguf"), start, 1e-4)


@pytest.mark.parametrize("name", KERNELS)
def test_the_state_after_each_row_on_the_gpu_equals_that_after_as_many_tokens(adapter, name):
    """Rounding differs, because the kernel depends on the size of the step."""
    check(small(f"tiny-{name}.gguf", adapter, drafts=8), small(f"tiny-{name}.gguf"), BEFORE, 2e-4)


def check(runner: Runner, twin: Runner, start: int, tolerance: float) -> None:
    ids = ids_of(start + ROWS)
    if start:
        prefill(runner, ids[:start])
    kept_step(runner, 0, start, ids[start:])
    for length in range(start + ROWS, start, -1):
        assert runner.store.truncate(0, length) == length
        found = runner.read_state(0)
        twin.store.forget(0)
        prefill(twin, ids[:length])
        for state, expected in twin.read_state(0).items():
            np.testing.assert_allclose(found[state], expected, tolerance, tolerance, err_msg=f"{state} {length}")
    runner.close()
    twin.close()
