"""Two processes write one file: the first is halted at one of its file operations, and then continues or dies."""

import json
import os
import signal
import subprocess
import sys
import tempfile
from functools import cache
from pathlib import Path

from rwkv_gpu.gguf.file import GGUFFile
from tests.golden_files import golden

MODEL = str(golden("tiny-rwkv7.gguf"))
LINES = [{"id": str(number), "prompt": "a"} for number in range(6)]
# Halts at access number N: says so, and waits until its input has a byte or ends.
PROGRAM = """
import os, sys
limit, folder, ready, go = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
sys.argv[1:] = sys.argv[5:]
count = 0

def watch(event, given):
    global count
    if event in ("open", "os.rename", "os.remove", "os.truncate", "os.scandir", "os.chmod"):
        if any(isinstance(one, str) and one.startswith(folder) for one in given):
            count += 1
            if count == limit:
                os.write(ready, b".")
                os.read(go, 1)

from rwkv_gpu.cli.commands import cli
sys.addaudithook(watch)
cli()
"""
COMMANDS = {
    "quantize": ["quantize", "-y", MODEL, "{out}", "Q8_0"],
    "batch": ["batch", MODEL, "{in}", "{out}", "-n", "1", "--device", "cpu"],
    "chat": ["chat", "-m", MODEL, "--session", "{out}", "--device", "cpu", "-n", "1", "-p", "a"],
}


class Halted:
    """A command that is halted at one of its file operations, unless it ended before."""

    def __init__(self, name: str, folder: Path, access: int) -> None:
        ready, ready_there = os.pipe()
        go_there, self._go = os.pipe()
        command = [sys.executable, "-c", PROGRAM, str(access), str(folder), str(ready_there), str(go_there)]
        self._process = subprocess.Popen(
            [*command, *arguments(name, folder)],
            pass_fds=(ready_there, go_there), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        os.close(ready_there)
        os.close(go_there)
        self.halted = os.read(ready, 1) == b"."
        os.close(ready)

    def end(self, *, kill: bool) -> tuple[int, str]:
        """Kills the process or lets it continue. Returns its exit code and errors."""
        if kill:
            self._process.send_signal(signal.SIGKILL)
        os.close(self._go)
        _, errors = self._process.communicate()
        return self._process.returncode, errors.decode()


def arguments(name: str, folder: Path) -> list[str]:
    """Returns the arguments of a command that writes `out` in a folder."""
    return [one.format(out=folder / "out", **{"in": folder / "in"}) for one in COMMANDS[name]]


def check_writers(given: tuple[str, int, bool]) -> None:
    """Checks that each process writes its whole file or is refused, and leaves no other file."""
    name, access, kill = given
    with tempfile.TemporaryDirectory() as place:
        folder = Path(os.path.realpath(place))
        (folder / "in").write_text("".join(json.dumps(line) + "\n" for line in LINES))
        first = Halted(name, folder, access)
        killed = kill and first.halted
        results = [Halted(name, folder, 0).end(kill=False), first.end(kill=killed)]
        if killed:  # now the next one must write the file, whatever the first has left
            results[1] = Halted(name, folder, 0).end(kill=False)
            assert results[1][0] == 0, results
        assert 0 in (results[0][0], results[1][0]), results
        assert all(code == 0 or (code == 2 and "is writing it" in errors) for code, errors in results), results
        assert whole(name, folder / "out"), results
        assert {*os.listdir(folder)} == {"in", "out"}, os.listdir(folder)


def whole(name: str, path: Path) -> bool:
    """True if a file equals the output of the command alone."""
    if name == "quantize":
        with GGUFFile.open(path) as file:
            return bool(file.tensors) and path.read_bytes() == quantised()
    if name == "batch":
        return sorted(json.loads(line)["id"] for line in path.read_text().splitlines()) == [one["id"] for one in LINES]
    return path.stat().st_size > 100


@cache
def quantised() -> bytes:
    """Returns the file that one `quantize` writes."""
    with tempfile.TemporaryDirectory() as name:
        code, errors = Halted("quantize", Path(name), 0).end(kill=False)
        assert code == 0, errors
        return (Path(name) / "out").read_bytes()
