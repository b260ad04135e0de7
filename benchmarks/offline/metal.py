"""Metal's shaders as C++: naga writes MSL as wgpu does, and clang compiles it with a library of our own, metal_cpu/.

    python -m benchmarks.offline.metal FOLDER [FAMILY]... [--few] [--since FOLDER]
    python -m benchmarks.offline.metal FOLDER --run [--op OP]...

FOLDER is what `benchmarks.offline.variants` wrote. Wants naga and clang++ on the path. A type error is found, as is a
function that Metal's library has for other types, more than 31 buffers, and threadgroup memory beyond Apple's 32 KiB.

With `--run` the CPU runs the doctor's trials on these shaders, as many as have every kernel with each of its parts, and
compares with numpy. It tells of races between lanes, of accesses out of bounds, of barriers that some lanes never come
to, and of dispatches that do not end. FOLDER keeps the programs, for the next time.
"""

from pathlib import Path

import click

from .metal_cpp import CLANG, STAND_IN, NotCompiled, check_types, msl_of
from .metal_run import prove_by_running
from .proof import Selection, few_option, program, prove, since_option
from .variants import FAMILIES


def check(text: str, family: str) -> str:  # noqa: ARG001
    """What naga or clang has against a shader."""
    try:
        check_types(msl_of(text))
    except NotCompiled as error:
        return str(error)
    return ""


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("families", nargs=-1, type=click.Choice(list(FAMILIES)))
@click.option("--run", "runs", is_flag=True, help="Run trials on the CPU, and look for races.")
@click.option("--op", "ops", multiple=True, help="Run only the trials of this op.")
@few_option
@since_option
def main(
    folder: Path, families: tuple[str, ...], runs: bool, ops: tuple[str, ...], few: bool, since: Path | None
) -> None:
    if runs:
        prove_by_running(folder, ops, few)
    else:
        programs = [program("naga"), program(CLANG), *STAND_IN]
        prove(folder, families or ("apple",), check, programs, Selection(few, since=since))


if __name__ == "__main__":
    main()
