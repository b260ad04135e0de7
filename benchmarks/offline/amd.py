"""AMD's GPUs by their own compiler: Mesa's RADV makes machine code of the shaders, and says what it takes.

    python -m benchmarks.offline.amd FOLDER --python build/offline/bin/python-sid [--gpus navi31] [--few] [--sizes]
        [--matrix-units] [--since FOLDER]

FOLDER is what `benchmarks.offline.variants` wrote; `mesa.py` says how it works. RADV compiles compute shaders for waves
of 64 lanes. With RADV_PERFTEST=cswave32 it compiles them for waves of 32, on GPUs that have such; kernels on matrix
units have waves of 64 always.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from .mesa import Compiled, Driver, compile_all
from .proof import Selection, few_option, since_option
from .tables import files_of, remarks, table

GPUS = {
    "polaris10": (64,), "vega10": (64,), "navi21": (64, 32), "navi31": (64, 32), "strix1": (64, 32),
    "gfx1151": (64, 32), "gfx1201": (64, 32),
}  # fmt: skip
MATRIX_UNITS = "navi31", "strix1", "gfx1151", "gfx1201"  # 16x16x16 of float16 with sums in float32, says RADV
STAND_INS = {"gfx1151": ("gfx1151", "strix1")}  # of the kernel's driver, and the entry there (strix_halo.py)
WITHOUT_F16 = ("polaris10",)  # such a device is given no shader that wants it
STATISTIC = re.compile(r"^([\w .-]+): (\d+)$", re.MULTILINE)
KEPT = "VGPRs", "Spilled VGPRs", "Scratch size", "LDS size", "Subgroups per SIMD"


def statistics_of(output: str) -> dict[str, int]:
    """Registers, spills, memory and waves. Spilled scalar registers go to vector registers, which costs little."""
    found = {key: int(value) for key, value in STATISTIC.findall(output)}
    return {key: found[key] for key in KEPT} if "VGPRs" in found else {}


def driver(gpu: str, wave: int) -> Driver:
    """RADV for a GPU that is not there."""
    shim, entry = STAND_INS.get(gpu, ("amdgpu", gpu))
    environment = {
        "DRIVER": "radeon", "SHIM": shim, "AMDGPU_GPU_ID": entry, "RADV_DEBUG": "shaderstats,nocache",
        "RADV_PERFTEST": "cswave32" if wave == 32 else "",
    }  # fmt: skip
    return Driver(f"amd-{gpu}-{wave}", environment, statistics_of)


def cell(every: Sequence[Compiled]) -> str:
    """Most registers, fewest waves, most registers that are spilled, and most scratch memory of some shaders."""
    most = {key: max(one.statistics[key] for one in every) for key in KEPT}
    waves = min(one.statistics["Subgroups per SIMD"] for one in every)
    spilled, scratch = most["Spilled VGPRs"], most["Scratch size"]
    return f"{most['VGPRs']} / {waves}" + f" / **{spilled}, {scratch}**" * bool(spilled or scratch)


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--python", required=True, type=click.Path(exists=True, path_type=Path), help="With sid's drivers.")
@click.option("--gpus", default=",".join(GPUS), show_default=True)
@click.option("--sizes", is_flag=True, help="The shaders of well-known models, in their true sizes.")
@click.option("--matrix-units", is_flag=True, help="The shaders of a device that has them in use.")
@few_option
@since_option
def main(folder: Path, python: Path, gpus: str, sizes: bool, matrix_units: bool, few: bool, since: Path | None) -> None:
    family = "amd" + "-matrix-units" * matrix_units + "-sizes" * sizes
    every = files_of(folder, family, Selection(few, since=since))
    columns = {}
    for gpu in gpus.split(","):
        if matrix_units and gpu not in MATRIX_UNITS:
            continue
        for wave in GPUS[gpu][:1] if matrix_units else GPUS[gpu]:
            files = [file for file in every if gpu not in WITHOUT_F16 or "enable f16;" not in file.read_text("utf-8")]
            columns[f"{gpu}, {wave}"] = compile_all(python, files, driver(gpu, wave), folder.parent / "compiled")
    click.echo(f"{table(columns, cell)}\n\n{remarks(columns, 'Scratch size', 'bytes of scratch memory')}")
    sys.exit(any(one.refusal for compiled in columns.values() for one in compiled))


if __name__ == "__main__":
    main()
