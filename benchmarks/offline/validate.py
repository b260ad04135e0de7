"""Vulkan's validation layers watch what the GPU is given, with synchronisation validation: any message is a failure.

    python -m benchmarks.offline.validate FOLDER --python build/offline/bin/python-sid [PART]...

Runs parts of what the project does on Mesa's software Vulkan: every kernel with each of its parts, every family of
models once, and the engine. Messages go to FOLDER, one file for each part. First it checks that the layers find a race
(validation_control).
"""

import os
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

import click

TESTS = ("-m", "pytest", "-q", "--device", "llvmpipe")
PARTS = {
    "control": ("-m", "benchmarks.offline.validation_control"),
    "kernels": ("-m", "benchmarks.offline.every_kernel", "llvmpipe"),
    "kernels-once": ("-m", "benchmarks.offline.every_kernel", "llvmpipe", "--few"),
    "models": ("-m", "benchmarks.offline.every_model", "llvmpipe"),
    "engine": (*TESTS, "tests/engine/test_engine.py", "tests/engine/test_device_sampling.py"),
    "tests": (*TESTS, "tests/gpu", "tests/kernels", "tests/ops", "tests/models", "tests/engine"),
}
FITTING = ("kernels", "models", "engine")
HAZARD = "SYNC-HAZARD-WRITE-AFTER-WRITE"  # what the control must give
MESSAGE = re.compile(r"^Validation \w+: \[ (\S+) \]", re.MULTILINE)
SETTINGS = {
    "validate_sync": "true",
    "syncval_shader_accesses_heuristic": "true",  # accesses of shaders to buffers, by what their text says
    "debug_action": "VK_DBG_LAYER_ACTION_LOG_MSG",
    "report_flags": "error,warn",
    "duplicate_message_limit": "3",
}
# Messages that are known, each with its reason: they are of wgpu or of a driver, and not of ours to mend.
KNOWN = {
    "VUID-StandaloneSpirv-None-10684": "naga 29 gives arrays in functions strides, too; drivers ignore them",
}


def watched(part: str, folder: Path, python: Path) -> tuple[int, Counter[str]]:
    """Runs a part under the layers: its exit status, and how often each message came."""
    folder = folder / part
    folder.mkdir(parents=True, exist_ok=True)
    messages = folder / "messages.txt"
    messages.unlink(missing_ok=True)
    settings = SETTINGS | {"log_filename": str(messages.resolve())}
    lines = "".join(f"khronos_validation.{name} = {value}\n" for name, value in settings.items())
    (folder / "vk_layer_settings.txt").write_text(lines, encoding="utf-8")
    environment = os.environ | {
        "VK_LAYER_SETTINGS_PATH": str(folder.resolve()), "VK_INSTANCE_LAYERS": "VK_LAYER_KHRONOS_validation",
        "PYTHON": sys.executable, "PYTHONPATH": os.pathsep.join(filter(None, sys.path)), "GALLIVM_PERF": "nopt",
    }  # fmt: skip
    status = subprocess.run([str(python), *PARTS[part]], env=environment, check=False).returncode
    if not messages.exists():  # they make the file when they are loaded
        raise click.ClickException(f"{part}: the layers were not loaded; run `make offline-tools`")
    return status, Counter(MESSAGE.findall(messages.read_text(encoding="utf-8", errors="replace")))


@click.command()
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path))
@click.argument("parts", nargs=-1, type=click.Choice(list(PARTS)))
@click.option("--python", required=True, type=click.Path(exists=True, path_type=Path), help="With sid's drivers.")
def main(folder: Path, parts: tuple[str, ...], python: Path) -> None:
    _, found = watched("control", folder, python)
    if not found[HAZARD]:
        raise click.ClickException("the layers did not find the race of the control")
    failed = False
    for part in parts or FITTING:
        status, found = watched(part, folder, python)
        unknown = {name: count for name, count in found.items() if name not in KNOWN}
        failed |= bool(status or unknown)
        click.echo(
            f"{part}: ended with {status}; {sum(unknown.values())} messages, and {found.total()} with known ones"
        )
        for name, count in found.items():
            click.echo(f"  {count} × {name}: {KNOWN.get(name, 'not known; see ' + str(folder / part))}")
    sys.exit(failed)


if __name__ == "__main__":
    main()
