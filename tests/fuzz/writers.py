"""Two processes write one file or folder: each is halted at one of its file operations, and continues or dies.

Each command has two sets of arguments with different results. In all cases, the files must then be the complete result
of one of the two processes, without leftovers. A process that did not write must state the reason in one line.
"""

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from rwkv_gpu.kernels.tuned import parse
from rwkv_gpu.stores.directory import UNFINISHED
from tests.convert.hub_folders import write_folder
from tests.convert.hub_kinds import KINDS
from tests.fuzz.hubs import OLD, breaking
from tests.golden_files import golden

MODEL, OTHER = (str(golden(f"{name}.gguf")) for name in ("quiet-rwkv7", "quiet-llama"))
LINES = [{"id": str(number), "prompt": "a"} for number in range(6)]
ACCESSES = st.integers(1, 80)  # file operations of a command before it is halted
REFUSED = re.compile("is writing it|is not a model of")  # messages of the second process
NOTES = "rwkv-gpu: another process is converting"
# Halts at access number N: reports it, and waits until its input has a byte or ends.
PROGRAM = """
import os, sys
limit, folder, ready, go = int(sys.argv[1]), sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
sys.argv[1:] = sys.argv[5:]
count = 0
EVENTS = ("open", "os.link", "os.mkdir", "os.rmdir", "os.rename", "os.remove", "os.truncate", "os.scandir", "os.chmod",
          "os.utime")

def watch(event, given):
    global count
    paths = [os.fspath(one) for one in given if isinstance(one, (str, os.PathLike))] if event in EVENTS else []
    if any(path.startswith(folder) for path in paths):
        count += 1
        if count == limit:
            os.write(ready, b".")
            os.read(go, 1)

if sys.argv[1] == "store":
    from rwkv_gpu.stores.directory import DirectoryStore
    sys.addaudithook(watch)
    store, value = DirectoryStore(sys.argv[2]), sys.argv[3].encode() * 5000
    print(store.secret().hex())
    for key in "ab":
        store.put(key, value)
        found = store.get([key])[0]
        assert found is None or (len(found) == 5000 and len(set(found)) == 1)
else:
    from rwkv_gpu.cli.commands import cli
    sys.addaudithook(watch)
    cli()
"""


Files = dict[str, bytes]


@dataclass(frozen=True)
class Result:
    """How a process ended."""

    code: int
    output: str
    errors: str

    @property
    def refused(self) -> bool:
        """True if the process says in one line why it did nothing."""
        *notes, last = self.errors.splitlines() or [""]
        return self.code == 2 and bool(REFUSED.search(last)) and all(one.startswith(NOTES) for one in notes)


@dataclass(frozen=True)
class Command:
    """A writing command: the arguments of two processes, and the file or folder that they write."""

    first: list[str]
    second: list[str]
    writes: str = "out"
    waits: bool = False  # waits for the other process, however long that takes
    prepare: Callable[[Path], None] | None = None
    whole: Callable[[Files, list[str]], bool] | None = None  # each run writes different bytes


def answered(files: Files, _: list[str]) -> bool:
    """True if a batch has one answer for each line."""
    return sorted(json.loads(line)["id"] for line in files["."].splitlines()) == [one["id"] for one in LINES]


def chatted(files: Files, _: list[str]) -> bool:
    """True if a session can be continued."""
    return len(files["."]) > 100


def traced(files: Files, _: list[str]) -> bool:
    """True if a timeline is complete."""
    return bool(json.loads(files["."])["traceEvents"])


def tuned(files: Files, _: list[str]) -> bool:
    """True if a file of constants can be used."""
    return bool(parse(files["."].decode()).models)


def reported(files: Files, _: list[str]) -> bool:
    """True if a report is of one run, up to its verdict."""
    kinds = [json.loads(line)["kind"] for line in files["."].splitlines()]
    return kinds[-1] == "verdict" and kinds.count("system") == 1


