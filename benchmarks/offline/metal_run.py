"""Runs the doctor's trials on Metal's shaders with the CPU, and compares the results with numpy.

    python -m benchmarks.offline.metal_run FOLDER [--op OP]... [--few]

It finds races between lanes, accesses out of bounds, barriers that some lanes never reach, and dispatches that do not
end. It runs enough trials to cover every kernel with each of its parts. FOLDER keeps the compiled programs for later
runs.

A trial is recorded for a device with the capabilities of an Apple GPU. Each of its dispatches becomes a program
(metal_cpp.py), which reads and writes the device's memory in files.
"""

import itertools
import math
import os
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from rwkv_gpu.gpu.device import Buffer, Capabilities
from rwkv_gpu.gpu.plan import Dispatch
from rwkv_gpu.gpu.shader import Linked, Pipeline
from rwkv_gpu.gpu.virtual import VirtualDevice
from rwkv_gpu.kernels.defaults import default_tuning
from rwkv_gpu.kernels.registry import KERNELS
from rwkv_gpu.measure import trials
from rwkv_gpu.measure.cases import cases
from rwkv_gpu.measure.trials import Trial

from .metal_cpp import NotCompiled, Program, compiled, runner
from .proof import cover, parts_of
from .variants import FAMILIES, ShaderCollector

LIMIT_S = 120  # time limit of one dispatch; a longer one counts as a loop without end
SEED = 1  # seed of the order in which lanes run
MEMORY = "/dev/shm" if os.path.isdir("/dev/shm") else None  # a folder in memory, if there is one
MAX_SHOWN = 40  # wrong trials


