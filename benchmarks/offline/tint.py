"""Browsers' own compiler takes every shader: Tint, of Chromium's Dawn, reads the WGSL and writes SPIR-V of it.

    python -m benchmarks.offline.tint FOLDER [FAMILY]... [--few] [--since FOLDER]

FOLDER is what `benchmarks.offline.variants` wrote. Wants `tint` on the path (Debian sid: dawn-tools).
The default is the family webgpu: WebGPU's default limits, no features. naga wants no `enable subgroups`, Tint does.
"""

import tempfile
from pathlib import Path

import click

from .proof import Selection, few_option, program, prove, refused, since_option
from .variants import FAMILIES


def check(text: str, family: str) -> str:
    """What Tint has against a shader."""
    with tempfile.TemporaryDirectory() as folder:
        shader, target = Path(folder, "shader.wgsl"), Path(folder, "shader.spv")
        enabled = "enable subgroups;\n" if FAMILIES[family].subgroup else ""
        shader.write_text(enabled + text, encoding="utf-8")
        words = refused(["tint", "--format", "spirv", "--spirv-version", "1.4", "-o", target, shader])
        return words or ("" if target.exists() else "no SPIR-V was written")


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("families", nargs=-1, type=click.Choice(list(FAMILIES)))
@few_option
@since_option
def main(folder: Path, families: tuple[str, ...], few: bool, since: Path | None) -> None:
    programs = [program("tint"), Path(__file__)]
    prove(folder, families or ("webgpu",), check, programs, Selection(few, since=since))


if __name__ == "__main__":
    main()
