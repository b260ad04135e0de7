"""Vulkan's validation layers watch what the GPU is given, with synchronisation validation: any message is a failure.

    python -m benchmarks.offline.validate FOLDER --python build/offline/bin/python-sid [PART]... [--cases 2]

Runs parts of what the project does on Mesa's software Vulkan: kernels, every family of models once, or all tests. First
it checks that the layers find a race (validation_control). FOLDER gets the messages. Tests run by files, each in a
process of its own: what was right is kept in FOLDER/suite, and a run that was interrupted goes on. A file runs again
once its text has changed, or a shader that it compiled, or `rwkv_gpu/gpu`. With --cases each test has so many cases in
each mode of the device.
"""

import hashlib
import json
import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from threading import Thread

import click

from rwkv_gpu.kernels.registry import KERNELS

from .proof import kept_lines

ROOT = Path(__file__).resolve().parents[2]
PACKAGE = ROOT / "rwkv_gpu"
PARTS = {
    "control": ("-m", "benchmarks.offline.validation_control"),
    "kernels": ("-m", "benchmarks.offline.every_kernel", "llvmpipe"),
    "kernels-once": ("-m", "benchmarks.offline.every_kernel", "llvmpipe", "--few"),
    "matrix-units": ("-m", "benchmarks.offline.every_kernel", "llvmpipe", "--matrix-units"),
    "models": ("-m", "benchmarks.offline.every_model", "llvmpipe"),
}
SUITE = "suite"
FITTING = ("kernels-once", "models", SUITE)
APART = "browser", "clients", "ray"  # folders of tests that `make test` leaves to other targets
PLUGIN = "benchmarks.offline.watched_tests"
PYTEST = ("-m", "pytest", "-q", "--device", "llvmpipe", "-p", "no:cacheprovider")
LIMIT_S = 1800  # of a test
EMPTY = 5  # pytest's exit status where a file has no test to run
HAZARD = "SYNC-HAZARD-WRITE-AFTER-WRITE"  # what the control must give
ENABLED = "CURRENT-VALIDATION-ENABLED"  # of each Vulkan instance that is watched
MESSAGE = re.compile(r"^Validation \w+: \[ (\S+) \]", re.MULTILINE)
SETTINGS = {
    "validate_sync": "true",
    "syncval_shader_accesses_heuristic": "true",  # accesses of shaders to buffers, by what their text says
    "debug_action": "VK_DBG_LAYER_ACTION_LOG_MSG",
    "report_flags": "error,warn,info",
    "duplicate_message_limit": "3",
    "check_shaders_caching": "false",  # else what an earlier run had nothing against is not looked at again
}
# Messages that are known, each with its reason: they are of wgpu or of a driver, and not of ours to mend.
KNOWN = {
    "VUID-StandaloneSpirv-None-10684": "naga 29 gives arrays in functions strides, too; drivers ignore them",
}
END = b"\0"


@dataclass(frozen=True)
class Watched:
    """What came of a run under the layers."""

    name: str
    status: int
    instances: int = 0  # of Vulkan that were watched
    messages: dict[str, int] = field(default_factory=dict)
    shaders: tuple[str, ...] = ()  # files, kernels and parts of them, that tests compiled
    seconds: float = 0.0  # of CPU
    digest: str = ""  # of the texts that it came of

    @property
    def unknown(self) -> dict[str, int]:
        return {name: count for name, count in self.messages.items() if name not in KNOWN}

    @property
    def right(self) -> bool:
        return self.status in (0, EMPTY) and not self.unknown

    def __str__(self) -> str:
        counts = ", ".join(f"{count} × {name}" for name, count in self.messages.items()) or "no message"
        spent = f"{self.instances} instances of Vulkan, {self.seconds:.0f} s"
        return f"{self.name}: ended with {self.status}; {spent}; {counts}"


def watched(name: str, command: Sequence[str], folder: Path, python: Path, icd: str = "") -> Watched:
    """Runs a command under the layers, and all processes that it starts."""
    folder.mkdir(parents=True, exist_ok=True)
    log, pipe = folder / "messages.txt", (folder / "pipe").resolve()
    lines = "".join(f"khronos_validation.{key} = {value}\n" for key, value in SETTINGS.items())
    (folder / "vk_layer_settings.txt").write_text(f"{lines}khronos_validation.log_filename = {pipe}\n", "utf-8")
    environment = os.environ | {
        "VK_LAYER_SETTINGS_PATH": str(folder.resolve()), "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation",
        "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "GALLIVM_PERF": "nopt",
        "ICD": icd,
    }  # fmt: skip
    before = os.times()
    with collected(pipe, log):
        status = subprocess.run([str(python), *command], env=environment, check=False).returncode
    found = Counter(MESSAGE.findall(log.read_text(encoding="utf-8", errors="replace")))
    after = os.times()
    seconds = after.children_user + after.children_system - before.children_user - before.children_system
    return Watched(name, status, found.pop(ENABLED, 0), dict(found), seconds=round(seconds, 1))


