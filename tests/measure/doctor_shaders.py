"""What the doctor's trials link for a device, recorded without compiling anything."""

import functools
from dataclasses import replace
from types import SimpleNamespace

import pytest

from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.shader import Linked, Pipeline, PipelineCache
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.measure import trials
from rwkv_gpu.measure.cases import cases

GPU = {
    "software": False, "subgroup": True, "subgroup_size": 32, "subgroup_width": 32, "integer_dot": True,
    "coherent": True, "max_workgroup_memory": 48 << 10, "max_invocations": 1024,
}  # fmt: skip
DEFAULTS = {
    "software": False, "subgroup": False, "subgroup_size": 0, "subgroup_width": 1, "f16": False, "coherent": False,
    "max_workgroup_memory": 16 << 10, "max_invocations": 256, "max_storage_buffers": 8,
}  # fmt: skip
CLAIMS = {  # of a device, beside those of the one that is at hand
    "this": {},
    "gpu": GPU | {"max_storage_buffers": 16},
    "gpu with few buffers": GPU | {"max_storage_buffers": 12},
    "gpu with matrix units": GPU | {"fragment": 16},
    "defaults": DEFAULTS,
}


def linked_by_trials(device: Device, monkeypatch: pytest.MonkeyPatch, claims: dict[str, int]) -> list[Linked]:
    """What a device with such capabilities would run: each shader once, where a stand-in compiles."""
    every: list[Linked] = []

    def compiled(self: PipelineCache, linked: Linked) -> Pipeline:
        every.append(linked)
        bindings = linked.bindings()
        group, _ = self._layout(linked)
        return Pipeline(linked.name, SimpleNamespace(_internal=None), group, bindings)

    can = replace(device.capabilities, **claims)
    monkeypatch.setattr(device, "capabilities", can)
    monkeypatch.setattr(PipelineCache, "_compile", compiled)
    monkeypatch.setattr(trials.Stored, "random", staticmethod(functools.lru_cache(64)(trials.Stored.random)))
    device.pipelines.clear()
    try:
        for trial in cases(can, default_tuning(can)):
            trials._recorded(device, trial)
            device.submit([])  # else what was uploaded waits for a submission, in memory
    finally:
        device.pipelines.clear()
    return every
