"""Writes the recorded screens of commands that print tables or facts: `python -m tests.cli.screens`.

Nothing in them depends on the machine: devices, memory, speeds and the version are given.
"""

import contextlib
import os
import shutil
import time
from collections.abc import Iterator
from pathlib import Path
from unittest import mock

from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from rwkv_gpu.cli.models import Place
from rwkv_gpu.cli.servers import Server
from rwkv_gpu.gpu.adapters import Adapter
from rwkv_gpu.measure.bench import Result, Timing
from tests.golden_files import OWN

HERE = Path(__file__).resolve().parent / "screens"
FIRST = 40  # lines
WIDTHS = (120, 80, 40)
RWKV, LLAMA = (OWN / f"tiny-{name}.gguf" for name in ("rwkv7", "llama"))
COMMANDS = {
    "info": ["info", LLAMA.name],
    "devices": ["devices"],
    "list": ["list"],
    "fit": ["fit", RWKV.name, "--device", "cpu"],
    "plan": ["plan", RWKV.name, "--limits", "h200"],
    "models": ["models", "4b"],
    "model": ["models", "qwen3.5:4b"],
    "bench": ["bench", RWKV.name, "--device", "cpu", "-p", "64", "-n", "8"],
    "ps": ["ps"],
    "quantize": ["quantize", RWKV.name, "small.gguf", "Q4_K_M"],
    "tokenize": ["tokenize", RWKV.name, "The sea, 海 and 👍."],
}
ADAPTERS = [
    Adapter(0, "NVIDIA GeForce RTX 4090", "Vulkan", "DiscreteGPU", "NVIDIA 570.86.16", ("f16", "subgroups"), 1 << 31),
    Adapter(1, "llvmpipe (LLVM 15.0.6, 256 bits)", "Vulkan", "CPU", "Mesa 22.3.6 (LLVM 15.0.6)", (), 1 << 27),
]
URL = "http://127.0.0.1:8080"
SERVER = Server(URL, 8080, ("qwen3.5-4b", "rwkv7-g1-2.9b"), "NVIDIA GeForce RTX 4090", 12345, time.time() - 7300, "me")
PLACE = Place("NVIDIA GeForce RTX 4090 (Vulkan, DiscreteGPU)", 3 << 30, 1e12, numpy=False)


def bench_results(_runner, works, *_):
    """Returns benchmark results with fixed speeds, without a GPU."""
    for number, work in enumerate(works):
        passes = (Timing(0.1 * (1 + number), 0.0), Timing(0.11 * (1 + number), 0.0))
        yield Result(work, passes, None, None)


@contextlib.contextmanager
def given(width: int, folder: Path) -> Iterator[None]:
    """Simulates a machine with two adapters, two models and 8 GiB, and a terminal of this width."""
    models = folder / "cache" / "models" / "owner" / "a-model-with-a-long-name-GGUF"
    models.mkdir(parents=True)
    (models / "a-model-with-a-long-name-Q4_K_M.gguf").write_bytes(bytes(3 << 20))
    (models / "other-Q8_0.gguf.part").write_bytes(bytes(1 << 10))
    for model in (RWKV, LLAMA):
        shutil.copy(model, folder)
    with contextlib.ExitStack() as stack:
        stack.enter_context(mock.patch("rwkv_gpu.cli.printing.terminal_width", return_value=width))
        stack.enter_context(mock.patch("shutil.get_terminal_size", return_value=os.terminal_size((width, 24))))
        stack.enter_context(mock.patch("rwkv_gpu.cli.devices.list_adapters", return_value=ADAPTERS))
        stack.enter_context(
            mock.patch("rwkv_gpu.cli.devices.matrix_units_of", return_value="matrix units 16x16, in use")
        )
        stack.enter_context(mock.patch("rwkv_gpu.engine.fit.host_available", return_value=8 << 30))
        stack.enter_context(mock.patch("rwkv_gpu.cli.models.place_of", return_value=PLACE))
        stack.enter_context(mock.patch("rwkv_gpu.cli.models.terminal_width", return_value=width))
        stack.enter_context(mock.patch("rwkv_gpu.cli.ps.running", return_value=[(SERVER, folder)]))
        stack.enter_context(mock.patch("rwkv_gpu.cli.bench.bench", bench_results))
        stack.enter_context(mock.patch("rwkv_gpu.cli.bench.__version__", "1.2.3"))
        stack.enter_context(mock.patch.dict(os.environ, {"RWKV_GPU_CACHE": "cache", "COLUMNS": str(width)}))
        stack.enter_context(contextlib.chdir(folder))
        yield


def screen(name: str, width: int, folder: Path) -> str:
    """Returns the first lines that a command prints in a terminal of this width."""
    with given(width, folder):
        done = CliRunner().invoke(cli, COMMANDS[name])
    return "".join(done.output.splitlines(keepends=True)[:FIRST])


if __name__ == "__main__":
    import tempfile

    HERE.mkdir(exist_ok=True)
    for each in COMMANDS:
        for columns in WIDTHS:
            with tempfile.TemporaryDirectory() as place:
                shown = screen(each, columns, Path(place))
            (HERE / f"{each}.{columns}.txt").write_text(shown, encoding="utf-8")
