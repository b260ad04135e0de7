"""The registry of kernels: all listed kernels exist, and others are refused."""

import re

import pytest

from rwkv_gpu.errors import ShaderError
from rwkv_gpu.gpu.shader import COMMENT, every_part, read
from rwkv_gpu.gpu.virtual import LIMITS
from rwkv_gpu.kernels.expert_config import ExpertKernel
from rwkv_gpu.kernels.gemm_config import GemmKernel
from rwkv_gpu.kernels.kernel import Needs
from rwkv_gpu.kernels.parts import PART_NEEDS
from rwkv_gpu.kernels.registry import KERNELS, expert_trials, gemm_trials, link, variants
from tests.cases import each

# Parts linked to every kernel; what `Device` and others run directly.
OUTSIDE = {
    "lib/step",
    "probes/busy_loop",
    "probes/lanes",
    "probes/subgroup",
    "weights/exchange",
}
ADD = ["dense/binary/add", "lib/lanes/plain"]


def test_every_shader_is_a_kernel_or_a_part_of_one_and_every_entry_has_its_text():
    named = set(KERNELS) | {part for kernel in KERNELS.values() for hole in kernel.holes for part in hole.parts}
    named |= {part for kernel in KERNELS.values() for part in (*kernel.shared, *kernel.core)}
    assert named | OUTSIDE == every_part().keys()
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
    assert not Needs(matrix_units=True).met(can) or can.fragment
    assert ("linear/gemm_matrix", "linear/epilogue/rows") not in set(variants(can)) or can.fragment


NEEDS = re.compile(r"^// needs (.+)$", re.MULTILINE)
DECLARED = re.compile(r"\b(?:fn|struct|alias)\s+(\w+)")
CALLED = re.compile(r"\b([A-Za-z_]\w*)\s*\(")
BUILTIN = frozenset(
    """
abs all any array arrayLength atomic atomicAdd atomicExchange atomicLoad atomicMax atomicStore
binding bitcast bool builtin ceil
clamp const_assert coopLoad coopLoadT coopMultiplyAdd coopStore coopStoreT cos countLeadingZeros countOneBits dot
dot4I8Packed
exp exp2 f16 f32 fma for frexp group i32 if inverseSqrt ldexp log mat2x4f mat3x4f mat4x4f max min mix pack2x16float
ptr return round select sign sin sqrt storageBarrier subgroupAdd subgroupBroadcast subgroupBroadcastFirst
subgroupExclusiveAdd
subgroupMax subgroupMin subgroupShuffle subgroupShuffleXor switch tanh transpose u32 unpack2x16float unpack4xI8
subgroupAny subgroupBarrier while workgroupBarrier workgroupUniformLoad workgroup_size
""".split()  # noqa: SIM905 - a list of so many words is no easier to read
)


ALIASES = frozenset(("Sums", "Left", "Right"))  # aliases of fragment types, in the prelude


def code(name: str) -> str:
    return COMMENT.sub("", read(name).text)


def declared(name: str) -> set[str]:
    return set(DECLARED.findall(code(name)))


def needed(name: str) -> dict[str, set[str]]:
    """Returns the functions listed in the first comment of a shader, by the hole or part that defines them."""
    said = [one.split(": ") for line in NEEDS.findall(read(name).text) for one in line.split("; ")]
    assert len(said) == len({where for where, _ in said}), f"{name} names a hole twice"
    return {where: set(names.split(", ")) for where, names in said}


@each("name", sorted(every_part()))
def test_a_shader_lists_at_its_head_the_functions_it_needs(name):
    calls = (
        {word for word in CALLED.findall(code(name)) if not word.startswith("vec")} - BUILTIN - ALIASES - declared(name)
    )
    said = list(needed(name).values())
    assert set().union(*said) == calls
    assert sum(map(len, said)) == len(calls)


@each("kernel", KERNELS.values())
def test_a_part_that_fills_a_hole_defines_the_functions_that_others_need(kernel):
    holes = {hole.name: hole for hole in kernel.holes}
    shared = {name for part in (*kernel.shared, *kernel.core, "lib/step", kernel.name) for name in declared(part)}
    fills = {part: declared(part) for hole in kernel.holes for part in hole.parts}
    for name in (kernel.name, *kernel.shared, *kernel.core, *fills):
        for where, functions in needed(name).items():
            assert functions <= shared.union(*fills.values()), f"nothing of {kernel.name} defines what {name} needs"
            hole = holes.get(where)
            if hole is None or hole.optional or where == "format" or name in fills:
                continue  # a format's shared parts define some; others are only combined with one part of another hole
            elsewhere = shared.union(*(fills[part] for part in fills if part not in hole.parts))
            for part in hole.parts:
                lacks = functions - fills[part] - elsewhere
                assert not lacks, f"{part} has no {lacks}, which {name} needs of {where}"


@pytest.mark.parametrize(
    "kernel", [one for one in KERNELS.values() if isinstance(one, GemmKernel | ExpertKernel)], ids=lambda one: one.name
)
def test_a_kernel_that_multiplies_integers_is_tried_at_start_to_a_tolerance(kernel):
    """Each configuration uses a kernel of matrix products: its own, or a substitute."""
    tried = kernel.self_test if isinstance(kernel, GemmKernel) else kernel.tried_as
    assert bool(tried) == ("lib/dot16" in kernel.shared)
    for can in LIMITS.values():
        for config in kernel.trials(can).values() if kernel.needs.met(can) else ():
            product = config.tried_at_start
            assert bool(product) == bool(tried)
            assert not product or (product.entry.self_test and product.tolerance.gated > product.tolerance.result)