@contextmanager
def collected(pipe: Path, log: Path) -> Iterator[None]:
    """What processes write into a named pipe goes to a file: the layers would begin the file anew in each process."""
    pipe.unlink(missing_ok=True)
    os.mkfifo(pipe)
    with open(os.open(pipe, os.O_RDWR), "r+b", buffering=0) as both, log.open("wb") as sink:

        def collect() -> None:
            ended = False
            while not ended:
                text, sign, _ = both.read(1 << 16).partition(END)
                sink.write(text)
                ended = bool(sign)

        reader = Thread(target=collect)
        reader.start()
        try:
            yield
        finally:
            both.write(END)
            reader.join()
    pipe.unlink()


def test_files() -> list[str]:
    """All files of tests, those first that have the most to do with GPUs."""
    folders = ("ops", "gpu", "kernels", "models", "engine", "measure", "llm")
    names = [path.relative_to(ROOT) for path in sorted((ROOT / "tests").rglob("test_*.py"))]
    fitting = [name for name in names if name.parts[1] not in APART]
    order = {folder: number for number, folder in enumerate(folders)}
    return [str(name) for name in sorted(fitting, key=lambda name: order.get(name.parts[1], len(order)))]


def suite(folder: Path, python: Path, icd: str, cases: int) -> list[Watched]:
    """Every file of tests; not again what an earlier run found right, where nothing of it has changed since."""
    path = folder / f"{cases or 'all'}-cases.jsonl"
    known = {one.name: one for one in (Watched(**line) for line in kept_lines(path))}
    every = test_files()
    for number, name in enumerate(every, 1):
        if name in known and known[name].right and known[name].digest == digest_of(name, known[name].shaders):
            continue
        known[name] = of_file(name, folder / name.replace("/", "."), python, icd, cases)
        click.echo(f"{number} of {len(every)}, {known[name]}")
        with path.open("a", encoding="utf-8") as sink:
            sink.write(json.dumps(asdict(known[name])) + "\n")
    return [known[name] for name in every]


def of_file(name: str, folder: Path, python: Path, icd: str, cases: int) -> Watched:
    """The tests of a file."""
    listed = folder / "shaders.txt"
    listed.unlink(missing_ok=True)
    options = ("-p", PLUGIN, "--cases", str(cases), "--shaders-to", str(listed), "--timeout", str(LIMIT_S))
    found = watched(name, (*PYTEST, *options, name), folder, python, icd)
    shaders = tuple(listed.read_text().split()) if listed.exists() else ()
    return replace(found, shaders=shaders, digest=digest_of(name, shaders))


def digest_of(name: str, shaders: Sequence[str]) -> str:
    """Of what a file of tests gives a GPU: its own text, those of the shaders, and what speaks with the driver."""
    own = [ROOT / name, ROOT / "tests" / "conftest.py", *sorted((PACKAGE / "gpu").glob("*.py"))]
    paths = own + [PACKAGE / "shaders" / shader for shader in shaders]
    return hashlib.sha256(b"\0".join(path.read_bytes() if path.exists() else b"" for path in paths)).hexdigest()[:32]


def summed_up(name: str, runs: Sequence[Watched]) -> Watched:
    """Of many runs: the highest status, and the sums."""
    messages = sum((Counter(one.messages) for one in runs), Counter[str]())
    status = max((one.status for one in runs if not one.right), default=0)
    shaders = {shader for one in runs for shader in one.shaders}
    seconds = sum(one.seconds for one in runs)
    return Watched(name, status, sum(one.instances for one in runs), dict(messages), tuple(sorted(shaders)), seconds)


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("parts", nargs=-1, type=click.Choice([*PARTS, SUITE]))
@click.option("--python", required=True, type=click.Path(exists=True, path_type=Path), help="With sid's drivers.")
@click.option("--icd", default="", help="Another driver than sid's: a file of Vulkan's loader.")
@click.option("--cases", default=0, help="Of each test in each mode of the device; 0 is all.")
def main(folder: Path, parts: tuple[str, ...], python: Path, icd: str, cases: int) -> None:
    control = watched("control", PARTS["control"], folder / "control", python, icd)
    if HAZARD not in control.messages:
        raise click.ClickException("the layers did not find the race of the control; run `make offline-tools`")
    failed = False
    for part in parts or FITTING:
        if part == SUITE:
            runs = suite(folder / part, python, icd, cases)
            for one in runs:
                if not one.right:
                    click.echo(f"not right: {one}")
            found = summed_up(f"{len(runs)} files of tests", runs)
            kernels = {shader.removesuffix(".wgsl") for shader in found.shaders}
            click.echo(f"kernels that no test compiled: {', '.join(sorted(set(KERNELS) - kernels)) or 'none'}")
        else:
            found = watched(part, PARTS[part], folder / part, python, icd)
        failed |= not found.right or not found.instances
        click.echo(str(found))
        for name, count in found.messages.items():
            click.echo(f"  {count} × {name}: {KNOWN.get(name, 'not known; see ' + str(folder / part))}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
