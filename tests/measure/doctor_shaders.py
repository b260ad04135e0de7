"""Records the shaders that the doctor's trials link for a device, without compiling them."""

import functools

import pytest

from benchmarks.offline.variants import ShaderCollector, record
from rwkv_gpu.gpu.device import Capabilities
from rwkv_gpu.gpu.shader import Linked
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
CLAIMS = {  # devices in addition to the available one
    "this": {},
    "gpu": GPU | {"max_storage_buffers": 16},
    "gpu with few buffers": GPU | {"max_storage_buffers": 12},
    "gpu with matrix units": GPU | {"fragment": 16},
    "defaults": DEFAULTS,
}


def linked_by_trials(can: Capabilities) -> list[Linked]:
    """Returns each shader once that a device with these capabilities would run."""
    device = ShaderCollector(can)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trials.Stored, "random", staticmethod(functools.lru_cache(64)(trials.Stored.random)))
        for trial in cases(can, default_tuning(can)):
            record(device, trial)
    return list(device.linked.values())
