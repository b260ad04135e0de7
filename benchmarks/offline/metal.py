"""Metal's shaders as C++: naga writes MSL as wgpu does, and clang compiles it with a library of our own, metal_cpu/.

    python -m benchmarks.offline.metal FOLDER [FAMILY]... [--few]

FOLDER is what `benchmarks.offline.variants` wrote. Wants naga and clang++ on the path. A type error is found, as is a
function that Metal's library has for other types, more than 31 buffers, and threadgroup memory beyond Apple's 32 KiB.
"""

import re
import shutil
import tempfile
from pathlib import Path

import click

from .proof import few_option, prove, refused
from .variants import FAMILIES

HERE = Path(__file__).parent / "metal_cpu"
CLANG = shutil.which("clang++") or "clang++-14"
LITERAL = re.compile(r"(?<![\w.])(\d+\.\d*(?:e[+-]?\d+)?)(?![\w.])")
SWIZZLE = re.compile(r"\.(xy|yz|zw|xyz|yzw)\b(?!\()")
BUFFERS = 31  # of a stage
THREADGROUP_BYTES = 32 << 10
ARGUMENT = re.compile(r"^[ ,] (?:device|constant) .*\[\[", re.MULTILINE)
SHARED = re.compile(r"^, threadgroup ([\w:]+)& (\w+)$", re.MULTILINE)


def cpp_of(msl: str) -> str:
    """MSL as C++: its literals are floats, and components are read by a call."""
    return SWIZZLE.sub(r".\1()", LITERAL.sub(r"\1f", msl))


def msl_of(text: str) -> tuple[str, str]:
    """The MSL that naga writes, and what it has against the shader."""
    with tempfile.TemporaryDirectory() as folder:
        shader, target = Path(folder, "shader.wgsl"), Path(folder, "shader.metal")
        shader.write_text(text, encoding="utf-8")
        words = refused(["naga", "--metal-version", "3.0", shader, target])
        return ("", words) if words else (target.read_text(encoding="utf-8"), "")


def limits_kept(msl: str) -> str:
    """C++ that does not compile where Apple's limits are not kept."""
    sizes = " + ".join(f"((sizeof({kind}) + 15) / 16 * 16)" for kind, _ in SHARED.findall(msl)) or "0"
    buffers = len(ARGUMENT.findall(msl[msl.index("kernel void") :]))
    return (
        f'static_assert({sizes} <= {THREADGROUP_BYTES}, "threadgroup memory");\n'
        f'static_assert({buffers} <= {BUFFERS}, "buffers of a stage");\n'
    )


def check(text: str, family: str) -> str:  # noqa: ARG001
    """What naga or clang has against a shader."""
    msl, words = msl_of(text)
    if words:
        return words
    command = [CLANG, "-std=c++17", "-x", "c++", "-fsyntax-only", "-Wno-unknown-attributes", "-I", HERE, "-"]
    return refused(command, cpp_of(msl) + limits_kept(msl))


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.argument("families", nargs=-1, type=click.Choice(list(FAMILIES)))
@few_option
def main(folder: Path, families: tuple[str, ...], few: bool) -> None:
    prove(folder, families or ("apple",), check, few)


if __name__ == "__main__":
    main()
