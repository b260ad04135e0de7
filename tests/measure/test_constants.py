"""The constants of every dispatch of every synthetic model on an H200 fit together, also of merged dispatches.

A driver would reveal a fault only in models that are run there. `make plans` records more steps, in every
quantisation, and all models for other families of GPUs.
"""

import sys
from dataclasses import replace
from itertools import product, takewhile

import pytest

from benchmarks.offline.variants import FAMILIES, ShaderCollector, record
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.tuned import runs
from rwkv_gpu.measure.cases import cases, quick
from rwkv_gpu.measure.plans import Step, dispatches_of
from rwkv_gpu.measure.quants import QUANTS
from rwkv_gpu.measure.shapes import SHAPES, Shape
from rwkv_gpu.measure.synthetic import noise, opened
from tests.const_asserts import broken_asserts
from tests.measure.test_metal_traps import Constants, threadgroup_bytes
from tests.measure.tiny import WithoutTokens

PLAIN = LIMITS["h200"]
UNITS = replace(PLAIN, fragment=16)  # with matrix units
OTHERS = ("qwen3-30b-a3b", "rwkv7-0.4b", "phi4-14.7b")  # a mixture of experts, a recurrence, and 5,120 columns
LAYERS = 6  # the first layers contain every kind of layer
UNCUT = ("gemma-4-e4b-7.5b",)  # its last 18 layers share keys and values of the first
SOME = ((PLAIN, 1), (PLAIN, 2), (UNITS, 16), (UNITS, 512))
EVERY = tuple((can, rows) for can in (PLAIN, UNITS) for rows in (1, 2, 16, 512))

seen: set[tuple[str, int]] = set()  # sources without a fault, and their bytes of workgroup memory


def cut(name: str) -> Shape:
    """Returns the first layers of a shape."""
    return SHAPES[name] if name in UNCUT else SHAPES[name].cut(LAYERS)


def faults(name: str, shape: Shape, steps, quant: str = "q4_k_m") -> list[str]:
    """Returns the dispatches of these steps whose constants contradict each other."""
    found = []
    with opened(noise(name, WithoutTokens(**vars(shape)), QUANTS[quant])) as file:
        for can, rows in steps:
            for dispatch in dispatches_of(file, can, default_tuning(can), Step(rows, prefill=rows > 64))[0]:
                source = dispatch.linked.source
                if (source, can.max_workgroup_memory) in seen:
                    continue
                if broken := broken_asserts(source):
                    found.append(f"{rows} rows, {dispatch.name}: {', '.join(broken)}")
                elif not can.fragment and (nbytes := threadgroup_bytes(source)) > can.max_workgroup_memory:
                    found.append(f"{rows} rows, {dispatch.name}: {nbytes} bytes of workgroup memory")
                else:
                    seen.add((source, can.max_workgroup_memory))
    return found


@pytest.mark.parametrize("name", [name for name in SHAPES if name not in UNCUT])
def test_the_constants_of_every_dispatch_on_an_h200_fit_together(name):
    assert faults(name, cut(name), SOME) == []


def test_arrays_next_to_tiles_of_fragments_take_multiples_of_16_bytes():
    """NVIDIA places workgroup variables without gaps, and loads fragments as if each started at such a multiple."""
    device, found = ShaderCollector(UNITS), {}
    for trial in quick(takewhile(lambda trial: trial.op != "speed", cases(UNITS, default_tuning(UNITS)))):
        record(device, trial)
    for linked in device.linked.values():
        if "coopLoad" in linked.source:
            names = Constants(linked.source)
            found |= {(linked.name, kind): names.nbytes(kind) for kind in names.shared}
    assert len(found) > 100
    assert {one: nbytes for one, nbytes in found.items() if nbytes % 16} == {}


@pytest.mark.parametrize("family", [family for family in FAMILIES if not family.startswith("nvidia")])
def test_default_tuning_of_other_gpu_families_runs_there_and_its_constants_fit_together(family):
    can = FAMILIES[family]
    assert runs(default_tuning(can), can)
    for name in OTHERS:
        assert faults(name, cut(name), [(can, rows) for rows in (1, 4, 512)]) == []


@pytest.mark.parametrize("subgroup", [8, 16, 32, 64])
def test_lanes_that_share_a_row_divide_the_workgroup_in_every_merged_dispatch(subgroup):
    can = replace(PLAIN, subgroup_size=subgroup, subgroup_width=subgroup)
    tuning = default_tuning(can)
    shapes = {shape for _, shape in tuning.gemm_table}
    for lead, own, packed in product(shapes, shapes, (False, True)):
        found = tuning.merged(lead, own, packed)
        assert found.wg % found.lanes_per_row == 0, (lead, own)


def test_an_assertion_that_does_not_hold_is_found():
    text = "const WG = 640u;\nconst LANES = min(WG, 256u);\nconst_assert WG % LANES == 0u && LANES > 8u;\n"
    assert broken_asserts(text) == ["WG % LANES == 0u && LANES > 8u"]
    assert broken_asserts(text.replace("640u", "512u")) == []


if __name__ == "__main__":
    wrong = [
        f"{name}-{quant}: {fault}"
        for name in SHAPES
        for quant in QUANTS
        for fault in faults(name, cut(name), EVERY, quant)
    ]
    wrong += [
        f"{family}, {name}: {fault}"
        for family, can in FAMILIES.items()
        for name in SHAPES
        for fault in faults(name, cut(name), [(can, rows) for rows in (1, 2, 4, 8, 16, 64, 512)])
    ]
    sys.exit("\n".join(wrong) or 0)
