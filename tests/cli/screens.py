"""Writes the recorded screens of commands that print tables or facts: `python -m tests.cli.screens`.

Nothing in them depends on the machine: devices, memory, speeds and the version are given.
"""

import contextlib
import json
import os
import shutil
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest import mock

from click.testing import CliRunner

from rwkv_gpu.cli.commands import cli
from rwkv_gpu.cli.models import Place
from rwkv_gpu.cli.servers import Server
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.gpu.adapters import Adapter
from rwkv_gpu.gpu.adapters import Choice as Chosen
from rwkv_gpu.gpu.profile import Profile, StepTime
from rwkv_gpu.gpu.shader import fingerprint
from rwkv_gpu.kernels.tuned import Choice, Tuned
from rwkv_gpu.measure import report
from rwkv_gpu.measure.bench import Result, Timing
from rwkv_gpu.measure.cases import CHOSEN
from rwkv_gpu.measure.doctor import Report
from rwkv_gpu.measure.profiling import Profiled
from rwkv_gpu.measure.roofline import Roofline
from rwkv_gpu.measure.trials import Outcome
from rwkv_gpu.measure.workload import Workload
from tests.convert.hub_folders import write_folder
from tests.convert.hub_kinds import KINDS
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
    "serve": ["serve", LLAMA.name, "builtin", "--device", "cpu", "--port", "0"],
    "doctor": ["doctor"],
    "profile": ["profile", LLAMA.name, "-b", "0"],
    "tune": ["tune", "--show"],
    "convert": ["convert", "SmolTiny-Instruct"],
    "batch": ["batch", RWKV.name, "questions.jsonl", "answers.jsonl", "--device", "cpu", "-n", "2", "--sequences", "1"],
    "embed": ["embed", LLAMA.name, "The sea", "The moon", "--device", "cpu", "--dimensions", "4"],
    "create": ["create", "sailor", "-f", "Modelfile"],
    "rm": ["rm", "a-model-with-a-long-name-Q4_K_M"],
    "perplexity": ["perplexity", RWKV.name, "Modelfile", "--device", "cpu"],
    "pull": ["pull", "qwen3:0.7b"],
    "stop": ["stop", "8081"],
    "transcribe": ["transcribe", LLAMA.name, "Modelfile", "--device", "cpu"],
    "chat": ["chat", RWKV.name, "The sea", "--device", "cpu", "--template", "chatml", "-n", "3", "--temp", "0"],
    "unknown": ["chat", "qwen3:0.7b", "hello"],
}
LINES = [
    {"prompt": "The sea"}, {"prompt": 5}, {"messages": []}, {"id": "moon", "prompt": "The moon"},
    {"prompt": "The sea", "temprature": 1},
]  # fmt: skip
ADAPTERS = [
    Adapter(0, "NVIDIA GeForce RTX 4090", "Vulkan", "DiscreteGPU", "NVIDIA 570.86.16", ("f16", "subgroups"), 1 << 31),
    Adapter(1, "llvmpipe (LLVM 15.0.6, 256 bits)", "Vulkan", "CPU", "Mesa 22.3.6 (LLVM 15.0.6)", (), 1 << 27),
]
URL = "http://127.0.0.1:8080"
SERVER = Server(URL, 8080, ("qwen3.5-4b", "rwkv7-g1-2.9b"), "NVIDIA GeForce RTX 4090", 12345, time.time() - 7300, "me")
OUTCOMES = (
    Outcome("linear", "q4_k 1x256x512", CHOSEN, 1e-6, 1e-4, 3e-5),
    Outcome("linear", "q4_k 1x256x512", "gemv", 1e-6, 1e-4, 1e-5),
    Outcome("norm_shift_mix", "3 rows of 2560 columns with a state that is written", "two passes", 0.3, 1e-4, 1e-5),
    *(Outcome("attention", f"head {n}", "", 1e-6, 1e-4, 1e-5) for n in range(1200)),
)  # fmt: skip
ROOFLINE = Roofline(9.8e11, 8.1e13, 1.6e14)
STEPS = tuple(
    StepTime(name, calls, seconds, nbytes, flops)
    for name, calls, seconds, nbytes, flops in (
        ("blk.*/time_mix_receptance+time_mix_key+time_mix_value gemm_int8.q4_k", 32, 8.1e-3, 3 << 28, 1 << 38),
        ("blk.*/wkv time_mix", 32, 2.5e-3, 1 << 28, 1 << 33),
        ("output gemv_int.q6_k", 1, 3e-4, 1 << 27, 1 << 28),
    )
)
CHOICES = (
    Choice("products of 1 row of Q4_K with 2560 x 2560", "gemv_int, 4 lanes per row", "gemv", 0.123, 0.004, 12),
    Choice("chunk size", "512", "512", 0.0, 0.0, 4, ("1024", "2048")),
)
GPU = "NVIDIA GeForce RTX 4090", "Vulkan", "NVIDIA 570.86.16"
TUNED = Tuned(*GPU, fingerprint(), ("rwkv7-2.9b-q4_k_m",), mock.Mock(), 512, 0, 15, CHOICES)
PLACE = Place("NVIDIA GeForce RTX 4090 (Vulkan, DiscreteGPU)", 3 << 30, 1e12, numpy=False)


