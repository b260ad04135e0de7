"""What a driver may get wrong is used only after it was seen to be right."""

from dataclasses import replace
from types import SimpleNamespace

import pytest

from rwkv_gpu.gpu.virtual import LIMITS, VirtualDevice
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.gemm_config import MANY, gemv_int
from rwkv_gpu.ops import self_test
from rwkv_gpu.ops.self_test import integers_work, tuning_for, without_integers
from tests.ops.matrix_plans import WITH_MATRIX_UNITS


def test_a_device_without_matrix_units_has_no_kernel_of_theirs(fast_device):
    assert not fast_device.capabilities.fragment
    assert not tuning_for(fast_device).on_matrix_units


def test_what_was_tuned_without_matrix_units_has_them_where_they_are_asked_for():
    plain = default_tuning(LIMITS["h200"])
    device = VirtualDevice(WITH_MATRIX_UNITS)
    tuned = SimpleNamespace(tuning=without_integers(plain))
    found = tuning_for(device, tuned)
    assert found.on_matrix_units
    assert found.gemm_config(1, packed=True) == tuned.tuning.gemm_config(1, packed=True)
    assert found.gemm_config(512).kernel == "linear/gemm_matrix"


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
