"""Kernels that a driver may compile wrongly are used only after a test."""

from types import SimpleNamespace

import pytest

from rwkv_gpu.gpu.virtual import LIMITS, VirtualDevice
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.expert_config import EXPERT_TILE
from rwkv_gpu.kernels.gemm_config import UNLIMITED, gemv_int
from rwkv_gpu.kernels.registry import expert_trials, gemm_trials
from rwkv_gpu.kernels.tuning import ExpertLimits, GemmLimits
from rwkv_gpu.ops import self_test
from rwkv_gpu.ops.self_test import integers_work, tuning_for, without_integers
from tests.ops.matrix_plans import WITH_MATRIX_UNITS

GEMM_LIMITS = GemmLimits(), GemmLimits(max_run=31), GemmLimits(packed=True), GemmLimits(1, max_out=512)
EXPERT_LIMITS = ExpertLimits(4), ExpertLimits(), ExpertLimits(max_run=31)


def test_a_device_without_matrix_units_has_no_kernel_of_theirs(fast_device):
    assert not fast_device.capabilities.fragment
    assert not tuning_for(fast_device).on_matrix_units


def test_a_tuning_without_matrix_units_uses_them_on_request(monkeypatch):
    monkeypatch.setattr(self_test, "_integers_agree", lambda *_: True)
    plain = default_tuning(LIMITS["h200"])
    device = VirtualDevice(WITH_MATRIX_UNITS)
    tuned = SimpleNamespace(tuning=without_integers(plain))
    found = tuning_for(device, tuned)
    assert found.on_matrix_units
    assert found.gemm_config(1, packed=True) == tuned.tuning.gemm_config(1, packed=True)
    assert found.gemm_config(512).kernel == "linear/gemm_matrix"


def test_every_configuration_that_must_be_tried_at_start_is_tried_and_dropped_if_it_fails(monkeypatch):
    """Any tuning may use such a configuration, including one made on a user's device."""
    can = LIMITS["h200"]
    plain, device = without_integers(default_tuning(can)), VirtualDevice(can)
    products = [config for _, config in gemm_trials(can).values() if config.tried_at_start]
    mixtures = [config for _, config in expert_trials(can).values() if config.tried_at_start]
    assert {config.kernel for config in products} == {
        f"linear/{name}" for name in ("gemv_int", "skinny_gemm", "gemm_int8")
    }
    assert {config.kernel for config in mixtures} == {"moe/expert_gemv_int"}
    tunings = [plain.changed(gemm_table=((limits, one),)) for limits in GEMM_LIMITS for one in products]
    tunings += [plain.preferring((limits, one)) for limits in GEMM_LIMITS for one in products]
    tunings += [plain.changed(expert_table=((limits, one),)) for limits in EXPERT_LIMITS for one in mixtures]
    tunings += [plain.changed(expert_table=((ExpertLimits(4), one), (ExpertLimits(), EXPERT_TILE))) for one in mixtures]
    tried: list = []
    monkeypatch.setattr(self_test, "_integers_agree", lambda _, tests: tried.extend(tests))
    for tuning in tunings:
        tried.clear()
        left = tuning_for(device, SimpleNamespace(tuning=tuning))
        [(config, how)] = tried
        assert config.entry.self_test is how
        assert not any(one.tried_at_start for one in left.configs)
        assert left.gemm_table and left.expert_table


@pytest.mark.parametrize(("r", "prefetch_depth"), [(2, 1), (1, 2)])
def test_integer_rows_are_used_only_if_they_agree_with_floats(fast_device, monkeypatch, r, prefetch_depth):
    if not fast_device.capabilities.subgroup:
        pytest.skip("this device has no subgroups")
    plain = without_integers(default_tuning(fast_device.capabilities))
    subgroup_width = fast_device.capabilities.subgroup_width
    config = gemv_int(
        4 * subgroup_width,
        subgroup_width,
        r,
        subgroup_width=subgroup_width,
        max_workgroups=UNLIMITED,
        prefetch_depth=prefetch_depth,
    )
    integers = plain.preferring((GemmLimits(1, packed=True), config))
    tuned = SimpleNamespace(tuning=integers)
    assert integers_work(fast_device, integers)
    assert tuning_for(fast_device, tuned) == integers
    answer = self_test._answer
    answers = iter(range(100))
    monkeypatch.setattr(self_test, "_answer", lambda plan: answer(plan) * (1 + 0.01 * next(answers)))
    assert tuning_for(fast_device, tuned) == plain
