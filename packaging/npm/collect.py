"""Collects the files of the npm package in a folder: the library's scripts, with this version."""

import shutil
import sys
from pathlib import Path

import rwkv_gpu
from rwkv_gpu.export.files import SCRIPTS, script

HERE = Path(__file__).resolve().parent


def collect(folder: Path) -> None:
    """Writes the package to an empty folder."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name in SCRIPTS:
        (folder / name).write_text(script(name), encoding="utf-8")
    for name in ("README.md", "example.html"):
        shutil.copy(HERE / name, folder)
    shutil.copy(HERE.parents[1] / "LICENSE", folder)
    package = (HERE / "package.json").read_text(encoding="utf-8")
    (folder / "package.json").write_text(package.replace("VERSION", rwkv_gpu.__version__), encoding="utf-8")


if __name__ == "__main__":
    collect(Path(sys.argv[1]))
