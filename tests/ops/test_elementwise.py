"""Each activation has a numpy function and a case in the shader; each elementwise op has a part of its kernel."""

from rwkv_gpu.gpu.shader import read
from rwkv_gpu.kernels.dense import MAP_BINARY, UNARY
from rwkv_gpu.ops.elementwise import ELEMENTWISE, FUNCTIONS
from rwkv_gpu.ops.vocabulary import ACTIVATIONS


def test_each_activation_has_a_function_in_numpy_and_a_case_in_the_shader():
    text = read("lib/activation").text
    assert set(FUNCTIONS) == set(ACTIVATIONS)
    assert [name for name in ACTIVATIONS if f"case {name.upper()}:" not in text] == []


def test_each_op_by_element_has_a_part_of_its_kernel():
    parts = {part for hole in (UNARY, *MAP_BINARY.holes) for part in hole.parts}
    assert {row.part for row in ELEMENTWISE.values()} <= parts