class CpuDevice(VirtualDevice):
    """Memory in files, and pipelines that are programs for the CPU."""

    def __init__(self, capabilities: Capabilities, folder: Path, programs: Path) -> None:
        super().__init__(capabilities)
        self._folder = folder
        self._programs = programs
        self._names = itertools.count()
        self.handle = SimpleNamespace(create_bind_group=lambda **_: SimpleNamespace(_internal=None))

    def buffer(self, nbytes: int, purpose: str, *, uniform: bool = False, host: bool = False) -> Buffer:  # noqa: ARG002
        """Returns zeroed memory. Its size is a multiple of a vector, as on a GPU."""
        nbytes = max(16, -(-nbytes // 16) * 16)
        path = self._folder / f"{next(self._names)}"
        return Buffer(np.memmap(path, np.uint8, "w+", shape=(nbytes,)), nbytes, purpose, Counter())

    def write(self, buffer: Buffer, data: npt.NDArray[Any], offset: int = 0) -> None:
        """Runs immediately, as there is no queue."""
        flat = np.ascontiguousarray(data).reshape(-1).view(np.uint8)
        buffer.handle[offset : offset + len(flat)] = flat

    def copy(self, source: Buffer, source_at: int, target: Buffer, target_at: int, nbytes: int) -> None:
        """Runs immediately, as there is no queue."""
        target.handle[target_at : target_at + nbytes] = source.handle[source_at : source_at + nbytes].copy()

    def read(self, buffer: Buffer, nbytes: int | None = None, offset: int = 0) -> bytes:
        """Returns the contents of the buffer after the dispatches."""
        end = buffer.nbytes if nbytes is None else offset + nbytes
        return bytes(buffer.handle[offset:end])

    def flush(self) -> None:
        """Does nothing: no work is deferred."""

    def pipeline(self, linked: Linked) -> Pipeline:
        """Returns the program of a shader."""
        handle = SimpleNamespace(_internal=None, program=compiled(linked, self._programs))
        return Pipeline(linked.name, handle, None, linked.bindings())

    def dispatch(self, dispatch: Dispatch) -> str:
        """Runs the dispatch. Returns the errors that the program reports."""
        program: Program = dispatch.pipeline.handle.program
        arguments: list[str] = []
        for name, number in program.numbers.items():
            bound = dispatch.bound[number]
            arguments += [name, str(bound.buffer.handle.filename), str(bound.offset), str(bound.nbytes)]
        limited = ["sh", "-c", f'ulimit -t {LIMIT_S}; exec "$@"', "sh"]  # CPU time, whatever else runs
        command = [*limited, str(program.path), *map(str, dispatch.grid), str(SEED), *arguments]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if -done.returncode in (signal.SIGXCPU, signal.SIGKILL):
            return f"runs for more than {LIMIT_S} s"
        return done.stderr.strip() or (f"ended with {done.returncode}" if done.returncode else "")


@dataclass
class Verdict:
    """The result of one trial."""

    trial: Trial
    error: float = math.inf
    complaints: list[str] = field(default_factory=list)

    @property
    def right(self) -> bool:
        """True if the results equal numpy's, without a race."""
        return not self.complaints and self.error <= self.trial.allowed

    def __str__(self) -> str:
        name = ", ".join(part for part in (self.trial.op, self.trial.what, self.trial.variant) if part)
        return "\n".join([f"{name}: off by {self.error:.1e}, {self.trial.allowed:.0e} allowed", *self.complaints])


def run(can: Capabilities, trial: Trial, programs: Path) -> Verdict:
    """Runs the trial on the CPU."""
    verdict = Verdict(trial)
    with tempfile.TemporaryDirectory(dir=MEMORY) as folder:
        device = CpuDevice(can, Path(folder), programs)
        try:
            plan, _ = trials._recorded(device, trial)
        except NotCompiled as error:
            verdict.complaints.append("\n".join(line[:200] for line in str(error).splitlines()[:12]))
            return verdict
        given = trials._given(trial)
        plan.step.write(given[0], *given[1:])
        for dispatch in plan.dispatches:
            if said := device.dispatch(dispatch):
                verdict.complaints.append(f"  {dispatch.pipeline.name}\n    " + said.replace("\n", "\n    "))
        found, wanted = plan.read("y", given[0]), trials.expected(trial)
    if trial.columns is not None:
        found, wanted = found[:, trial.columns], wanted[:, trial.columns]
    verdict.error = trials.difference(found, wanted)
    return verdict


def covering(
    can: Capabilities, every: Iterable[Trial], few: bool = False, kernels: Collection[str] = KERNELS
) -> list[tuple[Trial, frozenset[str]]]:
    """Returns trials and their shaders. They run every kernel with each of its parts or, if `few`, every kernel once.

    Only kernels in `kernels` need to be covered.
    """
    named = []
    for trial in every:
        device = ShaderCollector(can)
        trials._recorded(device, trial)
        named.append((trial, frozenset(linked.name for linked in device.linked.values())))
    parts = [frozenset(one for name in names for one in parts_of(name) if one[0] in kernels) for _, names in named]
    if few:
        parts = [frozenset(one for one in each if not one[1]) for each in parts]
    return [named[place] for place in cover(parts)]


def kernels_of(shaders: Iterable[str]) -> set[str]:
    """Returns the names of the kernels in some shaders. A merged shader has several."""
    return {part.partition(".")[0] for name in shaders for part in name.split(" & ")}


def trials_of(can: Capabilities) -> Iterator[Trial]:
    """Returns the trials of `rwkv-gpu doctor`, without those that compare speeds."""
    return (trial for trial in cases(can, default_tuning(can)) if trial.op != "speed")


@click.command()
@click.argument("programs", type=click.Path(file_okay=False, path_type=Path))
@click.option("--op", "ops", multiple=True, help="Run only the trials of this op.")
@click.option("--few", is_flag=True, help="Run every kernel once.")
def main(programs: Path, ops: tuple[str, ...], few: bool) -> None:
    """Runs a covering set of trials, and prints the errors and the kernels that ran. Exits with 1 after an error."""
    can = FAMILIES["apple"]
    programs.mkdir(parents=True, exist_ok=True)
    runner(programs)
    chosen = covering(can, (trial for trial in trials_of(can) if not ops or trial.op in ops), few)
    wrong = 0
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for verdict in pool.map(lambda one: run(can, one[0], programs), chosen):
            if not verdict.right:
                wrong += 1
                if wrong <= MAX_SHOWN:
                    click.echo(str(verdict))
    shaders = frozenset[str]().union(*(names for _, names in chosen))
    kernels = kernels_of(shaders)
    click.echo(
        f"{len(chosen) - wrong} of {len(chosen)} trials are right, with {len(shaders)} shaders of "
        f"{len(kernels & set(KERNELS))} of {len(KERNELS)} kernels"
    )
    if not ops:
        click.echo(f"not run: {', '.join(sorted(set(KERNELS) - kernels))}")
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