def keyed(files: Files, secrets: list[str]) -> bool:
    """True if a store has one secret, complete values, and only files that a killed writer may leave for an hour."""
    values = [data for path, data in files.items() if path.endswith(".state")]
    known = {"key", "a.state", "b.state"}
    return (
        set(secrets) == {files["key"].hex() + "\n"}
        and all(data in (b"x" * 5000, b"y" * 5000) for data in values)
        and all(path in known or UNFINISHED.fullmatch(path) for path in files)
    )


def stored_model(folder: Path) -> None:
    """Puts a model into the folder of models."""
    place = folder / "cache" / "models" / "owner" / "name"
    place.mkdir(parents=True)
    (place / "m.gguf").write_bytes(OLD)


def pair(arguments: list[str], first: list[str], second: list[str], **more: Any) -> Command:
    """Returns a command with common arguments."""
    return Command([*arguments, *first], [*arguments, *second], **more)


MODELS, PULL = "cache/models", ["pull", "hf.co/owner/name"]
COMMANDS = {
    "quantize": pair(["quantize", "-y", MODEL, "{out}"], ["Q8_0"], ["Q4_0"]),
    "convert": pair(["convert", "-y", "{in}/tiny-llama-chat", "{out}", "--type"], ["F16"], ["F32"]),
    "use of a checkpoint": pair(
        ["tokenize", "-m", "{in}/tiny-llama-chat", "a"], [], ["--json"], writes="cache/converted", waits=True
    ),
    "export plan": Command(["export", "plan", MODEL, "{out}"], ["export", "plan", OTHER, "{out}"]),
    "export web": pair(["export", "web", MODEL, "{out}"], [], ["--quant", "Q8_0"]),
    "export one file": pair(["export", "web", "--single-file", MODEL, "{out}"], [], ["--quant", "Q8_0"]),
    "batch": pair(
        ["batch", MODEL, "{in}/lines", "{out}", "-n", "1", "--device", "cpu"], [], ["--sequences", "2"], whole=answered
    ),
    "chat": pair(
        ["chat", "-m", MODEL, "--session", "{out}", "--device", "cpu", "-n", "1", "-p"], ["a"], ["b"], whole=chatted
    ),
    "create": pair(["create", "-y", "pet", "-f"], ["{in}/cat"], ["{in}/dog"], writes=MODELS),
    "pull": pair(PULL, [], ["--connections", "3"], writes=MODELS, waits=True),
    "pull and rm": Command(["rm", "owner/name"], PULL, writes=MODELS, waits=True),
    "rm": Command(["rm", "owner/name"], ["rm", "name"], writes=MODELS, prepare=stored_model),
    "download": pair(["download", "owner/name", "m.gguf", "--to", "{out}"], [], ["--revision", "other"], waits=True),
    "profile": pair(
        ["profile", MODEL, "-b", "0", "-r", "1", "--trace", "{out}", "--device", "0", "-p"], ["1"], ["2"], whole=traced
    ),
    "tune": pair(
        ["tune", MODEL, "--minutes", "0.05", "--matrix-units", "off", "--save", "{out}", "--device", "0"],
        [],
        ["--fresh"],
        whole=tuned,
    ),
    "doctor": pair(
        ["doctor", "--quick", "--matrix-units", "off", "--device", "0", "--report", "{out}", "--op"],
        ["scale"],
        ["shift_rows"],
        whole=reported,
    ),
    "store": pair(["store", "{out}"], ["x"], ["y"], whole=keyed),
}


@cache
def inputs() -> tempfile.TemporaryDirectory[str]:
    """Returns a folder with the input files of the commands."""
    place = tempfile.TemporaryDirectory(prefix="inputs")
    folder = Path(place.name)
    (folder / "lines").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    for animal in ("cat", "dog"):
        (folder / animal).write_text(f"FROM {MODEL}\nSYSTEM You are a {animal}.\n")
    write_folder(folder, KINDS["llama2"])
    return place


