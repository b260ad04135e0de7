"""Runs under Vulkan's validation layers with synchronisation validation. Any message is a failure.

    python -m benchmarks.offline.validate FOLDER --python build/offline/bin/python-sid [PART]... [--icd FILE]

Runs parts of what the project does on Mesa's software Vulkan: kernels, every family of models once, or tests by their
path. First it checks that the layers find a race (validation_control). FOLDER gets the messages.
"""

import os
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread

import click

PARTS = {
    "control": ("-m", "benchmarks.offline.validation_control"),
    "kernels": ("-m", "benchmarks.offline.everything", "kernels", "llvmpipe"),
    "kernels-once": ("-m", "benchmarks.offline.everything", "kernels", "llvmpipe", "--few"),
    "matrix-units": ("-m", "benchmarks.offline.everything", "kernels", "llvmpipe", "--matrix-units"),
    "models": ("-m", "benchmarks.offline.everything", "models", "llvmpipe"),
}
DEFAULT = ("kernels-once", "models")
PYTEST = ("-m", "pytest", "-q", "--device", "llvmpipe", "-p", "no:cacheprovider", "--timeout", "1800")
EMPTY = 5  # pytest's exit status for a file without selected tests
HAZARD = "SYNC-HAZARD-WRITE-AFTER-WRITE"  # the message that the control must cause
ENABLED = "CURRENT-VALIDATION-ENABLED"  # printed by each Vulkan instance that is validated
MESSAGE = re.compile(r"^Validation \w+: \[ (\S+) \]", re.MULTILINE)
SETTINGS = {
    "validate_sync": "true",
    "syncval_shader_accesses_heuristic": "true",  # derives the accesses of shaders to buffers from their text
    "debug_action": "VK_DBG_LAYER_ACTION_LOG_MSG",
    "report_flags": "error,warn,info",
    "duplicate_message_limit": "3",
    "check_shaders_caching": "false",  # otherwise shaders that passed an earlier run are not checked again
}
# Known messages, each with its reason: wgpu or a driver causes them, not our code.
KNOWN = {
    "VUID-StandaloneSpirv-None-10684": "naga 29 gives arrays in functions strides, too; drivers ignore them",
}
END = b"\0"


@dataclass(frozen=True)
class Watched:
    """The result of a run under the layers."""

    name: str
    status: int
    instances: int  # number of validated Vulkan instances
    messages: dict[str, int]

    @property
    def right(self) -> bool:
        return self.status in (0, EMPTY) and self.messages.keys() <= KNOWN.keys() and self.instances > 0

    def __str__(self) -> str:
        counts = ", ".join(f"{count} × {name}" for name, count in self.messages.items()) or "no message"
        return f"{self.name}: ended with {self.status}; {self.instances} instances of Vulkan; {counts}"


def watched(part: str, folder: Path, python: Path, icd: str = "") -> Watched:
    """Runs a part and all processes that it starts under the layers."""
    folder.mkdir(parents=True, exist_ok=True)
    log, pipe = folder / "messages.txt", (folder / "pipe").resolve()
    lines = "".join(f"khronos_validation.{key} = {value}\n" for key, value in SETTINGS.items())
    (folder / "vk_layer_settings.txt").write_text(f"{lines}khronos_validation.log_filename = {pipe}\n", "utf-8")
    environment = os.environ | {
        "VK_LAYER_SETTINGS_PATH": str(folder.resolve()), "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation",
        "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "GALLIVM_PERF": "nopt",
        "ICD": icd,
    }  # fmt: skip
    command = PARTS.get(part) or (*PYTEST, part)
    with collected(pipe, log):
        status = subprocess.run([str(python), *command], env=environment, check=False).returncode
    found = Counter(MESSAGE.findall(log.read_text(encoding="utf-8", errors="replace")))
    return Watched(part, status, found.pop(ENABLED, 0), dict(found))


@contextmanager
def collected(pipe: Path, log: Path) -> Iterator[None]:
    """Copies a named pipe to a file. The layers themselves would overwrite the file in each process."""
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


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("parts", nargs=-1, metavar=f"[{'|'.join(PARTS)}|TESTS]...")
@click.option("--python", required=True, type=click.Path(exists=True, path_type=Path), help="With sid's drivers.")
@click.option("--icd", default="", help="A driver file of Vulkan's loader, in place of the driver of Debian sid.")
def main(folder: Path, parts: tuple[str, ...], python: Path, icd: str) -> None:
    if HAZARD not in watched("control", folder / "control", python, icd).messages:
        raise click.ClickException(
            "the validation layers missed the deliberate race of the control; run `make offline-tools`"
        )
    failed = False
    for part in parts or DEFAULT:
        own = folder / part.replace("/", ".")
        found = watched(part, own, python, icd)
        failed |= not found.right
        click.echo(str(found))
        for name in found.messages:
            click.echo(f"  {name}: {KNOWN.get(name, f'not known; see {own}')}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
