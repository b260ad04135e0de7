"""AMD's GPUs by their own compiler: Mesa's RADV makes machine code of the shaders, and says what it takes.

    python -m benchmarks.offline.amd FOLDER --python build/offline/bin/python-sid [--gpus navi31] [--each 2]

FOLDER is what `benchmarks.offline.variants` wrote; `python-sid` has Mesa of Debian sid (`make offline-tools`). The
kernel driver is a library that does nothing (drm-shim): RADV opens, wgpu opens a device, and pipelines are compiled.
Nothing can run. RADV compiles compute shaders for waves of 64 lanes. With RADV_PERFTEST=cswave32 it compiles them for
waves of 32, on GPUs that have such.
"""

import os
import re
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import click

from rwkv_gpu.errors import RwkvGpuError
from rwkv_gpu.gpu.adapters import list_adapters
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.shader import Linked

from .proof import covering
from .variants import texts

GPUS = {"polaris10": (64,), "vega10": (64,), "navi21": (64, 32), "navi31": (64, 32), "gfx1201": (64, 32)}
MARK = "== shader "
STATISTIC = re.compile(r"^([\w .-]+): (\d+)$", re.MULTILINE)
LIMIT_S = 3000


@dataclass(frozen=True)
class Compiled:
    """What RADV says of one shader."""

    name: str
    statistics: dict[str, int]
    refusal: str

    @property
    def spills(self) -> int:
        """Vector registers that went to memory. Scalar ones go to vector registers, which costs little."""
        return self.statistics["Spilled VGPRs"]

    @property
    def scratch(self) -> int:
        """Bytes of memory that a lane has for arrays and spilled registers."""
        return self.statistics["Scratch size"]

    @property
    def kernel(self) -> str:
        """Without its parts."""
        return self.name.split(" ")[1].split(".")[0]


def parsed(output: str) -> list[Compiled]:
    """The statistics behind each mark."""
    found = []
    for part in output.split(MARK)[1:]:
        name, _, rest = part.partition("\n")
        refusal = rest.partition("REFUSED ")[2].partition("\n")[0]
        statistics = {key: int(value) for key, value in STATISTIC.findall(rest)}
        if not refusal and "VGPRs" not in statistics:
            refusal = "RADV gave no statistics"
        found.append(Compiled(name, statistics, refusal))
    return found


def compile_all(python: Path, files: list[Path], gpu: str, wave: int) -> list[Compiled]:
    """The shaders compiled by RADV for a GPU, in a process of Debian sid's."""
    environment = os.environ | {
        "DRIVER": "radeon", "SHIM": "amdgpu", "AMDGPU_GPU_ID": gpu, "PYTHON": sys.executable,
        "RADV_DEBUG": "shaderstats,nocache", "PYTHONPATH": os.pathsep.join(filter(None, ["", *sys.path])),
        "RADV_PERFTEST": "cswave32" if wave == 32 else "",
    }  # fmt: skip
    command = [str(python), "-m", "benchmarks.offline.amd", "--inside", str(files[0].parent)]
    done = subprocess.run(
        command, env=environment, input="\n".join(map(str, files)), text=True, timeout=LIMIT_S,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=False,
    )  # fmt: skip
    compiled = parsed(done.stdout)
    if len(compiled) < len(files):
        last = compiled[-1].name if compiled else "no shader"
        raise click.ClickException(f"{gpu}: it ended with {done.returncode} at {last}:\n{done.stdout[-2000:]}")
    return compiled


def compile_inside() -> None:
    """Compiles the files that standard input names, and marks where each begins: in the process of Debian sid's."""
    [adapter] = [adapter for adapter in list_adapters() if adapter.backend == "Vulkan"]
    with Device(adapter) as device:
        for line in sys.stdin:
            path = Path(line.strip())
            text = path.read_text(encoding="utf-8")
            print(f"{MARK}{path.stem} {text.partition(chr(10))[0].removeprefix('// ')}", file=sys.stderr, flush=True)
            try:
                device.pipeline(Linked(path.stem, text, ((path.name, text.count("\n")),)))
            except RwkvGpuError as error:
                print("REFUSED", " ".join(str(error).split()), file=sys.stderr, flush=True)
            device.pipelines.clear()


def few_of_each(folder: Path, family: str, each: int) -> list[Path]:
    """Up to so many shaders of every kernel, of those that have every kernel with every part."""
    by_kernel = defaultdict(list)
    for name in covering(texts(folder, family)):
        by_kernel[name.split(" ")[1].split(".")[0]].append(name)
    names = [name for every in by_kernel.values() for name in every[:: -(-len(every) // each)]]
    return [folder / family / f"{name.split(' ')[0]}.wgsl" for name in names]


def table(compiled: list[Compiled]) -> str:
    """A row for each kernel: the most that any of its shaders takes."""
    by_kernel = defaultdict(list)
    for one in compiled:
        by_kernel[one.kernel].append(one)
    lines = [
        "| kernel | shaders | vector registers | spilled | scratch bytes | LDS bytes | waves a SIMD |",
        "|" + "---|" * 7,
    ]
    for kernel, every in sorted(by_kernel.items()):
        fine = [one for one in every if not one.refusal]
        most = [max((one.statistics[key] for one in fine), default=0) for key in ("VGPRs", "LDS size")]
        waves = min((one.statistics["Subgroups per SIMD"] for one in fine), default=0)
        spills, scratch = (
            max((get(one) for one in fine), default=0) for get in (lambda o: o.spills, lambda o: o.scratch)
        )
        lines.append(
            f"| `{kernel}` | {len(fine)} of {len(every)} | {most[0]} | {spills} | {scratch} | {most[1]} | {waves} |"
        )
    return "\n".join(lines)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--python", type=click.Path(exists=True, path_type=Path), help="Python with sid's drivers.")
@click.option("--gpus", default=",".join(GPUS), show_default=True)
@click.option("--each", default=3, show_default=True, help="Shaders of every kernel.")
@click.option("--inside", is_flag=True, hidden=True)
def main(folder: Path, python: Path | None, gpus: str, each: int, inside: bool) -> None:
    if inside:
        compile_inside()
        return
    if python is None:
        raise click.UsageError("--python is missing")
    for gpu in gpus.split(","):
        for wave in GPUS[gpu]:
            compiled = compile_all(python, few_of_each(folder, f"amd-wave{wave}", each), gpu, wave)
            click.echo(f"\n## {gpu}, waves of {wave}\n\n{table(compiled)}\n")
            for one in compiled:
                if one.refusal or one.spills or one.scratch:
                    told = one.refusal or f"{one.spills} registers spilled, {one.scratch} bytes of scratch"
                    click.echo(f"- `{one.name}`: {told}")


if __name__ == "__main__":
    main()
