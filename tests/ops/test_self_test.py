"""What a driver may get wrong is used only after it was seen to be right."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest

from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.tuning import COOP, MANY, TILE, gemv_int
from rwkv_gpu.ops import self_test
from rwkv_gpu.ops.self_test import cooperative_matrix_works, integers_work, tuning_for, without_integers

UNITS = {"cooperative_matrix": True, "f16": True, "subgroup_size": 32, "max_workgroup_memory": 32 << 10}


def claim(device, monkeypatch, **capabilities):
    monkeypatch.setattr(device, "capabilities", replace(device.capabilities, **capabilities))


def test_matrix_units_are_not_tried_where_there_are_none(fast_device, monkeypatch):
    claim(fast_device, monkeypatch, cooperative_matrix=False)
    monkeypatch.setattr(self_test, "_multiply", lambda *_: pytest.fail("tried"))
    assert not cooperative_matrix_works(fast_device)
    assert COOP not in dict(tuning_for(fast_device).linear).values()


def test_a_device_that_claims_matrix_units_and_cannot_compile_for_them_is_served_by_the_plain_kernel(
    fast_device, monkeypatch
):
    if fast_device.capabilities.cooperative_matrix:
        pytest.skip("this device has matrix units: what it compiles for them is tried with wrong answers below")
    claim(fast_device, monkeypatch, **UNITS)
    assert not cooperative_matrix_works(fast_device)
    assert COOP not in dict(tuning_for(fast_device).linear).values()


def lost(y):
    y[-1, -1] = 0  # an element of the last fragment


def rounded_too_far(y):
    y += 0.01 * np.abs(y).max()


def not_a_number(y):
    y[0, 0] = np.nan


@pytest.mark.parametrize("spoil", [None, lost, rounded_too_far, not_a_number])
def test_matrix_units_are_used_only_where_their_kernel_gives_what_the_plain_one_does(fast_device, monkeypatch, spoil):
    """The answers of the device are given here, so that the kernel on matrix units can be right and wrong anywhere."""
    claim(fast_device, monkeypatch, **UNITS)
    tried = []

    def answer(_, config, w, x):
        y = x @ w.astype(np.float32).T
        if config is COOP and spoil:
            spoil(y)
        tried.append(config)
        return y

    monkeypatch.setattr(self_test, "_multiply", answer)
    assert cooperative_matrix_works(fast_device) == (spoil is None)
    assert tried[:2] == [TILE, COOP]


@pytest.mark.parametrize(("r", "prefetch_depth"), [(2, 1), (1, 2)])
def test_rows_as_integers_are_used_only_where_they_agree_with_floats(fast_device, monkeypatch, r, prefetch_depth):
    if not fast_device.capabilities.subgroup:
        pytest.skip("this device has no subgroups")
    plain = without_integers(default_tuning(fast_device.capabilities))
    subgroup_width = fast_device.capabilities.subgroup_width
    integers = replace(
        plain,
        linear_packed=(
            (
                1,
                gemv_int(
                    4 * subgroup_width,
                    subgroup_width,
                    r,
                    subgroup_width=subgroup_width,
                    max_workgroups=MANY,
                    prefetch_depth=prefetch_depth,
                ),
            ),
        ),
    )
    tuned = SimpleNamespace(tuning=integers)
    assert integers_work(fast_device, integers)
    assert tuning_for(fast_device, tuned) == integers
    products = self_test._products
    answers = iter(range(100))
    monkeypatch.setattr(self_test, "_products", lambda *given: products(*given) * (1 + 0.01 * next(answers)))
    assert tuning_for(fast_device, tuned) == plain
