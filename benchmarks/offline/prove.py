"""Compiles every shader for other GPUs with their compilers.

    python -m benchmarks.offline.prove tint FOLDER [FAMILY]...                 browsers: Tint, of Chromium's Dawn
    python -m benchmarks.offline.prove dxc FOLDER --library libdxcompiler.so   DirectX
    python -m benchmarks.offline.prove fxc FOLDER --library d3dcompiler_47.dll
    python -m benchmarks.offline.prove metal FOLDER                            Apple: naga's MSL as C++, by clang
    python -m benchmarks.offline.prove amd FOLDER --python python-sid [--gpus navi31] [--sizes] [--matrix-units]
    python -m benchmarks.offline.prove intel FOLDER --python python-sid [--gpus dg2]

FOLDER was written by `benchmarks.offline.variants`; `make offline-tools` downloads the compilers. The first four report
the errors of a compiler. For AMD and Intel, a table shows the resources of the machine code. The exit code is 1 if any
shader is refused.
"""

import atexit
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import click

from .directx import FXC_FAMILY, Dxc, Fxc
from .mesa import compile_all
from .metal_cpp import CLANG, STAND_IN, NotCompiled, check_types, msl_of
from .proof import Check, Selection, program, prove, refused
from .variants import FAMILIES
from .vendors import VENDORS, files_of, remarks, table


@dataclass(frozen=True)
class Compiler:
    """A compiler that checks a shader: its default families, its programs, and the check for a library and a mode."""

    families: tuple[str, ...]
    programs: tuple[str, ...]
    check: Callable[[Path, str], Check]
    sources: tuple[Path, ...] = ()  # our source files that a verdict depends on


def check_tint(text: str, family: str) -> str:
    """Returns Tint's error about a shader. Unlike naga, Tint requires `enable subgroups`."""
    with tempfile.TemporaryDirectory() as folder:
        shader, target = Path(folder, "shader.wgsl"), Path(folder, "shader.spv")
        enabled = "enable subgroups;\n" if FAMILIES[family].subgroup else ""
        shader.write_text(enabled + text, encoding="utf-8")
        words = refused(["tint", "--format", "spirv", "--spirv-version", "1.4", "-o", target, shader])
        return words or ("" if target.exists() else "no SPIR-V was written")


def check_metal(text: str, family: str) -> str:  # noqa: ARG001
    """Returns the error of naga or clang about a shader: types, 31 buffers, 32 KiB of threadgroup memory."""
    try:
        check_types(msl_of(text))
    except NotCompiled as error:
        return str(error)
    return ""


def fxc_check(mode: str) -> Check:
    fxc = Fxc(program("fxc"), mode)
    atexit.register(fxc.close)
    return fxc.check


HERE = Path(__file__)
COMPILERS = {
    "tint": Compiler(("webgpu",), ("tint",), lambda *_: check_tint, (HERE,)),
    "dxc": Compiler(
        (FXC_FAMILY, "dx12-dxc"), ("naga",), lambda library, _: Dxc(library).check, (HERE.with_name("directx.py"),)
    ),
    "fxc": Compiler((FXC_FAMILY,), ("naga",), lambda _, mode: fxc_check(mode)),
    "metal": Compiler(("apple",), ("naga", CLANG), lambda *_: check_metal, STAND_IN),
}


def prove_by_mesa(
    name: str, folder: Path, selection: Selection, python: Path, gpus: list[str], kinds: list[str]
) -> None:
    """Prints the table of a vendor; exits with 1 if any shader is refused. `kinds` are parts of the family's name."""
    vendor, every = VENDORS[name], files_of(folder, "-".join([name, *kinds]), selection)
    with_f16 = {file for file in every if "enable f16;" in file.read_text("utf-8")}
    columns = {}
    for column, (gpu, driver) in vendor.drivers(name, gpus, "matrix-units" in kinds).items():
        files = [file for file in every if gpu not in vendor.without_f16 or file not in with_f16]
        columns[column] = compile_all(python, files, driver, folder.parent / "compiled")
    click.echo(f"{table(columns, vendor.cell)}\n\n{remarks(columns, vendor.cost, vendor.unit)}")
    sys.exit(any(one.refusal for compiled in columns.values() for one in compiled))


@click.command()
@click.argument("compiler", type=click.Choice([*COMPILERS, *VENDORS]))
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("families", nargs=-1, type=click.Choice(list(FAMILIES)))
@click.option("--few", is_flag=True, help="Only a set of shaders that covers every kernel with each of its parts.")
@click.option("--one-each", is_flag=True, help="Only the shortest shader of each kernel.")
@click.option("--since", type=click.Path(exists=True, file_okay=False, path_type=Path), metavar="FOLDER",
              help="Only shaders whose text is not in FOLDER, which has those of another commit.")  # fmt: skip
@click.option("--library", type=click.Path(exists=True, path_type=Path), help="Library of DXC or FXC.")
@click.option("--unoptimised", is_flag=True, help="Run FXC without the optimisations that wgpu requests.")
@click.option("--python", default=Path(), type=click.Path(path_type=Path), help="Python with Debian sid's Mesa.")
@click.option("--gpus", default="", help="GPUs of AMD or Intel; by default all.")
@click.option("--sizes", is_flag=True, help="The shaders of well-known models, in their true sizes.")
@click.option("--matrix-units", is_flag=True, help="The shaders of a device that has them in use.")
def main(
    compiler: str,
    folder: Path,
    families: tuple[str, ...],
    few: bool,
    one_each: bool,
    since: Path | None,
    library: Path | None,
    unoptimised: bool,
    python: Path,
    gpus: str,
    sizes: bool,
    matrix_units: bool,
) -> None:
    selection = Selection(few, one_each, since)
    if compiler in VENDORS:
        kinds = ["matrix-units"] * matrix_units + ["sizes"] * sizes
        prove_by_mesa(compiler, folder, selection, python, [one for one in gpus.split(",") if one], kinds)
    chosen, mode = COMPILERS[compiler], ""
    if compiler == "fxc":
        mode = "unoptimised" if unoptimised else "optimised"
    programs = [*map(program, chosen.programs), *chosen.sources, *filter(None, [library])]
    prove(folder, families or chosen.families, chosen.check(library or Path(), mode), programs, selection, mode)


if __name__ == "__main__":
    main()
