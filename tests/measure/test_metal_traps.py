"""Differences between Metal and Vulkan, checked in the text of shaders. Nothing is compiled, and no GPU is needed.

wgpu makes Metal compile with fast maths and without naga's bounds on loops. An Apple GPU has 32 KiB of threadgroup
memory, 31 buffers per stage, SIMD groups of 32 lanes, and argument buffers with limits that depend on a tier.
"""

import re
from itertools import takewhile

import pytest

from benchmarks.offline.variants import FAMILIES, ShaderCollector, record
from rwkv_gpu.gpu.shader import BINDING, COMMENT, Linked, every_part
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.measure.cases import cases, quick
from tests.cases import each
from tests.gpu.test_translate import ON_MATRIX_UNITS

APPLE = FAMILIES["apple"]
SIMD = 32  # lanes of a SIMD group
BUFFERS = 31  # maximum buffers of a stage; naga uses one for the lengths of the others
UNIFORM_BYTES = 64 << 10  # maximum bytes of a buffer in the constant address space
TANH_LIMIT = 44.0  # beyond it Metal's fast tanh is infinity over infinity
TEXTS = {name: COMMENT.sub("", part.text) for name, part in sorted(every_part().items())}

LOOP = re.compile(r"\b(?:for|while|loop)\b[^{]*")
COUNTED = re.compile(r"for \(var (\w+) = [^;]+; ([^;]+); (\w+) ?(?:\+\+|--|[-+*/]=|>>=|<<=)[^;{]*\) $")
FIELD = re.compile(r"(\w+): ((?:[^,<>\n]|<(?:[^<>]|<[^<>]*>)*>)+)")  # a field of a structure
BOUNDED = re.compile(r"[<>]")


def loops(text: str) -> list[str]:
    return LOOP.findall(text)


def arguments(text: str, function: str) -> list[str]:
    """Returns the text between the brackets of each call."""
    found = []
    for call in re.finditer(rf"\b{function}\(", text):
        depth, end = 1, call.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        found.append(text[call.end() : end - 1])
    return found


def body(text: str, start: int) -> str:
    """Returns the text of a block without nested blocks."""
    depth, found = 1, ""
    while depth:
        depth += {"{": 1, "}": -1}.get(text[start], 0)
        found += text[start] if depth == 1 else ""
        start += 1
    return found


@pytest.fixture(scope="module")
def given() -> dict[str, Linked]:
    """Returns the shaders of the doctor's quick trials for an Apple GPU."""
    device = ShaderCollector(APPLE)
    for trial in quick(takewhile(lambda trial: trial.op != "speed", cases(APPLE, default_tuning(APPLE)))):
        record(device, trial)
    return device.linked


@each("name", [name for name, text in TEXTS.items() if "tanh(" in text])
def test_tanh_is_called_with_small_numbers_only(name):
    asked = arguments(TEXTS[name], "tanh")
    for argument in asked:
        assert argument.startswith("clamp(") and argument.endswith(")"), argument
        bounds = [abs(float(bound)) for bound in re.findall(r"-?\b\d+\.\d+(?=\)|,|$)", argument[6:-1])[-2:]]
        assert len(bounds) == 2 and max(bounds) < TANH_LIMIT, argument


@each("name", TEXTS)
def test_no_shader_compares_a_number_with_itself(name):
    """Fast maths assumes that no number is NaN, so the compiler removes the comparison."""
    assert re.findall(r"(?<![-+*/%] )(?<![\w.])([\w.]+) (?:!=|==) \1(?![\w.(\[]| [-+*/%])", TEXTS[name]) == []


@each("name", [name for name, text in TEXTS.items() if LOOP.search(text)])
def test_every_loop_counts_up_or_down_to_a_bound(name):
    """In C++, an endless loop without effects is undefined behaviour, and wgpu disables naga's loop bounds.

    Kernels on matrix units are for Vulkan only.
    """
    text = TEXTS[name]
    for found in LOOP.finditer(text):
        head = found[0]
        if head == "loop ":
            assert ON_MATRIX_UNITS in text
            continue
        counted = COUNTED.match(head)
        if counted:
            assert counted[1] == counted[3], head
            assert counted[1] in counted[2] and BOUNDED.search(counted[2]), head
        else:
            assert head.startswith("while "), head
            counter = head.split()[1]
            assert re.match(rf"while {counter}\b[^<]* < ", head), head
            assert re.search(rf"\b{counter}(\+\+| \+= \w+);", body(text, found.end() + 1)), head


def test_every_shader_keeps_to_the_buffers_of_a_stage(given):
    for linked in given.values():
        assert len(linked.bindings()) < BUFFERS, linked.name
    assert APPLE.max_storage_buffers < BUFFERS


