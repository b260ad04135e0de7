"""Runs each kernel once on the GPU as users do, and compares it with numpy. tests/ops has every variant."""

from collections.abc import Mapping

import pytest

from benchmarks.offline.variants import ShaderCollector, record
from rwkv_gpu.gpu.device import Capabilities, Device
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.registry import KERNELS
from rwkv_gpu.measure.cases import cases, quick
from rwkv_gpu.measure.trials import Outcome, Trial, run

pytestmark = pytest.mark.quick
SERVING = [name for name, kernel in KERNELS.items() if kernel.op]


@pytest.fixture(scope="module")
def trials(fast_device: Device) -> Mapping[str, Trial]:
    """Returns the doctor's first trial of each kernel. Nothing is compiled for it."""
    can = fast_device.capabilities
    wanted = {name for name in SERVING if runs_on(name, can)}
    found: dict[str, Trial] = {}
    for trial in quick(cases(can, default_tuning(can))):
        device = ShaderCollector(can)
        record(device, trial)
        for linked in device.linked.values():
            for origin in linked.origins:
                found.setdefault(origin.part or origin.file.removesuffix(".wgsl"), trial)
        if wanted <= found.keys():
            break
    return found


@pytest.fixture(scope="module")
def outcomes() -> dict[int, Outcome]:
    """Returns the results of trials by identity, because a trial may cover several kernels."""
    return {}


def runs_on(name: str, can: Capabilities) -> bool:
    """True if a device meets the needs of a kernel."""
    return KERNELS[name].needs.met(can)


@pytest.mark.parametrize("name", SERVING)
def test_each_kernel_agrees_with_numpy(fast_device, trials, outcomes, name):
    if not runs_on(name, fast_device.capabilities):
        pytest.skip("this device lacks what the kernel needs")
    trial = trials[name]
    if id(trial) not in outcomes:
        outcomes[id(trial)] = run(fast_device, trial)
    assert outcomes[id(trial)].right, outcomes[id(trial)]
