"""Shaders: linked by concatenating parts, and compiled once. Error messages refer to the original files.

WGSL declarations may be in any order, so a specialised shader consists of a generated prelude (constants and aliases),
the kernel, and one part for each hole of the kernel.

A part is a file or a section of one. `linear/epilogue/rows` is the section that `//# rows` opens in
`linear/epilogue.wgsl`; `moe/bias/none` is `//# bias/none` in `moe.wgsl`. The text before the first section of a file is
a part with the name of the file, unless it is only a comment.

Drivers keep arrays of matrix fragments in memory, so each fragment is a variable. Lines that differ only in numbers are
written once:

    #for i in 1..8: if DIMS > {i}u { y{i} = faded(y{i}); }

stands for seven lines, of i from 1 to 7. `#for j in 1..4` repeats all lines before its `#end`.
"""

import functools
import hashlib
import itertools
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from importlib import resources
from importlib.resources.abc import Traversable
from typing import Any

from ..errors import DeviceLost, OutOfMemory, ShaderError
from . import native, wgpu
from .typed_errors import translated


@dataclass(frozen=True)
class Struct:
    """A constant of a struct type that a part declares. Fields are u32, structs, or arrays of these."""

    name: str
    fields: tuple["Field", ...]


Field = int | Struct | tuple[int, ...] | tuple[Struct, ...]  # a tuple is an array
Constant = Field | float | str  # a float is an f32, a str the type of an alias

SECTION = re.compile(r"//# ([\w/]+)")
REPEAT = re.compile(r"^ *#for (\w+) in (\d+)\.\.(\d+)(?:: (.+))?\n$")
END = re.compile(r"^ *#end\n$")
ENABLE = re.compile(r"^enable \w+;\n", re.MULTILINE)
COMMENT = re.compile(r"//[^\n]*")
BINDING = re.compile(
    r"@group\(0\)\s*@binding\((\d+)\)\s*(?:@coherent\s+)?var<\s*(uniform|storage)(?:\s*,\s*(read_write|read))?\s*>\s*(\w+)"
)
LOCATION = re.compile(r"wgsl:(\d+):(\d+)")
PRELUDE = "prelude"


@dataclass(frozen=True)
class Binding:
    """A declaration `@binding(i)` of a shader."""

    name: str
    access: str  # uniform, read, read_write


@dataclass(frozen=True)
class Part:
    """A kernel or a part: a file, or a section of one."""

    name: str  # linear/epilogue/rows
    file: str  # linear/epilogue.wgsl
    text: str
    numbers: Sequence[int]  # line number of each line in the file

    @property
    def origin(self) -> "Origin":
        """The origin of its lines."""
        return Origin(self.file, self.numbers, self.name)


@dataclass(frozen=True)
class Origin:
    """The origin of a range of lines of a module."""

    file: str
    numbers: Sequence[int]  # line number of each line in the file
    part: str = ""  # the part that they form; empty if generated

    @classmethod
    def generated(cls, name: str, text: str) -> "Origin":
        """The origin of generated text."""
        return cls(name, range(1, text.count("\n") + 1))


@dataclass(frozen=True)
class Linked:
    """A complete WGSL module, with the origins of its lines."""

    name: str
    source: str
    origins: tuple[Origin, ...]  # in order

    def locate(self, line: int) -> tuple[str, int]:
        """The file and line that a line of the module comes from."""
        for origin in self.origins:
            if line <= len(origin.numbers):
                return origin.file, origin.numbers[line - 1]
            line -= len(origin.numbers)
        return self.origins[-1].file, self.origins[-1].numbers[-1]

    def listing(self) -> str:
        """The module for display, with comments that name the origin of the following lines."""
        lines = iter(self.source.splitlines(keepends=True))
        shown = []
        for origin in self.origins:
            if origin.numbers:
                shown += [f"// ---- {origin.file}:{origin.numbers[0]}\n", *itertools.islice(lines, len(origin.numbers))]
        return "".join(shown)

    def bindings(self) -> dict[int, Binding]:
        """The declared bindings by number."""
        return _bindings(self.source)


@dataclass(frozen=True)
class Pipeline:
    """A compiled shader with its bind group layout."""

    name: str
    handle: Any
    layout: Any
    bindings: Mapping[int, Binding]