@each("name", [name for name, text in TEXTS.items() if "@binding" in text])
def test_every_binding_is_one_buffer_and_needs_no_argument_buffer(name):
    """wgpu makes argument buffers of arrays of bindings. Their limits depend on the tier of the GPU."""
    text = TEXTS[name]
    assert "binding_array" not in text
    assert len(BINDING.findall(text)) == text.count("@binding"), "buffers of group 0, no textures or samplers"


def test_every_uniform_fits_the_constant_memory_of_an_argument(given):
    sizes = {}
    for linked in given.values():
        names = Constants(linked.source)
        for kind in re.findall(r"var<uniform> \w+: (.+?);", COMMENT.sub("", linked.source)):
            sizes[linked.name, kind] = names.nbytes(kind)
    assert min(sizes.values()) > 0
    assert {name: size for name, size in sizes.items() if size > UNIFORM_BYTES} == {}


def test_every_shader_keeps_to_threadgroup_memory(given):
    sizes = {linked.name: threadgroup_bytes(linked.source) for linked in given.values()}
    assert max(sizes.values()) > 16 << 10, "some use more than WebGPU promises"
    assert {name: size for name, size in sizes.items() if size > 32 << 10} == {}


def test_subgroups_are_simd_groups(given):
    """The subgroup size of a shader is Metal's, and its lanes form whole SIMD groups."""
    widths = set()
    for linked in given.values():
        names = Constants(linked.source)
        if "SUBGROUP" in names.texts and "subgroup" in linked.source:
            widths.add(names["SUBGROUP"])
            assert names["WG"] % names["SUBGROUP"] == 0, linked.name
        if re.search(r"\bsubgroup[A-Z]", linked.source):
            assert names["WG"] % SIMD == 0 or names["WG"] < SIMD, linked.name
    assert widths and all(SIMD % width == 0 for width in widths)


CALLS = {"min": min, "max": max, "select": lambda no, yes, which: yes if which else no, "u32": int, "f32": float}


class Constants(dict):
    """The constants of a shader, computed on first use."""

    def __init__(self, source: str) -> None:
        source = COMMENT.sub("", source)
        self.texts = dict(re.findall(r"^const (\w+)(?:: [\w<>, ]+)? = (.+?);", source, re.MULTILINE | re.DOTALL))
        self.aliases = dict(re.findall(r"^alias (\w+) = (.+?);", source, re.MULTILINE))
        self.structs = {
            name: dict(FIELD.findall(fields))
            for name, fields in re.findall(r"^struct (\w+) \{(.*?)\}", source, re.MULTILINE | re.DOTALL)
        }
        self.shared = re.findall(r"^var<workgroup> \w+: (.+?);", source, re.MULTILINE)

    def __missing__(self, name: str) -> object:
        if name in CALLS:
            return CALLS[name]
        if name in self.structs:
            return lambda *values: type(name, (), dict(zip(self.structs[name], values, strict=True)))
        if name == "array":
            return lambda *values: values
        self[name] = found = self.computed(self.texts[name])
        return found

    def computed(self, text: str) -> int:
        """Returns the value of an expression of integers."""
        text = re.sub(r"\barray<[\w<>, ]+?>\(", "array(", re.sub(r"\b(0x[0-9a-f]+|\d+)[uif]\b", r"\1", text))
        text = re.sub(r"(?<![=!<>])!(?!=)", " not ", text.replace("&&", " and ").replace("||", " or ")).replace(
            "/", "//"
        )
        return eval(" ".join(text.split()), {"true": True, "false": False, "__builtins__": {}}, self)

    def nbytes(self, kind: str) -> int:
        """Returns the size in memory of a value of a type."""
        kind = kind.strip()
        kind = self.aliases.get(kind, kind)
        if kind in self.structs:
            return -(-sum(map(self.nbytes, self.structs[kind].values())) // 4) * 4
        if kind.startswith("array<"):
            element, count = split(kind[6:-1])
            return self.nbytes(element) * self.computed(count)
        if found := re.fullmatch(r"atomic<(.+)>", kind):
            return self.nbytes(found[1])
        if found := re.fullmatch(r"vec([234])(?:([fui])|<(\w+)>)", kind):
            return (2 if found[1] == "2" else 4) * (4 if found[2] else self.nbytes(found[3]))
        if found := re.fullmatch(r"mat([234])x([234])f", kind):
            return int(found[1]) * self.nbytes(f"vec{found[2]}f")
        return {"f16": 2}.get(kind) or {"f32": 4, "u32": 4, "i32": 4, "bool": 4}[kind]


def split(text: str) -> tuple[str, str]:
    """Splits at commas outside of brackets."""
    depth = 0
    for at, sign in enumerate(text):
        depth += (sign in "<(") - (sign in ">)")
        if sign == "," and not depth:
            return text[:at], text[at + 1 :]
    raise AssertionError(f"{text} has no count")


def threadgroup_bytes(source: str) -> int:
    """Returns the size of all workgroup variables, each aligned to 16 bytes."""
    names = Constants(source)
    return sum(-(-names.nbytes(kind) // 16) * 16 for kind in names.shared)
