"""Checks the text of WGSL for constructs that naga or other drivers compile wrongly, without their compilers."""

import re
from collections.abc import Iterator, Mapping

from rwkv_gpu.gpu.shader import COMMENT, every_part
from tests.cases import each

CODE = {name: COMMENT.sub("", part.text) for name, part in sorted(every_part().items())}
ALIASES = {
    (part.partition("/")[0], name)
    for part, code in CODE.items()
    for name in re.findall(r"^alias (\w+) = vec", code, re.MULTILINE)
}
SHARED = re.compile(r"var<workgroup>\s+(\w+)\s*:\s*((?:array<)*)(\w+)")
SCALARS = {"f32", "f16", "u32", "i32", "bool", "atomic"}
STRUCTURES = {
    (part.partition("/")[0], name)
    for part, code in CODE.items()
    for name in re.findall(r"^struct (\w+)", code, re.MULTILINE)
}
WRITTEN = re.compile(r"(?:^|[{};])\s*(\w+)([\[.][^=;{}]*?)\s*(?:(?:[-+*/%&|^]|<<|>>)?=(?!=)|\+\+|--)", re.MULTILINE)
POINTED = re.compile(r"\blet \w+ = &(\w+)\b")


@each("part", CODE)
def test_no_alias_of_a_vector_is_constructed_without_arguments(part):
    """naga's HLSL would define the zero of `vec4f()` and of its alias under one name, which DX12 refuses."""
    folder = part.partition("/")[0]
    near = {name for where, name in ALIASES if where in (folder, "lib", "recurrence")}
    made = set(re.findall(r"(?<![\w.])([A-Z]\w*)\(\)", CODE[part]))
    structs = set(
        re.findall(r"^struct (\w+)", "".join(CODE[p] for p in CODE if p.startswith(f"{folder}/")), re.MULTILINE)
    )
    assert made & near - structs == set()


def shared_vectors(part: str) -> Iterator[tuple[str, str, int]]:
    """Returns vectors, matrices and arrays of these in workgroup memory: name, type, and number of indices to an
    element.

    A named type counts as one of them, unless it is a structure.
    """
    folder = part.partition("/")[0]
    for name, arrays, kind in SHARED.findall(CODE[part]):
        if kind not in SCALARS and STRUCTURES.isdisjoint({(folder, kind), ("lib", kind)}):
            yield name, kind, arrays.count("<")


def components_written(code: str, names: Mapping[str, int]) -> list[str]:
    """Returns statements that write a part of such a vector or matrix, or that take a pointer to a part."""
    found = [name + place for name, place in WRITTEN.findall(code) if name in names and steps(place) > names[name]]
    return found + [f"&{name}" for name in POINTED.findall(code) if name in names]


def steps(place: str) -> int:
    """Returns the number of indices and fields in a path, without those inside brackets."""
    depth, found = 0, 0
    for character in place:
        found += depth == 0 and character in "[."
        depth += (character in "[(") - (character in ")]")
    return found


@each("part", CODE)
def test_lanes_write_whole_vectors_of_workgroup_memory(part):
    """In WGSL, a write to a component may write the whole vector, and thus overwrite a component of another lane."""
    folder = part.partition("/")[0]
    others = {
        name: steps for other in CODE if other.startswith(f"{folder}/") for name, _, steps in shared_vectors(other)
    }
    own = set(re.findall(r"\bvar(?:<\w+>)?\s+(\w+)", CODE[part]))  # variables with the same name, perhaps scalars
    names = {name: steps for name, steps in others.items() if name not in own}
    names |= {name: steps for name, _, steps in shared_vectors(part)}
    if part != "moe/groups/best":  # here a lane has the whole vec4
        assert components_written(CODE[part], names) == []


