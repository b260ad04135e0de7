"""Lists the machine code that an NVIDIA driver generates for the kernels of one step.

    python -m benchmarks.machine_code FOLDER [--synthetic rwkv7-2.9b-q4_k_m] [--layers 4] [--rows 1] [--prompt]
        [--matrix-units]

Each kernel is compiled by a separate process with an empty shader cache, so that its program is the last one in that
cache. For each kernel, FOLDER gets NN.wgsl, NN.sass (the instructions) and NN.waits (the order of memory loads, and the
first instruction that waits for each). Requires the package zstandard, and `nvdisasm` on the path. CUDA contains it,
and so does the package nvidia-cuda-nvdisasm.
"""

import os
import re
import shutil
import struct
import subprocess
import sys
import tempfile
from collections import Counter
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path

import click

from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.shader import Linked
from rwkv_gpu.measure.synthetic import named, noise, opened
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch

FRAME = b"\x28\xb5\x2f\xfd"  # what a compressed entry of the cache begins with
PROGRAM = b"NVDANVVM"  # what an entry that is a program begins with
CODE = 1  # the kind of a section that holds instructions
LINE = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;")
REGISTER = re.compile(r"\bR(\d+)\b")
GUARD = re.compile(r"^@!?U?P\d+ ")
WORDS = {".128": 4, ".64": 2}
MILESTONES = "BAR", "MEMBAR", "STG", "RED", "ATOM", "BRA", "EXIT", "CALL", "MUFU"


def kernels_of(name: str, layers: int, rows: int, prompt: bool, matrix_units: bool) -> dict[str, Linked]:
    """Returns the shaders of one step of a synthetic model with the given number of layers, by their text."""
    _, shape, quant = named(name)
    file = opened(noise(name, replace(shape, layers=layers), quant))
    found: dict[str, Linked] = {}
    with Device.open(matrix_units=matrix_units) as device:
        compiled = device.pipelines.get

        def pipeline(linked: Linked):
            found.setdefault(linked.source, linked)
            return compiled(linked)

        device.pipelines.get = pipeline
        runner = GpuRunner(device, file, load_model(file), slots=1 if prompt else rows, chunk_size=rows)
        found.clear()  # of what is tried when a device is opened
        spans = [(0, 0, list(range(rows)))] if prompt else [(slot, 0, [slot]) for slot in range(rows)]
        runner.plan_for(runner.prepare(Batch.of(spans)), "plain")
    return found


def machine_code(wgsl: Path) -> str:
    """Returns the instructions of one kernel."""
    import zstandard

    with tempfile.TemporaryDirectory() as folder:
        own = os.environ | {"__GL_SHADER_DISK_CACHE": "1", "__GL_SHADER_DISK_CACHE_PATH": folder}
        subprocess.run([sys.executable, "-m", "benchmarks.machine_code", "--only", str(wgsl)], env=own, check=True)
        [cache] = Path(folder).rglob("*.bin")
        data = cache.read_bytes()
        programs, at = [], data.find(FRAME)
        while at >= 0:
            frame = zstandard.ZstdDecompressor().decompressobj()
            entry = frame.decompress(data[at:])
            programs += [entry] if entry.startswith(PROGRAM) else []
            at = data.find(FRAME, len(data) - len(frame.unused_data))
        code = Path(folder, "code")
        code.write_bytes(instructions(programs[-1]))
        command = ["nvdisasm", "-b", architecture(), str(code)]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def instructions(program: bytes) -> bytes:
    """Returns the instructions in a program's section, 16 bytes each."""
    for at in range(0x20, 0x200, 4):
        kind, nbytes, start = struct.unpack_from("<III", program, at)
        if kind == CODE and 0x100 < start < 0x400 and 0x80 <= nbytes <= len(program) - start:
            return program[start + 8 : start + 8 + (nbytes - 16) // 16 * 16]
    raise BadInput("the driver's cache is none that this reads: no section of instructions")


def architecture() -> str:
    """Returns the architecture of the first GPU, as nvdisasm names it."""
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    return "SM" + subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()[0].replace(".", "")


def waits(sass: str) -> list[str]:
    """Returns each load, and the first instruction that waits for its result."""
    found: list[str] = []
    asked: dict[int, str] = {}  # by register
    for number, line in enumerate(filter(None, map(LINE.match, sass.splitlines()))):
        at, text = line[1], line[2]
        name, _, operands = GUARD.sub("", text).partition(" ")
        target, _, sources = operands.partition(",")
        stores = name.startswith(("ST", "RED", "BAR", "BRA", "EXIT", "MEMBAR"))
        wanted = {asked[int(r)] for r in REGISTER.findall(operands if stores else sources) if int(r) in asked}
        if wanted:
            found.append(f"{number:5}     waits for {', '.join(sorted(wanted))}: {text}")
            asked = {register: place for register, place in asked.items() if place not in wanted}
        if name.startswith("LDG") and (register := REGISTER.search(target)):
            count = next((words for tag, words in WORDS.items() if tag in name), 1)
            asked |= dict.fromkeys(range(int(register[1]), int(register[1]) + count), at)
            found.append(f"{number:5} {at} asks: {text}")
        elif name.startswith(MILESTONES):
            found.append(f"{number:5} {at} {text}")
    return found


def summary(sass: str) -> str:
    """Counts the instructions of each kind, and the registers."""
    texts = [GUARD.sub("", line[2]) for line in map(LINE.match, sass.splitlines()) if line]
    kinds = Counter(re.split(r"[. ]", text)[0] for text in texts if not text.startswith("NOP"))
    registers = 1 + max((int(r) for text in texts for r in REGISTER.findall(text)), default=0)
    most = ", ".join(f"{count} {kind}" for kind, count in kinds.most_common(8))
    return f"{kinds.total()} instructions, {registers} registers: {most}"


@click.command()
@click.argument("folder", required=False, type=click.Path(file_okay=False, path_type=Path))
@click.option("--synthetic", "name", default="rwkv7-2.9b-q4_k_m")
@click.option("--layers", default=4)
@click.option("--rows", default=1, help="Sequences of a step, or tokens of a prompt.")
@click.option("--prompt", is_flag=True)
@click.option("--matrix-units", is_flag=True, help="Open the device with them.")
@click.option("--only", type=click.Path(exists=True, path_type=Path), hidden=True, help="Compiles one text and ends.")
def main(
    folder: Path | None, name: str, layers: int, rows: int, prompt: bool, matrix_units: bool, only: Path | None
) -> None:
    if only:
        with Device.open(matrix_units="cooperative_matrix" in only.read_text()) as device:
            device.pipeline(Linked(only.name, only.read_text(), ((only.name, 0),)))
        return
    wants = {tool: shutil.which(tool) for tool in ("nvdisasm", "nvidia-smi")} | {"zstandard": find_spec("zstandard")}
    if missing := [name for name, there in wants.items() if not there]:
        raise click.UsageError(f"not installed: {', '.join(missing)}")
    if not folder:
        raise click.UsageError("FOLDER is the folder for the results; give one")
    folder.mkdir(parents=True, exist_ok=True)
    for number, (text, linked) in enumerate(kernels_of(name, layers, rows, prompt, matrix_units).items()):
        own = folder / f"{number:02}"
        own.with_suffix(".wgsl").write_text(f"// {linked.name}\n{text}")
        sass = machine_code(own.with_suffix(".wgsl"))
        own.with_suffix(".sass").write_text(sass)
        own.with_suffix(".waits").write_text("\n".join(waits(sass)) + "\n")
        click.echo(f"{own.name} {linked.name[:70]}: {summary(sass)}")


if __name__ == "__main__":
    main()
