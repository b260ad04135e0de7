"""The shaders of the doctor's trials: they have every part of every hole, and are valid for every driver."""

from collections.abc import Iterator
from dataclasses import replace

import pytest

from rwkv_gpu.gpu.device import Capabilities, Device
from rwkv_gpu.gpu.shader import PRELUDE, Linked
from rwkv_gpu.kernels.registry import variants
from tests.cases import slow_unless
from tests.gpu.test_translate import ON_MATRIX_UNITS, invalid, needs_naga, of_each_size, one_of_each, translate
from tests.measure.doctor_shaders import CLAIMS, linked_by_trials

# GPUs with few buffers and GPUs with matrix units also run all shaders of this GPU.
every_device = pytest.mark.parametrize(
    "linked", slow_unless(CLAIMS.keys() - {"gpu"}, CLAIMS), indirect=True, scope="module"
)


@pytest.fixture(scope="module")
def linked(request, fast_device) -> tuple[str, list[Linked]]:
    """Returns the shaders that a device with these capabilities would run."""
    return request.param, linked_by_trials(claimed(fast_device, request.param))


def claimed(device: Device, claims: str) -> Capabilities:
    """Returns the device's capabilities, with some of them replaced."""
    return replace(device.capabilities, **CLAIMS[claims])


@pytest.fixture(scope="module")
def valid() -> set[str]:
    """The shaders that naga has already accepted."""
    return set()


def tried(linked: Linked) -> Iterator[tuple[str, str]]:
    """Returns the kernels of a shader, each with its parts."""
    kernel = ""
    for origin in linked.origins:
        if origin.file != PRELUDE and kernel:
            yield kernel, origin.part
        kernel = "" if origin.file == PRELUDE else kernel or origin.part


@every_device
def test_every_registered_kernel_is_tried_with_every_part_of_every_hole(fast_device, linked):
    claims, every = linked
    found = {pair for one in every for pair in tried(one)}
    assert set(variants(claimed(fast_device, claims))) - found == set()


@needs_naga
@every_device
def test_every_registered_kernel_translates(request, linked, tmp_path, valid):
    """Checks all shaders of the doctor's trials with every part of every hole, because plans of models may lack some.

    Kernels on matrix units are for Vulkan only, so they are only validated.
    """
    claims, every = linked
    sources = {one.source for one in every} if of_each_size(request) else one_of_each(every)
    on_matrix_units = {source for source in sources if ON_MATRIX_UNITS in source}
    assert len(sources - on_matrix_units) > 100
    assert len(on_matrix_units) > 20 or claims != "gpu with matrix units"
    assert translate(tmp_path, sources - on_matrix_units - valid) == []
    assert invalid(tmp_path, on_matrix_units) == []
    valid |= sources