def bench_results(_runner, works, *_):
    """Returns benchmark results with fixed speeds, without a GPU."""
    for number, work in enumerate(works):
        passes = (Timing(0.1 * (1 + number), 0.0), Timing(0.11 * (1 + number), 0.0))
        yield Result(work, passes, None, None)


class ListeningServer:
    """A server that ends as soon as it listens."""

    def __init__(self, *_: object) -> None:
        self.signal = None

    def run(self, _listener: object, started: Callable[[], None], _others: object) -> None:
        started()


def machine_mocks(folder: Path) -> Iterator[Any]:
    """Replaces what depends on the machine: devices, memory, measured times and servers."""
    cli_module = "rwkv_gpu.cli."
    values = {
        "devices.matrix_units_of": "matrix units 16x16, in use", "models.place_of": PLACE,
        "devices.list_adapters": ADAPTERS, "ps.running": [(SERVER, folder)],
        "doctor._adapter": ADAPTERS[0], "doctor.tuning_for": None, "doctor.find_tuned": None, "doctor.cases": [],
        "doctor.examine": Report(OUTCOMES), "doctor.open_device": contextlib.nullcontext(mock.MagicMock()),
        "doctor.DeviceReport": mock.MagicMock(), "tune._opened": contextlib.nullcontext(mock.MagicMock()),
        "tune.find": Chosen(ADAPTERS[0], ""), "tune.find_tuned": TUNED,
        "profile.runner_for": contextlib.nullcontext(mock.MagicMock(GpuRunner, device=None)),
        "profile.measure_roofline": ROOFLINE,
        "profile.profile": [
            Profiled(Workload("pp", 512, 0, 1, 512), Profile(512, 5, STEPS, 0.0109, ()), 0.012, 2e-4, ROOFLINE)
        ],
    }  # fmt: skip
    for name, value in values.items():
        yield mock.patch(cli_module + name, return_value=value)
    place = report.Place(*GPU, ROOFLINE, "1.2.3")
    yield mock.patch("rwkv_gpu.cli.profile.Place", SimpleNamespace(of=lambda *_: place))
    yield mock.patch("rwkv_gpu.engine.fit.host_available", return_value=8 << 30)
    yield mock.patch("rwkv_gpu.cli.bench.bench", bench_results)
    yield mock.patch("rwkv_gpu.cli.bench.__version__", "1.2.3")
    yield mock.patch("rwkv_gpu.server.run.Runner", ListeningServer)
    listener = mock.MagicMock(**{"getsockname.return_value": ("127.0.0.1", 8080)})
    yield mock.patch("rwkv_gpu.server.run.listen_on", return_value=[listener])
    yield mock.patch("rwkv_gpu.server.logs.start_logs")


@contextlib.contextmanager
def given(width: int, folder: Path) -> Iterator[None]:
    """Simulates a machine with two adapters, two models and 8 GiB, and a terminal of this width."""
    models = folder / "cache" / "models" / "owner" / "a-model-with-a-long-name-GGUF"
    models.mkdir(parents=True)
    (models / "a-model-with-a-long-name-Q4_K_M.gguf").write_bytes(bytes(3 << 20))
    (models / "other-Q8_0.gguf.part").write_bytes(bytes(1 << 10))
    for model in (RWKV, LLAMA):
        shutil.copy(model, folder)
    write_folder(folder, KINDS["smollm2"])
    (folder / "questions.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    (folder / "Modelfile").write_text(f"FROM ./{LLAMA.name}\nSYSTEM You are a sailor.\nPARAMETER temperature 0.5\n")
    terminal = {"TTY_COMPATIBLE": "1", "TERM": "dumb", "COLUMNS": str(width), "LINES": "24"}
    with contextlib.ExitStack() as stack:
        for replaced in machine_mocks(folder):
            stack.enter_context(replaced)
        for module in ("printing", "models"):
            stack.enter_context(mock.patch(f"rwkv_gpu.cli.{module}.terminal_width", return_value=width))
        stack.enter_context(mock.patch("shutil.get_terminal_size", return_value=os.terminal_size((width, 24))))
        stack.enter_context(mock.patch.dict(os.environ, {"RWKV_GPU_CACHE": "cache", **terminal}))
        stack.enter_context(contextlib.chdir(folder))
        yield


def screen(name: str, width: int, folder: Path) -> str:
    """Returns the first lines that a command prints in a terminal of this width."""
    with given(width, folder):
        done = CliRunner().invoke(cli, COMMANDS[name], obj=SimpleNamespace(), catch_exceptions=False)
    return "".join(done.output.splitlines(keepends=True)[:FIRST])


def screens(name: str, folder: Path) -> str:
    """Returns what a command prints in terminals of all widths."""
    return "".join(f"--- {width} columns\n{screen(name, width, folder / str(width))}" for width in WIDTHS)


if __name__ == "__main__":
    import tempfile

    HERE.mkdir(exist_ok=True)
    for each in COMMANDS:
        with tempfile.TemporaryDirectory() as place:
            (HERE / f"{each}.txt").write_text(screens(each, Path(place)), encoding="utf-8")