class Halted:
    """A command that is halted at one of its file operations, unless it ended before."""

    def __init__(self, arguments: list[str], folder: Path, access: int, hub: str) -> None:
        ready, ready_there = os.pipe()
        go_there, self._go = os.pipe()
        named = {"out": folder / "out", "in": inputs().name}
        command = [sys.executable, "-c", PROGRAM, str(access), str(folder), str(ready_there), str(go_there)]
        fast = {"PYTHONDONTWRITEBYTECODE": "", "GALLIVM_PERF": "nopt"}  # compiles modules once, and kernels fast
        self._process = subprocess.Popen(
            [*command, *(one.format(**named) for one in arguments)],
            env={**os.environ, **fast, "RWKV_GPU_CACHE": str(folder / "cache"), "HF_ENDPOINT": hub},
            pass_fds=(ready_there, go_there), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        )  # fmt: skip
        os.close(ready_there)
        os.close(go_there)
        self._result: Result | None = None
        self.halted = os.read(ready, 1) == b"."
        os.close(ready)

    def go(self, *, kill: bool = False) -> None:
        """Lets the process continue, or kills it."""
        if kill:
            self._process.send_signal(signal.SIGKILL)
        os.close(self._go)

    def result(self) -> Result:
        """Waits for the end."""
        if self._result is None:
            output, errors = self._process.communicate()
            self._result = Result(self._process.returncode, output.decode(), errors.decode())
        return self._result


def run(arguments: list[str], folder: Path, hub: str) -> Result:
    """Runs a command without a halt."""
    process = Halted(arguments, folder, 0, hub)
    process.go()
    return process.result()


def check_writers(given: tuple[str, int, int, str]) -> None:
    """Checks that each process writes its whole result or is refused in one line, and leaves no other file."""
    kind, first, second, killed = given
    command = COMMANDS[kind]
    with tempfile.TemporaryDirectory() as place, breaking([], has_sum=True) as server:
        folder, hub = Path(os.path.realpath(place)), f"http://127.0.0.1:{server.server_port}"
        if command.prepare is not None:
            command.prepare(folder)
        halted = {"first": Halted(command.first, folder, first, hub)}
        halted["second"] = Halted(command.second, folder, second, hub)
        dies = bool(killed) and halted[killed].halted
        for name in ("first", "second") if killed == "first" else ("second", "first"):
            halted[name].go(kill=dies and name == killed)
            if not command.waits:
                halted[name].result()
        results = [process.result() for process in halted.values()]
        if dies:  # the next command must succeed, whatever files are left
            results = [*(one for one in results if one.code != -signal.SIGKILL), run(command.second, folder, hub)]
            assert results[-1].code == 0 or (kind == "rm" and results[-1].refused), results
        assert any(one.code == 0 for one in results), results
        assert all(one.code == 0 or one.refused for one in results), results
        files = tree(folder / command.writes)
        done = [one.output for one in results if one.code == 0]
        assert command.whole(files, done) if command.whole else files in alone(kind), (results, sorted(files))
        assert not [one for one in tree(folder) if re.search(r"\.lock$|\.saving-|\.part$", one)], sorted(tree(folder))


def tree(path: Path) -> dict[str, bytes]:
    """Returns all files in a folder, or a file, by their paths."""
    paths = [path] if path.is_file() else path.rglob("*")
    return {str(one.relative_to(path)): one.read_bytes() for one in paths if one.is_file()}


@cache
def alone(name: str) -> list[dict[str, bytes]]:
    """Returns what each process of a command writes alone."""
    found, command = [], COMMANDS[name]
    for arguments in (command.first, command.second):
        with tempfile.TemporaryDirectory() as place, breaking([], has_sum=True) as server:
            folder = Path(os.path.realpath(place))
            if command.prepare is not None:
                command.prepare(folder)
            run(arguments, folder, f"http://127.0.0.1:{server.server_port}")
            found.append(tree(folder / command.writes))
    return found