def link(
    kernel: str, parts: Sequence[str] = (), constants: Mapping[str, Constant] | None = None, core: Sequence[str] = ()
) -> Linked:
    """Links a kernel and parts, named like `linear/gemv` and `formats/q4_k`, specialised by constants.

    `core` are parts that belong to the kernel, and are not listed in the name of the module.
    """
    parts_of = (kernel, *core, *parts)
    needs_f16 = any(map(_needs_f16, parts_of)) or "f16" in (constants or {}).values()
    declared = "".join(_declare(name, value) for name, value in sorted((constants or {}).items()))
    name = ".".join([kernel, *(part.rpartition("/")[2] for part in parts)])
    return _joined(name, tuple(map(read, parts_of)), needs_f16, declared)


@functools.lru_cache(1024)  # most layers of a model use the same shaders
def _joined(name: str, parts: tuple[Part, ...], needs_f16: bool, declared: str) -> Linked:
    # `enable` directives must come first, so they are moved. Their original lines stay empty to preserve line numbers.
    enabled = {line for part in parts for line in ENABLE.findall(part.text)}
    prelude = "".join(sorted(enabled | ({"enable f16;\n"} if needs_f16 else set()))) + declared
    source = "".join((prelude, *(ENABLE.sub("\n", part.text) for part in parts)))
    return Linked(name, source, (Origin.generated(PRELUDE, prelude), *(part.origin for part in parts)))


@functools.lru_cache(1024)
def _bindings(source: str) -> dict[int, Binding]:
    found = BINDING.findall(_code(source))
    return {int(number): Binding(name, access or kind) for number, kind, access, name in sorted(found)}


def _declare(name: str, value: Constant) -> str:
    if isinstance(value, str):
        return f"alias {name} = {value};\n"
    if isinstance(value, float):
        return f"const {name} = f32({value!r});\n"
    return f"const {name} = {_written(value)};\n"


def _written(value: Field) -> str:
    if isinstance(value, Struct):
        return f"{value.name}({', '.join(map(_written, value.fields))})"
    if isinstance(value, tuple):
        return f"array({', '.join(map(_written, value))})"
    return f"{int(value)}u"


@functools.cache
def every_part() -> Mapping[str, Part]:
    """All kernels and parts by name."""
    return {part.name: part for file, text in _files(_shaders()) for part in _parts_of(file, text)}


@functools.cache
def read(name: str) -> Part:
    """A part by name. If its name could be a section of several files, the file with the longest path is used."""
    file = name
    while file:
        path = _shaders().joinpath(f"{file}.wgsl")
        if path.is_file():
            found = next((one for one in _parts_of(file, path.read_text(encoding="utf-8")) if one.name == name), None)
            if found:
                return found
        file = file.rpartition("/")[0]
    raise ShaderError(f"there is no shader part '{name}'")


def _parts_of(file: str, text: str) -> Iterator[Part]:
    """The sections of a file, and the text before the first section if it declares anything."""
    name, own = file, list[tuple[int, str]]()
    for number, line in [*enumerate(text.splitlines(), 1), (0, "//# end")]:
        section = SECTION.match(line)
        if section:
            numbers, lines = zip(*_repeated(own), strict=True) if own else ((), ())
            if name != file or _code("".join(lines)).strip():
                yield Part(name, f"{file}.wgsl", "".join(lines), numbers)
            name, own = f"{file}/{section[1]}", []
        own.append((number, f"{line}\n"))


