"""Those who are compared: rwkv-gpu in this process, and builds of llama.cpp, each in a process of its own."""

import dataclasses
import json
import os
import select
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.runner import Runner
from rwkv_gpu.measure.bench import Pool, timed, warm_up
from rwkv_gpu.measure.workload import Workload
from rwkv_gpu.ops.batch import Batch

SCRIPT = Path(__file__).with_name("peer_llama.py")
FIRST = 8  # tokens that are said before a pass is timed


class Ended(Exception):
    """A peer is no more."""


class Side(Protocol):
    """One of those who are compared."""

    name: str

    def prepare(self, work: Workload) -> None:
        """Makes ready what is not to be timed."""

    def warm(self, work: Workload) -> None:
        """Work like it right before a pass: another process had the device, and whoever comes next is slow at first."""

    def run(self, work: Workload) -> float:
        """Seconds of one pass."""

    def vectors(self, work: Workload) -> list[list[float]]:
        """What an encoder makes of each text, of length one."""


def begun(work: Workload) -> Workload:
    """The first tokens of a decode, or all of a prompt, whose plans are made for its length."""
    return dataclasses.replace(work, tokens=min(work.tokens, FIRST)) if work.kind == "tg" else work


class Ours:
    """rwkv-gpu, in this process."""

    def __init__(self, name: str, runner: Runner, pool: Pool = len) -> None:
        self.name = name
        self._runner = runner
        self._pool = pool

    def prepare(self, work: Workload) -> None:
        self._runner.chunk_size = max(work.chunk, work.together)
        if isinstance(self._runner, GpuRunner):
            warm_up(self._runner, work, self._steps(work))

    def warm(self, work: Workload) -> None:
        if not work.depth:  # else the way there is work enough
            self.run(begun(work))

    def run(self, work: Workload) -> float:
        return timed(self._runner, work, self._steps(work), self._pool).seconds

    def vectors(self, work: Workload) -> list[list[float]]:
        self.prepare(work)
        found: list[Any] = []
        timed(self._runner, work, self._steps(work), lambda rows: found.append(self._pool(rows)))
        return found

    def _steps(self, work: Workload) -> list[Batch]:
        """Every row has each adapter as it was loaded."""
        scales = self._runner.adapters.scales()
        steps = work.steps()
        return [dataclasses.replace(s, adapters=np.tile(scales, (s.rows, 1))) for s in steps] if len(scales) else steps


@dataclasses.dataclass(frozen=True)
class Spec:
    """What a peer is called, and what runs it."""

    name: str
    python: str
    folder: str  # of llama_cpp, where the Python has none of its own

    @classmethod
    def read(cls, text: str) -> "Spec":
        """[NAME=]PYTHON[:FOLDER]"""
        name, _, rest = text.rpartition("=")
        python, _, folder = rest.partition(":")
        return cls(f"llama.cpp {name}".strip(), python, folder)

    def called(self, name: str) -> "Spec":
        """The same by another name."""
        return dataclasses.replace(self, name=name)


def pass_of(work: Workload) -> dict[str, Any]:
    """What a peer needs to know for a pass."""
    ids = [[int(i) for i in row] for row in work.ids()]
    return {"work": dataclasses.asdict(work) | {"together": work.together}, "ids": ids}


class Peer:
    """llama.cpp in a process of its own."""

    def __init__(
        self,
        spec: Spec,
        model: str,
        threads: int,
        patience: float,
        options: Sequence[str] = (),
        script: Path | None = None,
    ) -> None:
        self.name = spec.name
        self._patience = patience
        environment = os.environ | ({"PYTHONPATH": spec.folder} if spec.folder else {})
        self._process = subprocess.Popen(
            [spec.python, str(script or SCRIPT), model, str(threads), *options],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment,
        )  # fmt: skip

    def loaded(self) -> str:
        """Waits for the model; what it runs on."""
        return ", ".join(self._answer()["devices"]) or "CPU"

    def prepare(self, work: Workload) -> None:
        """Nothing: the first pass makes a context."""

    def warm(self, work: Workload) -> None:
        self.run(begun(work))

    def run(self, work: Workload) -> float:
        return self.asked(pass_of(work))["seconds"]

    def vectors(self, work: Workload) -> list[list[float]]:
        return self.asked({"vectors": pass_of(work)})["vectors"]

    def turn(self, kept: list[int], asked: list[int]) -> float:
        """Seconds to the first token of a prompt, where it holds what was computed before."""
        return self.asked({"turn": {"kept": kept, "asked": asked}})["seconds"]

    def asked(self, question: dict[str, Any]) -> Any:
        """Its answer."""
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(json.dumps(question) + "\n")
            self._process.stdin.flush()
        except BrokenPipeError:
            raise Ended(self._reason()) from None
        return self._answer()

    def _answer(self) -> Any:
        """The next line; there is never more than one."""
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], self._patience)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            raise Ended(self._reason() if ready else f"{self.name} took more than {self._patience:g} s")
        return json.loads(line)

    def _reason(self) -> str:
        return f"{self.name} ended with {self._process.wait()}"

    def close(self) -> None:
        """Ends it, whatever it is at."""
        self._process.kill()
        self._process.communicate()
