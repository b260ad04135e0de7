"""Compiles a shader for Metal as a CPU program: naga's MSL with its arguments, by clang.

The program runs one dispatch with its buffers in files. It reports races, accesses out of bounds, and barriers that
some lanes never reach (metal_cpu/run.cpp).
"""

import hashlib
import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from rwkv_gpu.gpu.shader import Linked

HERE = Path(__file__).parent / "metal_cpu"
STAND_IN = (HERE / "metal_stdlib", HERE / "simd" / "simd.h", Path(__file__))
BUFFERS = 31  # of a stage
THREADGROUP_BYTES = 32 << 10
CLANG = shutil.which("clang++") or "clang++-14"
LITERAL = re.compile(r"(?<![\w.])(\d+\.\d*(?:e[+-]?\d+)?)(?![\w.])")
SWIZZLE = re.compile(r"\.([xyzw]{2,4})\b(?!\()")
STRUCT = re.compile(r"^struct (\w+) \{\n(.*?)^\};", re.MULTILINE | re.DOTALL)
FIELD = re.compile(r" (\w+)(?:\[\d+\])*;$", re.MULTILINE)
WIDTH = re.compile(r"@workgroup_size\((\w+)\)")
PARAMETERS = re.compile(r"kernel void main_\(\n(.*?)\n\) \{", re.DOTALL)
BUILT_IN = re.compile(r"(?:metal::)?uint3? \w+ \[\[(\w+)\]\]")
SIZES = re.compile(r"constant _mslBufferSizes& ")
ARGUMENT = re.compile(
    r"(?P<coherent>coherent )?(?P<space>device|constant|threadgroup) (?P<kind>[\w:]+)(?: const)?& (?P<name>\w+)"
)
# The same options as Metal: fast maths, in which no number is NaN or infinite, and subnormal numbers are 0.
FLAGS = ("-std=c++17", "-O2", "-ffast-math", "-march=native", "-fno-vectorize", "-fno-slp-vectorize")
WATCHED = (
    *("-fsanitize=thread", "-mllvm", "-tsan-instrument-func-entry-exit=0", "-mllvm", "-tsan-instrument-atomics=0"),
    *("-Wno-unknown-attributes", "-fno-strict-aliasing"),
)
WRAPPED = "-Wl,--wrap=memcpy,--wrap=memmove,--wrap=memset"
OF_LANE = {
    "threadgroup_position_in_grid": "{at.group[0], at.group[1], at.group[2]}",
    "threadgroups_per_grid": "{at.groups[0], at.groups[1], at.groups[2]}",
    "thread_position_in_threadgroup": "{at.in_group[0], at.in_group[1], at.in_group[2]}",
    "thread_position_in_grid": "{at.in_grid[0], at.in_grid[1], at.in_grid[2]}",
    "thread_index_in_threadgroup": "at.lane",
    "thread_index_in_simdgroup": "at.lane % lanes::SIMD",
    "simdgroup_index_in_threadgroup": "at.lane / lanes::SIMD",
    "threads_per_simdgroup": "lanes::SIMD",
    "simdgroups_per_threadgroup": "(lanes::WIDTH[0] + lanes::SIMD - 1) / lanes::SIMD",
}


class NotCompiled(Exception):
    """The error of naga or clang about a shader."""


@dataclass(frozen=True)
class Program:
    """A compiled shader, and the binding number of each of its arguments."""

    path: Path
    numbers: dict[str, int]


def cpp_of(msl: str) -> str:
    """Converts MSL to C++: literals become floats, and components are read by a call."""

    def parts(found: re.Match[str]) -> str:
        return f".parts<{', '.join(str('xyzw'.index(component)) for component in found[1])}>()"

    return SWIZZLE.sub(parts, LITERAL.sub(r"\1f", msl))


def msl_of(text: str) -> str:
    """Returns the MSL that naga writes for the entry point and its dependencies."""
    with tempfile.TemporaryDirectory() as folder:
        shader, target = Path(folder, "shader.wgsl"), Path(folder, "shader.metal")
        shader.write_text(text, encoding="utf-8")
        _called(["naga", "--compact", "--metal-version", "3.0", shader, target])
        return target.read_text(encoding="utf-8")


def check_types(msl: str) -> None:
    """Raises clang's error about a shader, without compiling it."""
    _called([CLANG, "-std=c++17", "-x", "c++", "-fsyntax-only", "-Wno-unknown-attributes", "-I", HERE, "-"],
            cpp_of(msl) + limits_kept(msl))  # fmt: skip


def limits_kept(msl: str) -> str:
    """Returns C++ that does not compile if a shader exceeds Apple's limits."""
    bound = [found for found in map(ARGUMENT.search, _parameters(msl)) if found]
    shared = [found["kind"] for found in bound if found["space"] == "threadgroup"]
    sizes = " + ".join(f"((sizeof({kind}) + 15) / 16 * 16)" for kind in shared) or "0"
    return (
        f'static_assert({sizes} <= {THREADGROUP_BYTES}, "threadgroup memory");\n'
        f'static_assert({len(bound) - len(shared)} <= {BUFFERS}, "buffers of a stage");\n'
    )


def _parameters(msl: str) -> list[str]:
    """Returns the arguments of a shader's entry point."""
    found = PARAMETERS.search(msl)
    assert found, "naga's MSL has a kernel main_"
    return found[1].split("\n")


