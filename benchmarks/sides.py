"""The sides of a comparison: rwkv-gpu in this process, builds of llama.cpp in others, and variants of a model."""

import dataclasses
import itertools
import json
import os
import re
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGUFWriter

from rwkv_gpu.engine.adapters import NOT_PRODUCTS
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.runner import Runner
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.measure.bench import Pool, timed, warm_up
from rwkv_gpu.measure.workload import Workload
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.kv_format import KVType

SCRIPT = Path(__file__).with_name("peer_llama.py")
FIRST = 8  # tokens that are generated before a pass is timed
NONE = "none"  # no adapter
KINDS = "attention", "all"  # the matrices that a random adapter adapts
ATTENTION = re.compile(r"blk\.\d+\.(attn_(q|k|v|output|qkv)|time_mix_(receptance|key|value|output))\.weight")
OWN_LORA = re.compile(r"time_mix_[wagv][12]|ssm_")  # low-rank matrices of the model itself


class Ended(Exception):
    """The process of a peer has ended."""


def begun(work: Workload) -> Workload:
    """Returns the first tokens of a decode, or a whole prompt, because its plans depend on its length."""
    return dataclasses.replace(work, tokens=min(work.tokens, FIRST)) if work.kind == "tg" else work


class Ours:
    """rwkv-gpu, in this process."""

    def __init__(self, name: str, runner: Runner, pool: Pool = len) -> None:
        self.name = name
        self._runner = runner
        self._pool = pool

    def prepare(self, work: Workload) -> None:
        """Prepares everything that is not timed."""
        self._runner.chunk_size = max(work.chunk, work.together)
        if isinstance(self._runner, GpuRunner):
            warm_up(self._runner, work, self._steps(work))

    def warm(self, work: Workload) -> None:
        """Runs similar work before a pass, because a device is slow at first after another process has used it."""
        if not work.depth:  # otherwise filling the context warms up enough
            self.run(begun(work))

    def run(self, work: Workload) -> float:
        """Returns the seconds of one pass."""
        return timed(self._runner, work, self._steps(work), self._pool).seconds

    def _steps(self, work: Workload) -> list[Batch]:
        """Sets every row to the default scales of the adapters."""
        scales = self._runner.adapters.scales()
        steps = work.steps()
        return [dataclasses.replace(s, adapters=np.tile(scales, (s.rows, 1))) for s in steps] if len(scales) else steps


@dataclasses.dataclass(frozen=True)
class Spec:
    """The name of a peer, and the command that starts it."""

    name: str
    python: str
    folder: str  # the folder of llama_cpp, if the Python does not have it

    @classmethod
    def read(cls, text: str) -> "Spec":
        """Parses [NAME=]PYTHON[:FOLDER]."""
        name, _, rest = text.rpartition("=")
        python, _, folder = rest.partition(":")
        return cls(f"llama.cpp {name}".strip(), python, folder)


class Peer:
    """llama.cpp in another process, with the methods of `Ours`."""

    def __init__(self, spec: Spec, model: str, threads: int, patience: float, options: Sequence[str] = ()) -> None:
        self.name = spec.name
        self._patience = patience
        environment = os.environ | ({"PYTHONPATH": spec.folder} if spec.folder else {})
        self._process = subprocess.Popen(
            [spec.python, str(SCRIPT), model, str(threads), *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def loaded(self) -> str:
        """Waits until the model is loaded. Returns the name of its device."""
        return ", ".join(self._answer()["devices"]) or "CPU"

    def prepare(self, work: Workload) -> None:
        """Does nothing: the first pass makes a context."""

    def warm(self, work: Workload) -> None:
        self.run(begun(work))

    def run(self, work: Workload) -> float:
        ids = [[int(i) for i in row] for row in work.ids()]
        question = {"work": dataclasses.asdict(work) | {"together": work.together}, "ids": ids}
        return float(self.asked(question)["seconds"])

    def asked(self, question: dict[str, Any]) -> Any:
        """Sends a request to the peer. Returns its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Ended(self._reason()) from None
        return self._answer()

    def _answer(self) -> Any:
        """Returns the next line of the peer. It never sends more than one."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], self._patience)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise Ended(self._reason() if ready else f"{self.name} took more than {self._patience:g} s")
        return json.loads(line)

    def _reason(self) -> str:
        return f"{self.name} ended with {self._process.wait()}"

    def close(self) -> None:
        """Ends the process at once, even if it is busy."""
        self._process.kill()
        self._process.communicate()


@dataclasses.dataclass(frozen=True)
class Variant:
    """A combination of options, which this program and every peer run."""

    kv: KVType
    lora: str  # none, attention, all, or a file

    @property
    def name(self) -> str:
        """The options that are turned on, as a name."""
        on = [f"kv {self.kv}"] * (self.kv != "f16") + [f"lora {Path(self.lora).stem}"] * (self.lora != NONE)
        return ", ".join(on)

    @property
    def suffix(self) -> str:
        """The suffix that the options add to the name of a side."""
        return f", {self.name}" if self.name else ""

    def adapter(self, model: str, rank: int, folder: Path) -> str | None:
        """Returns the file of the adapter. Random factors are written to the folder."""
        if self.lora not in KINDS:
            return None if self.lora == NONE else self.lora
        path = folder / f"{self.lora}.gguf"
        if not path.exists():
            with GGUFFile.open(model) as file:
                write_adapter(path, file, self.lora, rank)
        return str(path)


def variants(kv: Sequence[KVType], lora: Sequence[str]) -> list[Variant]:
    """Returns every combination of format and adapter, in the order given."""
    return [Variant(*each) for each in itertools.product(kv, lora)]


def write_adapter(path: Path, file: GGUFFile, kind: str, rank: int) -> None:
    """Writes random, small factors for the matrices of a file, as llama.cpp's converter does."""
    random = np.random.default_rng(0)
    writer = GGUFWriter(path, file.str("general.architecture"))
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(rank))
    for name, tensor in file.tensors.items():
        fits = ATTENTION.fullmatch(name) if kind == "attention" else name.startswith("blk.")
        if not fits or len(tensor.shape) != 2 or min(tensor.shape) < 64:
            continue
        if NOT_PRODUCTS.search(name) or OWN_LORA.search(name):
            continue
        rows, columns = tensor.shape
        for part, shape in (("lora_a", (rank, columns)), ("lora_b", (rows, rank))):
            writer.add_tensor(f"{name}.{part}", 0.01 * random.standard_normal(shape, np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
