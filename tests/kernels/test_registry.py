"""The registry of kernels: what it lists is there, and what it does not list is refused."""

import pytest

from rwkv_gpu.errors import ShaderError
from rwkv_gpu.gpu import shader
from rwkv_gpu.kernels.kernel import Needs
from rwkv_gpu.kernels.parts import PART_NEEDS
from rwkv_gpu.kernels.registry import KERNELS, expert_trials, gemm_trials, link, variants

SHADERS = shader.resources.files("rwkv_gpu.shaders")
OUTSIDE = {"lib/step", "probes/lanes", "probes/subgroup"}  # linked to every kernel; probes that `Device` runs by itself
ADD = ["dense/binary/add", "lib/lanes/plain"]


def shader_files() -> set[str]:
    root = str(SHADERS)
    return {str(path)[len(root) + 1 :].removesuffix(".wgsl") for path in SHADERS.rglob("*.wgsl")}


def test_every_shader_is_a_kernel_or_a_part_of_one_and_every_entry_has_its_file():
    named = set(KERNELS) | {part for kernel in KERNELS.values() for hole in kernel.holes for part in hole.parts}
    named |= {part for kernel in KERNELS.values() for part in kernel.shared}
    assert named | OUTSIDE == shader_files()
    assert PART_NEEDS.keys() <= named


def test_a_part_that_no_hole_lists_is_refused():
    assert link("dense/map_binary", ADD, {"D": 1, "WG": 64}).name.startswith("dense/map_binary")
    for parts in ([*ADD, "lib/activation"], [*ADD, "dense/binary/mul"], ADD[1:]):
        with pytest.raises(ShaderError, match="dense/map_binary"):
            link("dense/map_binary", parts, {"D": 1, "WG": 64})
    with pytest.raises(ShaderError, match="there is no kernel"):
        link("dense/map_ternary", ADD)


def test_every_configuration_that_is_tried_is_of_a_kernel_that_the_device_can_run(device):
    can = device.capabilities
    for kernel, config in (*gemm_trials(can).values(), *expert_trials(can).values()):
        assert kernel.needs.met(can) and config.runs_on(can)
        assert config.kernel == kernel.name or kernel.name == "linear/gemv_single_pass"
    assert ("linear/gemv", "formats/q4_k") in set(variants(can))


def test_a_kernel_whose_needs_are_not_met_has_no_variants(fast_device):
    can = fast_device.capabilities
    assert not Needs(lanes=2 * max(can.subgroup_width, 1)).met(can)
    assert not Needs(buffers=can.max_storage_buffers + 1).met(can)
    assert not Needs(cooperative_matrix=True).met(can) or can.cooperative_matrix
    assert ("linear/gemm_coop", "linear/epilogue/rows") not in set(variants(can)) or can.cooperative_matrix