def _repeated(lines: Sequence[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Expands `#for` repetitions in numbered lines."""
    rest = iter(lines)
    for number, line in rest:
        found = REPEAT.match(line)
        if not found:
            yield number, line
            continue
        variable, first, end, text = found.groups()
        indent = line[: line.index("#")]
        own = [(number, f"{indent}{text}\n")] if text else list(_until_end(rest))
        for value in range(int(first), int(end)):
            yield from _repeated([(at, one.replace(f"{{{variable}}}", str(value))) for at, one in own])


def _until_end(rest: Iterator[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """The lines of a repeated block, including nested blocks."""
    depth = 1
    for number, line in rest:
        found = REPEAT.match(line)
        depth += bool(found and not found[4]) - bool(END.match(line))
        if depth == 0:
            return
        yield number, line


def _shaders() -> Traversable:
    return resources.files("rwkv_gpu.shaders")


@functools.cache
def _needs_f16(name: str) -> bool:
    return re.search(r"\bf16\b", _code(read(name).text)) is not None


def _code(text: str) -> str:
    return COMMENT.sub("", text)


@functools.cache
def fingerprint() -> str:
    """A digest of all shader texts, which identifies the kernels that a measurement was made with."""
    found = hashlib.sha256()
    for text in sorted(text for _, text in _files(_shaders())):
        found.update(text.encode())
    return found.hexdigest()[:16]


def _files(folder: Traversable, path: str = "") -> Iterator[tuple[str, str]]:
    """All shader files below a folder: path without the suffix, and text."""
    for entry in folder.iterdir():
        if entry.is_dir():
            yield from _files(entry, f"{path}{entry.name}/")
        elif entry.name.endswith(".wgsl"):
            yield path + entry.name.removesuffix(".wgsl"), entry.read_text(encoding="utf-8")


class PipelineCache:
    """The compiled shaders of one device by content. Pipelines with the same bindings share a layout."""

    def __init__(self, device: Any, checked: bool) -> None:
        self._device = device
        self._checked = checked
        self._pipelines: dict[str, Pipeline] = {}
        self._layouts: dict[tuple[tuple[int, str], ...], tuple[Any, Any]] = {}

    def get(self, linked: Linked) -> Pipeline:
        """The pipeline of a module, compiled on first use."""
        pipeline = self._pipelines.get(linked.source)
        if pipeline is None:
            pipeline = self._pipelines[linked.source] = self._compile(linked)
        return pipeline

    def compile(self, every: Iterable[Linked]) -> None:
        """Compiles missing pipelines in parallel, as naga and drivers take seconds on one core each."""
        lacking = {linked.source: linked for linked in every if linked.source not in self._pipelines}
        longest_first = sorted(lacking.values(), key=lambda linked: len(linked.source), reverse=True)
        if len(lacking) < 2:
            return  # compiled on first use instead
        for linked in longest_first:  # layouts are shared, so one thread creates them
            self._layout(linked)
        with ThreadPoolExecutor(min(len(lacking), os.cpu_count() or 1), "rwkv-gpu-compile") as pool:
            compiled = list(pool.map(self._compile, longest_first))
        self._pipelines.update(zip((linked.source for linked in longest_first), compiled, strict=True))

    def clear(self) -> None:
        """Drops all pipelines; those in use by plans stay alive."""
        self._pipelines.clear()

    def _compile(self, linked: Linked) -> Pipeline:
        try:
            group_layout, layout = self._layout(linked)
            module = native.create_module(self._device, linked.source, linked.name, self._checked)
            stage = {"module": module, "entry_point": "main"}
            handle = self._device.create_compute_pipeline(layout=layout, compute=stage, label=linked.name)
        except (wgpu.GPUError, wgpu.GPUPipelineError) as error:
            known = translated(str(error), f"compiling {linked.name}")
            if isinstance(known, DeviceLost | OutOfMemory):
                raise known from None
            raise ShaderError(describe(linked, str(error))) from None
        return Pipeline(linked.name, handle, group_layout, linked.bindings())

    def _layout(self, linked: Linked) -> tuple[Any, Any]:
        accesses = tuple((number, binding.access) for number, binding in linked.bindings().items())
        if accesses not in self._layouts:
            kinds = {"uniform": "uniform", "read": "read-only-storage", "read_write": "storage"}
            entries = [
                {"binding": n, "visibility": wgpu.ShaderStage.COMPUTE, "buffer": {"type": kinds[access]}}
                for n, access in accesses
            ]
            group = self._device.create_bind_group_layout(entries=entries)
            self._layouts[accesses] = group, self._device.create_pipeline_layout(bind_group_layouts=[group])
        return self._layouts[accesses]


def describe(linked: Linked, message: str) -> str:
    """naga's message with each location translated from the linked module to the original file."""
    lines = [line for line in message.splitlines() if line.strip() and not line.startswith("Caused by")]
    kept = [line for line in lines if "Validation Error" not in line and "In wgpuDevice" not in line]
    moved = (LOCATION.sub(lambda found: _moved(linked, found), line) for line in kept)
    shown = (re.sub(r"^\d+ │", lambda gutter: " " * (len(gutter[0]) - 1) + "│", line) for line in moved)
    return f"shader {linked.name} does not compile:\n" + "\n".join(shown)


def _moved(linked: Linked, found: re.Match[str]) -> str:
    file, line = linked.locate(int(found[1]))
    return f"{file}:{line}:{found[2]}"