def width_of(wgsl: str) -> int:
    """Returns the number of lanes of a one-dimensional workgroup, given as a number or as a constant of the prelude."""
    size = WIDTH.search(wgsl)
    assert size, "a kernel has a workgroup size of one dimension"
    if size[1].isdecimal():
        return int(size[1])
    constant = re.search(rf"^const {size[1]}(?:: u32)? = (\d+)u?;", wgsl, re.MULTILINE)
    assert constant, f"{size[1]} is a number of the prelude"
    return int(constant[1])


def harness(msl: str, width: int) -> str:
    """Returns the C++ that passes a lane its arguments and describes them."""
    given, kinds, arguments, open_ended = [], [], [], []
    for parameter in _parameters(msl):
        if built_in := BUILT_IN.search(parameter):
            given.append(OF_LANE[built_in[1]])
        elif SIZES.search(parameter):
            given.append("bytes")
        elif found := ARGUMENT.search(parameter):
            if found["space"] == "device":
                open_ended.append(len(arguments))
            kind = f"argument_{len(arguments)}"
            kinds.append(f"using {kind} = {found['kind']};")
            given.append(f"*static_cast<{kind}*>(memory[{len(arguments)}])")
            space = {"device": "storage", "constant": "uniform"}.get(found["space"], "shared")
            coherent = "true" if found["coherent"] else "false"
            elements = f"lanes::Elements<{kind}>::of"
            arguments.append(f'{{"{found["name"]}", lanes::Space::{space}, {coherent}, sizeof({kind}), {elements}}},')
        else:
            raise AssertionError(f"unknown argument of main_: {parameter}")
    sizes = re.search(r"struct _mslBufferSizes \{\n(.*?)\};", msl, re.DOTALL)
    count = sizes[1].count("uint ") if sizes else 0
    assert count in (0, len(open_ended)), "all storage ends in an array without an end"
    bytes_of = ", ".join(f"sizes[{number}]" for number in open_ended)
    return "\n".join(
        [
            "namespace lanes {",
            *(_elements(name, body) for name, body in STRUCT.findall(msl)),
            "}",
            *kinds,
            "const lanes::Argument lanes::ARGUMENTS[] = {",
            *arguments,
            "};",
            f"const uint32_t lanes::ARGUMENT_COUNT = {len(arguments)}, lanes::WIDTH[3] = {{{width}, 1, 1}};",
            "void lanes::run_lane(const lanes::Place& at, void* const* memory, const uint32_t* sizes) {",
            f"    _mslBufferSizes bytes = {{{bytes_of}}};" if count else "    (void)sizes;",
            f"    ::main_({', '.join(given)});",
            "}",
        ]
    )


def _elements(name: str, body: str) -> str:
    fields = "".join(
        f"Elements<decltype(::{name}::{field})>::of(layout, at + offsetof(::{name}, {field})); "
        for field in FIELD.findall(body)
    )
    return f"template <> struct Elements<::{name}> {{ static void of(Layout& layout, size_t at) {{ {fields}}} }};"


def numbers_of(linked: Linked, msl: str) -> dict[str, int]:
    """Returns the binding of each argument by its name in MSL. naga may have added a suffix to the name."""
    found = {}
    for parameter in _parameters(msl):
        argument = ARGUMENT.search(parameter)
        if argument is None or argument["space"] == "threadgroup" or SIZES.search(parameter):
            continue
        meant = [
            number
            for number, binding in linked.bindings().items()
            if re.fullmatch(re.escape(binding.name) + r"(_\d*)?", argument["name"])
        ]
        assert len(meant) == 1, f"{argument['name']} is one of {linked.bindings()}"
        found[argument["name"]] = meant[0]
    return found


def compiled(linked: Linked, folder: Path) -> Program:
    """Returns the program of a shader; compiles it into the folder if it is missing."""
    msl = msl_of(linked.source)
    numbers = numbers_of(linked, msl)
    source = cpp_of(msl) + limits_kept(msl) + harness(msl, width_of(linked.source))
    library = "".join(path.read_text(encoding="utf-8") for path in sorted(HERE.glob("*")) if path.is_file())
    name = hashlib.sha256("\0".join([source, library, *FLAGS, *WATCHED]).encode()).hexdigest()[:24]
    path = folder / name
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            shader, program = Path(place, "shader.o"), Path(place, "program")
            _called([CLANG, *FLAGS, *WATCHED, "-x", "c++", "-I", HERE, "-c", "-", "-o", shader], source)
            _called([CLANG, "-ffast-math", shader, runner(folder), WRAPPED, "-o", program])
            program.rename(path)
    return Program(path, numbers)


def runner(folder: Path) -> Path:
    """Returns the program that runs the lanes, compiled once without fast maths."""
    text = "".join((HERE / name).read_text(encoding="utf-8") for name in ("run.cpp", "lanes.hpp"))
    path = folder / f"run-{hashlib.sha256(text.encode()).hexdigest()[:16]}.o"
    if not path.exists():
        with tempfile.TemporaryDirectory(dir=folder) as place:
            _called([CLANG, "-std=c++17", "-O2", "-c", HERE / "run.cpp", "-o", Path(place, "run.o")])
            Path(place, "run.o").rename(path)
    return path


def _called(command: Sequence[str | Path], stdin: str | None = None) -> None:
    done = subprocess.run(command, input=stdin, capture_output=True, text=True, check=False, timeout=300)
    if done.returncode:
        raise NotCompiled(done.stderr.strip() or done.stdout.strip() or f"{command[0]} ended with {done.returncode}")
