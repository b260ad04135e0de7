"""Compiles shaders with Mesa's drivers for absent GPUs, and reports the resources of the machine code.

A library (drm-shim) replaces the kernel driver and does nothing. This suffices to open a device with wgpu and to
compile pipelines, but nothing can run. A process of Debian sid's Python (`python-sid`) reads the names of files, and
writes a mark before each shader. Results are stored by the digest of a shader's text, so each shader is compiled once.
"""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import click

from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.gpu.adapters import list_adapters
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.shader import Linked

from .proof import kept_lines

MARK = "== shader "
END = "== end"
REFUSED = "REFUSED "
MATRIX_UNITS = "enable wgpu_cooperative_matrix;"


@dataclass(frozen=True)
class Compiled:
    """The driver's report on one shader."""

    name: str
    statistics: Mapping[str, int] = field(default_factory=dict)
    refusal: str = ""

    @property
    def kernel(self) -> str:
        """The name of the kernel without its parts. Of a merged dispatch, it is the first kernel."""
        return self.name.partition(".")[0]


@dataclass(frozen=True)
class Driver:
    """A driver of Mesa for one GPU: the environment that selects both, and a parser of the output."""

    name: str  # the GPU and its setting; also the folder of results
    environment: Mapping[str, str]
    statistics_of: Callable[[str], dict[str, int]]


def compile_all(python: Path, files: Sequence[Path], driver: Driver, kept: Path) -> list[Compiled]:
    """Compiles each shader once. Shaders with a result in `kept` are skipped."""
    path = kept / f"{driver.name}.jsonl"
    known = {line["shader"]: Compiled("", line["statistics"], line["refusal"]) for line in kept_lines(path)}
    digests = {file: _digest(file) for file in files}
    missing = [file for file in files if digests[file] not in known]
    with path.open("a", encoding="utf-8") as sink:
        while missing:
            done = 0
            for one, output in zip(missing, _outputs(python, missing, driver), strict=False):
                known[digests[one]] = found = _found(one, output, driver)
                line = {"shader": digests[one], "statistics": found.statistics, "refusal": found.refusal}
                sink.write(json.dumps(line) + "\n")
                sink.flush()
                done += 1
            if not done:
                raise click.ClickException(f"{driver.name}: the driver does not open; run `make offline-tools`")
            missing = missing[done:]  # if the process ended early, continues after the shader that ended it
    return [Compiled(name_of(file), known[digests[file]].statistics, known[digests[file]].refusal) for file in files]


def name_of(file: Path) -> str:
    """Returns the names of the kernel and its parts, from the first line of a shader."""
    with file.open(encoding="utf-8") as lines:
        return lines.readline().removeprefix("// ").rstrip("\n")


def _outputs(python: Path, files: Sequence[Path], driver: Driver) -> Iterator[str]:
    """Returns the driver's output for each file, including a file that crashes the process."""
    environment = os.environ | driver.environment
    environment |= {"PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    names = "".join(f"{file}\n" for file in files)
    with subprocess.Popen(
        [str(python), "-m", "benchmarks.offline.mesa"], env=environment, text=True, errors="replace",
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    ) as process:  # fmt: skip
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(names)  # a pipe holds 64 KiB: the names are read before anything is compiled
        process.stdin.close()
        output: list[str] | None = None
        for line in process.stdout:
            if line.startswith((MARK, END)):
                if output is not None:
                    yield "".join(output)
                output = []
            if line.startswith(END):
                return
            if output is not None:
                output.append(line)
        if output is not None:
            yield f"{REFUSED}the process ended with {process.wait()}\n"


def _found(file: Path, output: str, driver: Driver) -> Compiled:
    refusal = output.partition(REFUSED)[2].partition("\n")[0]
    statistics = driver.statistics_of(output)
    if not refusal and not statistics:
        refusal = "the driver gave no statistics"
    return Compiled(name_of(file), statistics, refusal)


def _digest(file: Path) -> str:
    return hashlib.sha256(file.read_bytes().partition(b"\n")[2]).hexdigest()[:32]


def compile_inside() -> None:
    """Compiles the files named on standard input. Runs in the process of Debian sid's Python."""
    files = sys.stdin.read().splitlines()
    [adapter] = [adapter for adapter in list_adapters() if adapter.backend == "Vulkan"]
    units = any(MATRIX_UNITS in Path(path).read_text(encoding="utf-8") for path in files)
    with Device(adapter, matrix_units=units) as device:
        for path in map(Path, files):
            text = path.read_text(encoding="utf-8")
            print(f"{MARK}{path.stem}", file=sys.stderr, flush=True)
            try:
                device.pipeline(Linked(path.stem, text, ((path.name, text.count("\n")),)))
            except RwkvGpuError as error:
                print(f"{REFUSED}{' '.join(str(error).split())}", file=sys.stderr, flush=True)
            device.pipelines.clear()
        print(END, file=sys.stderr, flush=True)


if __name__ == "__main__":
    compile_inside()
