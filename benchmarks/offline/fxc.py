"""FXC, DirectX's compiler that is a part of Windows, takes every shader: naga writes HLSL as wgpu does, Wine runs FXC.

    python -m benchmarks.offline.fxc FOLDER --library d3dcompiler_47.dll [--few | --one-each] [--unoptimised]
        [--since FOLDER] [--limit SECONDS]

FOLDER is what `benchmarks.offline.variants` wrote. Wants naga on the path, and `fxc` (tools.sh): fxc.c, built for
Windows, with Microsoft's library. wgpu-native compiles by that where no dxcompiler.dll lies on Windows' path. FXC
optimises, as wgpu has it do; that takes it minutes for some shaders.
"""

import contextlib
import re
import subprocess
import tempfile
import threading
from functools import partial
from pathlib import Path

import click

from .dxc import hlsl_of
from .proof import Selection, Unfinished, few_option, program, prove, since_option

FAMILY = "dx12-fxc"
LIMIT_S = 600.0  # of one shader
END = "== end\n"
TAKEN = "OK "
# What naga writes for shaders that are not trusted. Ours are, outside of tests, and FXC takes far longer with it.
LOOP_BOUND = re.compile(
    r"^ *(?:uint2 loop_bound\w* = .*|if \(all\(loop_bound\w* == .*\)\) \{ break; \}|loop_bound\w* -= .*)\n",
    re.MULTILINE,
)
RESTRICTED = re.compile(r"\[min\(uint\(")


class Fxc:
    """FXC in processes that go on from shader to shader, one for each thread that asks."""

    def __init__(self, *command: str | Path, limit: float = LIMIT_S) -> None:
        self._command = [str(word) for word in command]
        self._limit = limit
        self._free: list[subprocess.Popen[str]] = []

    def compile(self, hlsl: str) -> str:
        """What it has against the HLSL; nothing where it makes machine code of it. Its warnings are no complaints."""
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
        """The lines of its answer, and whether it was ended since it took too long."""
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
    """The same without bounds of loops, and of indices: `[i]` for `[min(uint(i), 7u)]`."""
    hlsl = LOOP_BOUND.sub("", hlsl)
    while found := RESTRICTED.search(hlsl):
        depth, end = 1, found.end()
        while depth:
            depth += {"(": 1, ")": -1}.get(hlsl[end], 0)
            end += 1
        hlsl = f"{hlsl[: found.start()]}[{hlsl[found.end() : end - 1]}{hlsl[hlsl.index(']', end) :]}"
    return hlsl


def check(fxc: Fxc, text: str, family: str) -> str:  # noqa: ARG001
    """What naga or FXC has against a shader."""
    hlsl, words = hlsl_of(text, 51)
    return words or fxc.compile(trusted(hlsl))


@click.command()
@click.argument("folder", type=click.Path(exists=True, file_okay=False, path_type=Path))
@click.option("--library", required=True, type=click.Path(exists=True, path_type=Path), help="d3dcompiler_47.dll")
@click.option("--one-each", is_flag=True, help="Only the shortest shader of each kernel.")
@click.option("--unoptimised", is_flag=True, help="Not as wgpu has it, but faster.")
@click.option("--limit", default=LIMIT_S, show_default=True, help="Seconds for one shader.")
@few_option
@since_option
def main(
    folder: Path, library: Path, one_each: bool, unoptimised: bool, limit: float, few: bool, since: Path | None
) -> None:
    mode = "unoptimised" if unoptimised else "optimised"
    with contextlib.closing(Fxc(program("fxc"), mode, limit=limit)) as fxc:
        selection = Selection(few, one_each, since)
        prove(folder, [FAMILY], partial(check, fxc), [program("naga"), library], selection, mode)


if __name__ == "__main__":
    main()
