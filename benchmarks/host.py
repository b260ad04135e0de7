"""Measures the host's work for a decode step, by part: CPU time of the stepping thread, and the share of wgpu.

    python -m benchmarks.host [rwkv7-2.9b-q4_k_m ...] [--device NAME] [--batches 1,16] [--rounds 3]

Times are `time.thread_time`, which excludes sleep. The time of a driver that spins while it waits counts as `wait`. The
time of a part excludes the parts inside it.
"""

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import click
import numpy as np

from rwkv_gpu.cli.options import numbers
from rwkv_gpu.engine import sequence
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.gpu import native, plan
from rwkv_gpu.gpu.submit_queue import SubmitQueue
from rwkv_gpu.llm.folders import tuned_folder
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import BatchArrays
from rwkv_gpu.ops.open_device import open_device

from .opening import adapter_of, open_model

DEFAULT = "rwkv7-0.1b-q4_k_m", "qwen3-0.6b-q4_k_m"

# Parts of a step: the object and function whose call begins a part, and its name in the results.
PARTS: tuple[tuple[Any, str, str], ...] = (
    (Engine, "_place", "places of sequences, the batch"),
    (Engine, "_sampling_inputs", "how rows are sampled"),
    (GpuRunner, "plan_for", "choosing the plan"),
    (GpuRunner, "submit", "to the plan and back"),
    (SubmitQueue, "add", "to the submit queue"),
    (BatchArrays, "of", "arrays of the batch"),
    (plan.Plan, "run_steps", "running the plan"),
    (plan.StepBuffer, "fill", "inputs of the plan"),
    (native, "run", "upload, submit, asking for results"),
    (native, "_dispatch", "calls for dispatches"),
    (native, "_recorded", "encoder, copies, finish"),
    (native, "_finished", "encoder, copies, finish"),
    (native.ResultBuffer, "wait", "wait"),
    (native.ResultBuffer, "take", "results"),
    (Engine, "_collect", "tokens of a step that is done"),
    (sequence.TokenSequence, "update", "updates"),
    (Engine, "step", "all else"),
)


class Parts:
    """CPU seconds and wall-clock seconds of each part, without the parts inside it."""

    def __init__(self) -> None:
        self.cpu: Counter[str] = Counter()
        self.wall: Counter[str] = Counter()
        self._inner: list[list[float]] = []

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """Wraps a function to measure its time."""

        def run(*args: Any, **more: Any) -> Any:
            self._inner.append([0.0, 0.0])
            wall, cpu = time.perf_counter(), time.thread_time()
            try:
                return function(*args, **more)
            finally:
                cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
                inner = self._inner.pop()
                self.cpu[part] += cpu - inner[0]
                self.wall[part] += wall - inner[1]
                if self._inner:
                    self._inner[-1][0] += cpu
                    self._inner[-1][1] += wall

        return run

    @contextlib.contextmanager
    def watched(self) -> Iterator[None]:
        """Measures all parts while the block runs."""
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in PARTS]
        for (owner, name, part), (_, _, function) in zip(PARTS, before, strict=True):
            setattr(owner, name, self.timed(function, part))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)


def decoding(runner: GpuRunner, batch: int, tokens: int, look_ahead: int) -> Engine:
    """Starts an engine with some sequences, and waits until all of them have started."""
    runner.run_ahead(look_ahead)
    engine = Engine(runner, look_ahead=look_ahead)
    for seed in range(batch):
        ids = np.random.default_rng(seed).integers(3, 250, 4).tolist()
        engine.add(Request(ids, SamplingParams(temperature=0.8, seed=seed, max_tokens=tokens)))
    begun: set[int] = set()
    while len(begun) < batch:
        begun |= {update.id for update in engine.step() if update.sampled}
    return engine


def decode(
    runner: GpuRunner, batch: int, tokens: int, look_ahead: int, parts: Parts | None
) -> tuple[float, float, int]:
    """Returns the CPU seconds and the wall-clock seconds while all sequences decode, and the number of steps."""
    first = look_ahead + 3 * batch  # tokens that a sequence may be ahead when the last sequence starts
    stepper = decoding(runner, batch, first + tokens, look_ahead)
    steps = 0
    with parts.watched() if parts is not None else contextlib.nullcontext():
        wall, cpu = time.perf_counter(), time.thread_time()
        while steps < tokens - 8:
            stepper.step()
            steps += 1
        cpu, wall = time.thread_time() - cpu, time.perf_counter() - wall
    assert stepper.activity.running == batch, "all of them go on until then"
    while stepper.busy:
        stepper.step()
    stepper.prefixes.clear()  # frees their pages for the next measurement
    return cpu, wall, steps


def report(runner: GpuRunner, batch: int, tokens: int, look_ahead: int, rounds: int) -> None:
    """Prints the results of one batch: the total without instrumentation, and each part. The fastest round counts."""
    decode(runner, batch, 12, look_ahead, None)
    cpu, wall, steps = min(decode(runner, batch, tokens, look_ahead, None) for _ in range(rounds))
    print(
        f"  batch {batch}, look-ahead {look_ahead}: CPU {1e3 * cpu / steps:.3f} ms of {1e3 * wall / steps:.3f} a step"
    )
    each = [Parts() for _ in range(rounds)]
    for parts in each:
        decode(runner, batch, tokens, look_ahead, parts)
    least = min(each, key=lambda parts: parts.cpu.total())
    for part in dict.fromkeys(part for *_, part in PARTS):
        cpu, wall = 1e3 * least.cpu[part] / steps, 1e3 * least.wall[part] / steps
        print(f"    {part:34} {cpu:7.3f} ms CPU {wall:8.3f} ms")


@click.command()
@click.argument("models", nargs=-1)
@click.option("--device", default="auto")
@click.option("--batches", type=numbers, default="1,16")
@click.option("--look-ahead", default=2)
@click.option("--tokens", default=72, help="Number of tokens that each sequence generates.")
@click.option("--rounds", default=3)
def main(models: tuple[str, ...], device: str, batches: list[int], look_ahead: int, tokens: int, rounds: int) -> None:
    adapter = adapter_of(device)
    clock = statistics.median(-(time.thread_time() - time.thread_time()) for _ in range(1000))
    print(f"{adapter}; to ask for the time twice takes {1e6 * clock:.2f} µs")
    for model in models or DEFAULT:
        options = {"slots": max(batches), "chunk_size": max(batches), "context": 512, "look_ahead": look_ahead}
        with open_model(model) as file, open_device(adapter, folder=tuned_folder()) as gpu:
            runner = GpuRunner(gpu, file, load_model(file), **options)
            print(model)
            for batch in batches:
                report(runner, batch, tokens, look_ahead, rounds)


if __name__ == "__main__":
    main()
