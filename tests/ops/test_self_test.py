"""What a driver may get wrong is used only after it was seen to be right."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.tuning import COOP, MANY, gemv_int
from rwkv_gpu.ops import self_test
from rwkv_gpu.ops.self_test import cooperative_matrix_works, integers_work, tuning_for, without_integers


def claim_matrix_units(device, monkeypatch):
    claims = {"cooperative_matrix": True, "f16": True, "subgroup_size": 32, "max_workgroup_memory": 32 << 10}
    monkeypatch.setattr(device, "capabilities", replace(device.capabilities, **claims))


def test_matrix_units_are_not_used_where_there_are_none(fast_device):
    if not fast_device.capabilities.cooperative_matrix:
        assert not cooperative_matrix_works(fast_device)
        assert tuning_for(fast_device) == default_tuning(fast_device.capabilities)


def test_a_device_that_claims_matrix_units_and_fails_is_served_by_the_plain_kernel(fast_device, monkeypatch):
    if fast_device.capabilities.cooperative_matrix:
        return  # it may well have them
    claim_matrix_units(fast_device, monkeypatch)
    assert not cooperative_matrix_works(fast_device)
    assert COOP not in dict(tuning_for(fast_device).linear).values()


def test_a_wrong_answer_is_noticed(fast_device, monkeypatch):
    claim_matrix_units(fast_device, monkeypatch)
    monkeypatch.setattr(self_test, "COOP", self_test.TILE)  # a right answer is taken
    assert cooperative_matrix_works(fast_device)
    multiply = self_test._multiply
    answers = iter(range(100))
    monkeypatch.setattr(self_test, "_multiply", lambda *given: multiply(*given) * (1 + 0.1 * next(answers)))
    assert not cooperative_matrix_works(fast_device)


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
