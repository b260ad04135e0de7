"""Decode attention on matrix units equals the reference: any heads, lengths, windows and runs, in any page order.

pytest --matrix-units opens the devices that have them.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import pytest

from rwkv_gpu.gpu.device import Device
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.vocabulary import Rope
from tests.ops.test_attention import OPTIONS, Arrays, Case, OnGpu, each_of_several, history


@dataclass(frozen=True)
class Rounded(Case):
    """Rounds queries and exponentials to float16: the error of a score of `largest` is up to a 2048th of it."""

    largest: float = 4.0

    @property
    def tolerance(self) -> float:
        return self.largest / 2048


@pytest.fixture
def units(fast_device):
    if not fast_device.capabilities.fragment:
        pytest.skip("this device has no matrix units; pytest --matrix-units opens those of Mesa 26.2")
    return fast_device


def rounded(heads: int, kv_heads: int = 1, size: int = 32, context: int = 256, **more) -> Rounded:
    rope = Rope("neox", size // 2, 10000.0)
    return Rounded(heads=heads, kv_heads=kv_heads, size=size, rope=rope, kind="f16", context=context, **more)


# The case, and the length of its sequence.
CASES = {
    "the second token": (rounded(8), 2),
    "a page": (rounded(8), 64),
    "a page and one more": (rounded(4, 2), 65),
    "a head alone": (rounded(2, 2), 100),
    "three heads": (rounded(6, 2, 24), 130),
    "seven heads": (rounded(7, 1, 40), 130),
    "eight heads, 64 wide": (rounded(16, 2, 64, 1024), 777),
    "sixteen heads": (rounded(16, 1), 200),
    "seventeen heads": (rounded(17, 1), 70),
    "a window": (rounded(4, 2, context=512, window=77), 300),
    "a window of one": (rounded(4, window=1), 130),
    **{option: (rounded(4, option=option), 250) for option in list(OPTIONS)[:3]},
}


def assert_decodes(case: Case, device: Device, steps: Sequence[tuple[Batch, Arrays]], **tuning: int) -> None:
    """Checks steps after the first. Their keys and values are those of the reference."""
    _, before = case.on_cpu(steps[:1])
    expected, _ = case.on_cpu(steps)
    gpu = OnGpu(case, device, matrix_decode_positions=1, matrix_decode_sharing=1, **tuning)
    for buffer, pages in zip(gpu.buffers, before, strict=True):
        device.write(buffer, pages)
    for (batch, inputs), y in zip(steps[1:], expected[1:], strict=True):
        np.testing.assert_allclose(gpu.step(batch, inputs), y, rtol=case.tolerance, atol=case.tolerance)


@pytest.mark.parametrize("what", CASES)
def test_decode_on_matrix_units_equals_the_reference(units, what):
    case, length = CASES[what]
    steps = [*history(case, length, step=1), (case.batch([(2, length, 1)]), case.inputs(1, seed=1))]
    assert_decodes(case, units, steps, matrix_decode_workgroups=12)


@pytest.mark.parametrize("groups", [1, 7, 100])
def test_any_number_of_runs_gives_the_same_result(units, groups):
    case = rounded(8, 2, 64, 1024)
    assert_decodes(case, units, history(case, 777, step=1), matrix_decode_workgroups=groups)


def test_scores_that_grow_along_the_context_rescale_earlier_sums(units):
    case = rounded(8, 1, 32, largest=40.0)
    [(before, x), last] = history(case, 200, step=1)
    growing = x | {"k": x["k"] * np.linspace(0.1, 12, 199, dtype=np.float32)[:, None]}
    for groups in (1, 100):
        assert_decodes(case, units, [(before, growing), last], matrix_decode_workgroups=groups)


def test_several_sequences_of_many_lengths_equal_the_reference(units):
    case = rounded(8, 2, 64, 1024)
    steps = [(batch, case.inputs(batch.rows, seed=seed)) for seed, (batch, _) in enumerate(each_of_several())]
    assert_decodes(case, units, steps, matrix_decode_workgroups=40)
