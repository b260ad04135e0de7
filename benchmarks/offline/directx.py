"""Runs DirectX's compilers: naga writes HLSL as in wgpu, DXC compiles it to validated DXIL, FXC to machine code.

Requires naga on the path, in the version of wgpu-native. On Windows, wgpu-native uses DXC if `dxcompiler.dll` is on the
path, else FXC, which is part of Windows. The source package of `compushady` on PyPI contains DXC for Linux. `fxc` is
fxc.c, built for Windows, with Microsoft's library (fxc_tools.sh).

The HLSL for FXC has shader model 5.1. DXC compiles it as 6.0, so features that only FXC lacks are searched for in the
HLSL (`FXC_REFUSES`). FXC optimises, as in wgpu, which takes minutes for some shaders.
"""

import contextlib
import ctypes
import re
import subprocess
import tempfile
import threading
import uuid
from pathlib import Path

import click

from .proof import Unfinished, refused

FXC_FAMILY = "dx12-fxc"
COMPILER = "73e22d93-e6ce-47f3-b5bf-f0664f39c1b0", "228b4687-5a6a-4730-900c-9702b2203f54"  # IDxcCompiler3
RESULT = "58346cda-dde7-4497-9461-6f87af5e0659"
BLOB = "8ba5fb08-5195-40e2-ac58-0d989c3a0102"
OBJECT, ERRORS = 1, 2  # kinds of outputs
COMPILE, GET_STATUS, GET_OUTPUT = 3, 3, 7  # indices of functions in the tables of interfaces
POINTER, SIZE, RELEASE = 3, 4, 2
UTF8 = 65001
DESTRUCTORS = 2  # table entries for destructors, in builds for Linux before DXC 1.7

# Features that shader model 5.1 lacks, by their names in HLSL.
FXC_REFUSES = {
    "wave operations": re.compile(r"\bWave\w+\("),
    "16-bit types": re.compile(r"\b(?:half|float16_t|int16_t|uint16_t)\b"),
    "64-bit types": re.compile(r"\bu?int64_t\b"),
    "packed dot products": re.compile(r"\bdot4add_\w+\("),
    "templated loads": re.compile(r"\.(?:Load|Store)<"),
}
# naga's third factor. DXC 1.6 takes a literal for 64 bits, and its validator refuses that; wgpu needs 1.8 or later.
LITERAL = re.compile(r"(dot4add_[iu]8packed\(\w+, \w+), 0\)")
LIMIT_S = 600.0  # of one shader
END = "== end\n"
TAKEN = "OK "
# Checks that naga adds to untrusted shaders. Ours are trusted, except in tests. FXC takes far longer with the checks.
LOOP_BOUND = re.compile(
    r"^ *(?:uint2 loop_bound\w* = .*|if \(all\(loop_bound\w* == .*\)\) \{ break; \}|loop_bound\w* -= .*)\n",
    re.MULTILINE,
)
RESTRICTED = re.compile(r"\[min\(uint\(")


class Source(ctypes.Structure):
    """The structure DxcBuffer."""

    _fields_ = [("pointer", ctypes.c_char_p), ("size", ctypes.c_size_t), ("encoding", ctypes.c_uint32)]


def guid(text: str) -> ctypes.Array:
    return (ctypes.c_ubyte * 16)(*uuid.UUID(text).bytes_le)