def test_a_write_to_a_component_is_found():
    text = "    tile[at][row % 4u] = x;\n    tile[at + W4[i]] = v;\n    tile[k].x = x;\n    let y = tile[at][0];\n"
    assert len(components_written(text, {"tile": 1})) == 2
    assert len(components_written("    one = v;\n    one.x = x;\n    one[1] += x;\n", {"one": 0})) == 2
    assert len(components_written("if a == b { one.x /= x; one.y <<= 1u; } one.z++;\nlet p = &one;", {"one": 0})) == 4
    assert components_written("if one.x == 1.0 && one.y >= x { y[one.z] = one.w; }", {"one": 0}) == []


def test_vectors_matrices_and_named_tensors_are_all_checked():
    kinds = {kind for part in CODE for _, kind, _ in shared_vectors(part)}
    assert {"vec4f", "vec4u", "vec4", "Column", "Tile", "Half"} <= kinds
    assert "Extent" not in kinds


MATRICES = {name for code in CODE.values() for name in re.findall(r"^alias (\w+) = mat", code, re.MULTILINE)}
STRUCTURE = re.compile(r"^struct (\w+) \{(.*?)\}", re.MULTILINE | re.DOTALL)


@each("part", [part for part, code in CODE.items() if STRUCTURE.search(code)])
def test_no_structure_contains_a_matrix(part):
    """DXC crashes if a function has an array of such structures."""
    held = {
        name: kind for _, fields in STRUCTURE.findall(CODE[part]) for name, kind in re.findall(r"(\w+): (\w+)", fields)
    }
    assert {name: kind for name, kind in held.items() if kind in MATRICES or kind.startswith("mat")} == {}


DECIDES = "Block", "Tile", "Matrix"  # types with the information whether a workgroup has work
RANKED = "moe/choices/ranked"  # needs subgroups, which FXC does not have


@each("part", [part for part in CODE if part != RANKED])
def test_functions_that_decide_whether_a_workgroup_continues_have_one_return(part):
    """FXC does not treat the result of a function with several returns as uniform, and refuses barriers that depend on
    it.
    """
    for name, kind, start in functions(CODE[part]):
        if kind in DECIDES:
            assert len(re.findall(r"\breturn\b", inside(CODE[part], start))) == 1, name


def functions(code: str) -> list[tuple[str, str, int]]:
    """Returns the name and the result type of each function, and the position of its body."""
    found = re.finditer(r"^fn (\w+)\([^{]*\)\s*->\s*([^{]+?)\s*\{", code, re.MULTILINE)
    return [(one[1], one[2], one.end()) for one in found]


def inside(code: str, start: int) -> str:
    """Returns a block without its last bracket."""
    depth, end = 1, start
    while depth:
        depth += {"{": 1, "}": -1}.get(code[end], 0)
        end += 1
    return code[start : end - 1]


VECTOR = re.compile(r"\bvar (\w+)(?:\s*:\s*vec[234]\w*(?:<\w+>)?\s*[;=]|\s*=\s*(?:vec[234]\w*|Rows|Column|Tile)\()")
# FXC accepts these, because it knows the ends of the loops around them, or does not get them.
INDEXED = {"attention/attention_decode", "attention/attention_matrix", "moe/route_rank"}


def indexed(code: str) -> list[str]:
    """Returns the statements that write a component of a vector by a variable index."""
    names = "|".join({found for found in VECTOR.findall(code) if found}) or "(?!)"
    return re.findall(rf"(?<![\w.])(?:{names})\[(?!\d+u?\])[^\]]+\]\s*[-+*/|&]?=(?!=)", code)


@each("part", CODE)
def test_no_vector_of_a_function_is_written_by_index(part):
    """DirectX's older compiler, FXC, unrolls all loops around such a write, and refuses loops of unknown length."""
    assert part in INDEXED or indexed(CODE[part]) == []


def test_a_vector_that_is_written_by_index_is_found():
    assert len(indexed("var v = vec4f();\nv[j] = x;\nlet a = v[j];\nvar w: vec4f;\nw[j + 1u] += x;")) == 2
    assert indexed("var v = vec4f();\nv[0] = x;\nvar s: array<vec4f, 4>;\ns[j] = v;\nif v[j] == x {}") == []
