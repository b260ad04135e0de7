"""Intel's GPUs by their own compiler: Mesa's ANV makes machine code of the shaders, and says what it takes.

    python -m benchmarks.offline.intel FOLDER --python build/offline/bin/python-sid [--gpus dg2] [--few]
        [--since FOLDER]

FOLDER is what `benchmarks.offline.variants` wrote; `mesa.py` says how it works. The compiler chooses for each shader
whether a thread has 8, 16 or 32 lanes: that is the size of its subgroups.
"""

import re
import sys
from collections.abc import Sequence
from pathlib import Path

import click

from .mesa import Compiled, Driver, compile_all
from .proof import Selection, few_option, since_option
from .tables import files_of, remarks, table

GPUS = ("skl", "tgl", "dg2", "bmg")  # Gen9 (HD 530), Xe-LP (Iris Xe), Xe-HPG (Arc A770), Xe2 (Arc B580)
THREAD = re.compile(r"^SIMD(\d+) shader: (\d+) instructions\..* (\d+):(\d+) spills:fills", re.MULTILINE)


def statistics_of(output: str) -> dict[str, int]:
    """Lanes of a thread, instructions, and registers that are written to memory."""
    found = THREAD.findall(output)
    return dict(zip(("lanes", "instructions", "spills", "fills"), map(int, found[-1]), strict=True)) if found else {}


def driver(gpu: str) -> Driver:
    """ANV for a GPU that is not there."""
    environment = {
        "DRIVER": "intel", "SHIM": "intel", "INTEL_STUB_GPU_PLATFORM": gpu, "INTEL_DEBUG": "cs",
        "MESA_SHADER_CACHE_DISABLE": "true",
    }  # fmt: skip
    return Driver(f"intel-{gpu}", environment, statistics_of)


def cell(every: Sequence[Compiled]) -> str:
    """How many shaders have threads of 8, 16 and 32 lanes, and the most spills of one."""
    sizes = [one.statistics["lanes"] for one in every]
    spills = max(one.statistics["spills"] for one in every)
    text = ", ".join(f"{sizes.count(size)} of {size}" for size in sorted(set(sizes)))
    return f"{text} / **{spills}**" if spills else text


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--python", required=True, type=click.Path(exists=True, path_type=Path), help="With sid's drivers.")
@click.option("--gpus", default=",".join(GPUS), show_default=True)
@few_option
@since_option
def main(folder: Path, python: Path, gpus: str, few: bool, since: Path | None) -> None:
    files = files_of(folder, "intel", Selection(few, since=since))
    columns = {gpu: compile_all(python, files, driver(gpu), folder.parent / "compiled") for gpu in gpus.split(",")}
    click.echo(f"{table(columns, cell)}\n\n{remarks(columns, 'spills', 'spills')}")
    sys.exit(any(one.refusal for compiled in columns.values() for one in compiled))


if __name__ == "__main__":
    main()
