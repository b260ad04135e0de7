"""Configurations for AMD: none of them spills registers, and those of other GPUs are unchanged."""

from dataclasses import replace

import pytest

from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.amd import LANES, instead_of
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.gemm_config import UNLIMITED
from rwkv_gpu.kernels.tuned import runs

H200 = LIMITS["h200"]
AMD = replace(H200, subgroup_size=0, max_workgroup_memory=64 << 10)
AMD_UNITS = replace(AMD, subgroup_size=64, fragment=16)  # a device with matrix units in use
INTEL = replace(H200, subgroup_size=0, subgroup_width=8)


def configs(can):
    """Returns all configurations of products, with their formats."""
    tuning = default_tuning(can)
    return [config for _, config in tuning.gemm_table]


@pytest.mark.parametrize("can", [AMD, AMD_UNITS], ids=["plain", "with matrix units"])
def test_no_configuration_for_amd_has_a_form_that_spills_less(can):
    assert all(instead_of(config) == config for config in configs(can))
    assert any(instead_of(config) != config for config in configs(H200))
    tuning = default_tuning(can)
    assert runs(tuning, can)
    assert max(tuning.lanes.row_lanes, tuning.lanes.sampling_lanes) <= LANES
    assert tuning.attention.rolls_loops


OTHERS = {"h200": H200, "h200 with matrix units": replace(H200, fragment=16), "intel": INTEL, "apple": LIMITS["apple"]}


@pytest.mark.parametrize("can", OTHERS.values(), ids=OTHERS)
def test_other_vendors_keep_their_constants(can):
    tuning = default_tuning(can)
    assert not tuning.attention.rolls_loops
    assert tuning.lanes.sampling_lanes == tuning.lanes.row_lanes == 1024


def test_a_workgroup_of_twice_the_lanes_has_a_tile_of_the_same_size():
    for before in configs(H200):
        after = instead_of(before)
        if before.kernel == "linear/gemm_tile":
            assert (after.r, after.tb, after.lanes_per_row) == (before.r, before.tb, before.lanes_per_row)
            assert after.tb in (4 * after.wg // after.lanes_per_row, 8 * after.wg // after.lanes_per_row)


def test_fewer_lanes_of_a_workgroup_do_not_put_less_work_in_flight():
    halved = [(one, instead_of(one)) for one in configs(H200) if one.kernel == "linear/gemv_int" and one.wg > LANES]
    assert any(before.max_workgroups < UNLIMITED for before, _ in halved)
    for before, after in halved:
        assert after.wg < before.wg
        assert after.max_workgroups == UNLIMITED or (
            after.wg * after.max_workgroups >= before.wg * before.max_workgroups
        ), before