class Dxc:
    """The library of DXC with one compiler, which serves one thread at a time."""

    def __init__(self, library: Path) -> None:
        self._create = ctypes.CDLL(str(library)).DxcCreateInstance
        self._create.argtypes, self._create.restype = [ctypes.c_void_p] * 3, ctypes.c_int32
        self._lock = threading.Lock()
        self._compiler = ctypes.c_void_p()
        if self._create(*map(guid, COMPILER), ctypes.byref(self._compiler)):
            raise click.UsageError(f"{library} does not provide a compiler")

    def check(self, text: str, family: str) -> str:
        """Returns the error of naga or DXC about a shader; for FXC, a feature that FXC lacks."""
        fxc = family == FXC_FAMILY
        hlsl, words = hlsl_of(text, 51 if fxc else 65)
        if words:
            return words
        lacking = [name for name, pattern in FXC_REFUSES.items() if fxc and pattern.search(hlsl)]
        if lacking:
            return f"FXC has no {', no '.join(lacking)}"
        with self._lock:
            return self.compile(LITERAL.sub(r"\1, int(0))", hlsl), "cs_6_0" if fxc else "cs_6_5", "enable f16;" in text)

    def compile(self, hlsl: str, profile: str, half: bool) -> str:
        """Returns DXC's error about the HLSL; empty if its validator accepts the DXIL."""
        words = [*f"-E main -T {profile} -HV 2018 -no-warnings -Ges".split(), *["-enable-16bit-types"] * half]
        arguments = (ctypes.c_wchar_p * len(words))(*words)
        data = hlsl.encode()
        source, found = Source(data, len(data), UTF8), ctypes.c_void_p()
        pointer = ctypes.c_void_p
        signature = [pointer, pointer, ctypes.c_uint32, pointer, pointer, pointer]
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
        """Returns a method of a COM interface by its index in the table of functions."""
        table = ctypes.cast(thing, ctypes.POINTER(ctypes.POINTER(ctypes.c_void_p)))[0]
        function = table[place if place <= RELEASE else place + DESTRUCTORS]
        return ctypes.CFUNCTYPE(returns, ctypes.c_void_p, *signature)(function)(thing, *arguments)


def hlsl_of(text: str, model: int) -> tuple[str, str]:
    """Returns the HLSL that naga writes, and its error message."""
    with tempfile.TemporaryDirectory() as folder:
        shader, target = Path(folder, "shader.wgsl"), Path(folder, "shader.hlsl")
        shader.write_text(text, encoding="utf-8")
        words = refused(["naga", "--shader-model", str(model), shader, target])
        return ("", words) if words else (target.read_text(encoding="utf-8"), "")


class Fxc:
    """FXC in long-running processes, one for each thread that uses it."""

    def __init__(self, *command: str | Path, limit: float = LIMIT_S) -> None:
        self._command = [str(word) for word in command]
        self._limit = limit
        self._free: list[subprocess.Popen[str]] = []

    def check(self, text: str, family: str) -> str:  # noqa: ARG002
        """Returns the error of naga or FXC about a shader."""
        hlsl, words = hlsl_of(text, 51)
        return words or self.compile(trusted(hlsl))

    def compile(self, hlsl: str) -> str:
        """Returns FXC's error about the HLSL; empty if it compiles. Warnings do not count."""
        process = self._free.pop() if self._free else self._started()
        with tempfile.NamedTemporaryFile("w", suffix=".hlsl", encoding="utf-8") as file:
            file.write(hlsl)
            file.flush()
            lines, late = self._asked(process, f"Z:{file.name}")
        if not lines or lines.pop() != END:
            process.kill()
            process.communicate()
            return Unfinished(f"FXC took more than {self._limit:.0f} s") if late else "FXC ended"
        self._free.append(process)
        errors = "".join(line for line in lines if " error " in line).strip()
        return "" if lines[0].startswith(TAKEN) else errors or "".join(lines).strip()

    def _asked(self, process: "subprocess.Popen[str]", name: str) -> tuple[list[str], bool]:
        """Returns the output lines of FXC, and True if its process was ended after a timeout."""
        assert process.stdin is not None
        assert process.stdout is not None
        late = threading.Event()
        limit = threading.Timer(self._limit, lambda: (late.set(), process.kill()))
        limit.start()
        lines: list[str] = []
        with contextlib.suppress(BrokenPipeError):
            process.stdin.write(f"{name}\n")
            process.stdin.flush()
            for line in process.stdout:
                lines.append(line)
                if line == END:
                    break
        limit.cancel()
        return lines, late.is_set()

    def _started(self) -> "subprocess.Popen[str]":
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        return subprocess.Popen(self._command, text=True, errors="replace", **pipes)

    def close(self) -> None:
        """Ends the processes."""
        for process in self._free:
            process.communicate()


def trusted(hlsl: str) -> str:
    """Returns the HLSL without bounds checks of loops and indices: `[i]` for `[min(uint(i), 7u)]`."""
    hlsl = LOOP_BOUND.sub("", hlsl)
    while found := RESTRICTED.search(hlsl):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(hlsl[end], 0)
            end += 1
        hlsl = f"{hlsl[: found.start()]}[{hlsl[found.end() : end - 1]}{hlsl[hlsl.index(']', end) :]}"
    return hlsl
