"""What naga and drivers make of WGSL, seen in its text: Apple's and Microsoft's compilers are not where tests run."""

import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import rwkv_gpu

SHADERS = Path(rwkv_gpu.__file__).parent / "shaders"
CODE = {path: re.sub(r"//[^\n]*", "", path.read_text(encoding="utf-8")) for path in sorted(SHADERS.rglob("*.wgsl"))}
ALIASES = {
    (path.relative_to(SHADERS).parts[0], name)
    for path, code in CODE.items()
    for name in re.findall(r"^alias (\w+) = vec", code, re.MULTILINE)
}
SHARED = re.compile(r"var<workgroup>\s+(\w+)\s*:\s*array<(?:vec[234]|Column)")
WRITTEN = re.compile(r"^\s*(\w+)([\[.][^=;]*?)\s*[-+*|]?=(?!=)", re.MULTILINE)


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(SHADERS)))
def test_no_alias_of_a_vector_is_made_from_nothing(path):
    """naga's HLSL would define the zero of `vec4f()` and of its alias under one name: DX12 would refuse the shader."""
    folder = path.relative_to(SHADERS).parts[0]
    near = {name for where, name in ALIASES if where in (folder, "lib", "recurrence")}
    made = set(re.findall(r"(?<![\w.])([A-Z]\w*)\(\)", CODE[path]))
    structs = set(re.findall(r"^struct (\w+)", "".join(CODE[p] for p in CODE if folder in p.parts), re.MULTILINE))
    assert made & near - structs == set()


def shared_vectors() -> Iterator[tuple[str, str]]:
    """Arrays of vectors in workgroup memory, by the folder of shaders that they are linked with."""
    for path, code in CODE.items():
        for name in SHARED.findall(code):
            yield path.relative_to(SHADERS).parts[0], name


def components_written(code: str, names: set[str]) -> list[str]:
    """Statements that write a component of an element of such arrays."""
    return [
        name + place for name, place in WRITTEN.findall(code) if name in names and place[0] == "[" and steps(place) > 1
    ]


def steps(place: str) -> int:
    """How many indices and fields lead to a place: those outside of other brackets."""
    depth, found = 0, 0
    for character in place:
        found += depth == 0 and character in "[."
        depth += (character in "[(") - (character in ")]")
    return found


@pytest.mark.parametrize("path", CODE, ids=lambda path: str(path.relative_to(SHADERS)))
def test_lanes_write_whole_vectors_of_workgroup_memory(path):
    """WGSL lets a write to a component touch the whole vector: what a neighbour writes meanwhile may be lost."""
    folder = path.relative_to(SHADERS).parts[0]
    names = {name for where, name in shared_vectors() if where == folder}
    if path != SHADERS / "moe/groups/best.wgsl":  # a lane has the whole vec4 there
        assert components_written(CODE[path], names) == []


def test_a_write_to_a_component_is_found():
    text = "    tile[at][row % 4u] = x;\n    tile[at + W4[i]] = v;\n    tile[k].x = x;\n    let y = tile[at][0];\n"
    assert len(components_written(text, {"tile"})) == 2


MATRICES = {name for code in CODE.values() for name in re.findall(r"^alias (\w+) = mat", code, re.MULTILINE)}
STRUCTURE = re.compile(r"^struct (\w+) \{(.*?)\}", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "path", [path for path, code in CODE.items() if STRUCTURE.search(code)], ids=lambda path: path.stem
)
def test_no_structure_has_a_matrix_in_it(path):
    """DXC crashes where a function has an array of such structures."""
    held = {
        name: kind for _, fields in STRUCTURE.findall(CODE[path]) for name, kind in re.findall(r"(\w+): (\w+)", fields)
    }
    assert {name: kind for name, kind in held.items() if kind in MATRICES or kind.startswith("mat")} == {}
