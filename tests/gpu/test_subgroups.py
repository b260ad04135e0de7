"""Subgroup sizes: a kernel uses only as many lanes as every kernel on the device certainly has."""

import re
from dataclasses import replace

from benchmarks.offline.variants import FAMILIES, ShaderCollector, record
from rwkv_gpu.gpu.device import with_subgroups
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.measure.cases import cases, quick
from rwkv_gpu.ops.rwkv import prompt_lanes
from rwkv_gpu.ops.target import Target

CHOSEN_BY_COMPILER = FAMILIES["intel"]
LANES = re.compile(r"^const (?:SUBGROUP|SPLIT|LANES_PER_KEY) = (\d+)u?;", re.MULTILINE)
ONE_SIZE = {"one_subgroup", "broadcast"}  # parts that are right for one size only


def test_a_subgroup_size_chosen_by_the_compiler_is_not_relied_on():
    """The probe ran with 32 lanes, but another kernel may run with 8."""
    can = with_subgroups(LIMITS["h200"], 32, 8)
    assert (can.subgroup_size, can.subgroup_width) == (0, 8)
    steady = with_subgroups(LIMITS["h200"], 32, None)
    assert (steady.subgroup_size, steady.subgroup_width) == (32, 32)
    on_matrix_units = with_subgroups(replace(LIMITS["h200"], fragment=16), 64, 32)
    assert (on_matrix_units.subgroup_size, on_matrix_units.subgroup_width) == (64, 32)


def test_a_state_of_long_rows_is_shared_among_lanes_that_surely_shuffle():
    can = replace(CHOSEN_BY_COMPILER, subgroup_size=32)
    split, _ = prompt_lanes(256, Target(can, default_tuning(can), {}))
    assert split == can.subgroup_width


def test_if_the_compiler_chooses_the_subgroup_size_shaders_rely_on_the_smallest():
    device = ShaderCollector(CHOSEN_BY_COMPILER)
    for trial in quick(cases(CHOSEN_BY_COMPILER, default_tuning(CHOSEN_BY_COMPILER))):
        record(device, trial)
    shuffles = 0
    for linked in device.linked.values():
        if "subgroup" not in linked.source:
            continue
        lanes = [int(count) for count in LANES.findall(linked.source)]
        shuffles += bool(lanes)
        assert max(lanes, default=0) <= CHOSEN_BY_COMPILER.subgroup_width, linked.name
        assert not ONE_SIZE & set(linked.name.split(".")), linked.name
    assert shuffles > 50
