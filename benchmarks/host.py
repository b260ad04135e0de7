"""What the host computes for a step of decode, by part: CPU time of the thread that steps, and what of it is wgpu's.

    python -m benchmarks.host [rwkv7-2.9b ...] [--device NAME] [--batches 1,16] [--rounds 3]

Without a model, a narrow RWKV-7 and a narrow transformer of 32 layers, whose steps take the GPU little: what the host
does hangs on layers and sequences alone. Times are `time.thread_time`, so that sleep is left out; a driver that spins
while it waits shows under `wait`. A part's figure leaves out the parts within it. Behind them is what Python takes by
itself, in the engine and in the loop of `rwkv-gpu bench`, with a GPU that computes nothing: the processor's caches stay
warm, and no part is timed. Between real submits it takes longer.
"""

import contextlib
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import click

from rwkv_gpu.engine import sequence
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu import native, plan
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.submit_queue import SubmitQueue
from rwkv_gpu.measure.bench import on_gpu
from rwkv_gpu.measure.shapes import QUANTS, RWKV7, Transformer
from rwkv_gpu.measure.synthetic import noise, opened
from rwkv_gpu.measure.workload import Workload
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import BatchArrays

from .engine import decoding
from .opening import adapter_of, open_model

NARROW = {
    "narrow-rwkv7": RWKV7(32, 256, 32, 32, 32, 32, vocabulary=1024),
    "narrow-llama": Transformer("llama", 32, 256, 512, 4, 2, 64, 1024),
}

# Where a part begins: what is called, and what its time counts as.
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
    (native, "_encode", "encoder, copies, finish"),
    (native.Landing, "wait", "wait"),
    (native.Landing, "take", "results"),
    (Engine, "_collect", "tokens of a step that is done"),
    (sequence.TokenSequence, "update", "updates"),
    (Engine, "step", "all else"),
)


class Parts:
    """Seconds of CPU and of the clock by part, each without those within it."""

    def __init__(self) -> None:
        self.cpu: Counter[str] = Counter()
        self.wall: Counter[str] = Counter()
        self._inner: list[list[float]] = []

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        """The same function, timed."""

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
        """Times all parts meanwhile."""
        before = [(owner, name, getattr(owner, name)) for owner, name, _ in PARTS]
        for (owner, name, part), (_, _, function) in zip(PARTS, before, strict=True):
            setattr(owner, name, self.timed(function, part))
        try:
            yield
        finally:
            for owner, name, function in before:
                setattr(owner, name, function)


def decode(
    runner: GpuRunner, batch: int, tokens: int, look_ahead: int, parts: Parts | None
) -> tuple[float, float, int]:
    """Seconds of CPU and of the clock while all sequences decode, and the steps."""
    first = look_ahead + 3 * batch  # tokens that a sequence may be ahead when the last has begun
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
    stepper.prefixes.clear()  # their pages are for the next
    return cpu, wall, steps


@contextlib.contextmanager
def without_gpu() -> Iterator[None]:
    """Steps are filled in, and nothing is submitted: every token is 0."""
    replaced: tuple[tuple[Any, str, Callable[..., Any]], ...] = (
        (plan.Plan, "run_steps", lambda *_: 0),
        (plan.Plan, "encode_ahead", lambda *_: None),
        (native.Landing, "wait", lambda *_: None),
        (native.Landing, "take", lambda landing: bytes(landing.expected)),
    )
    before = [(owner, name, getattr(owner, name)) for owner, name, _ in replaced]
    for owner, name, function in replaced:
        setattr(owner, name, function)
    try:
        yield
    finally:
        for owner, name, function in before:
            setattr(owner, name, function)


def alone(runner: GpuRunner, batch: int, tokens: int, look_ahead: int, rounds: int = 20) -> tuple[float, float]:
    """Milliseconds of Python for a step of the engine, and of `rwkv-gpu bench`."""
    work = Workload("tg", tokens, 0, batch, batch)
    batches = work.steps()
    with without_gpu():
        engine = min(
            cpu / steps for cpu, _, steps in (decode(runner, batch, tokens, look_ahead, None) for _ in range(rounds))
        )
        bench = min(on_gpu(runner, work, batches, look_ahead).host_seconds for _ in range(rounds)) / len(batches)
    return 1e3 * engine, 1e3 * bench


def opened_model(name: str) -> GGUFFile:
    """One of our narrow models, or another."""
    return opened(noise(name, NARROW[name], QUANTS["q4_k_m"])) if name in NARROW else open_model(name)


def report(runner: GpuRunner, batch: int, tokens: int, look_ahead: int, rounds: int) -> None:
    """Prints one batch: the whole unwatched, and each part, both of the round that took least."""
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
    engine, bench = alone(runner, batch, tokens, look_ahead)
    print(f"    Python alone: {engine:.3f} ms a step, {bench:.3f} in `rwkv-gpu bench`", flush=True)


@click.command()
@click.argument("models", nargs=-1)
@click.option("--device", default="auto")
@click.option("--batches", default="1,16")
@click.option("--look-ahead", default=2)
@click.option("--tokens", default=72, help="That each sequence says.")
@click.option("--rounds", default=3)
def main(models: tuple[str, ...], device: str, batches: str, look_ahead: int, tokens: int, rounds: int) -> None:
    counts = [int(n) for n in batches.split(",")]
    adapter = adapter_of(device)
    clock = statistics.median(-(time.thread_time() - time.thread_time()) for _ in range(1000))
    print(f"{adapter}; to ask for the time twice takes {1e6 * clock:.2f} µs")
    for model in models or tuple(NARROW):
        options = {"slots": max(counts), "chunk_size": max(counts), "context": 512, "look_ahead": look_ahead}
        with opened_model(model) as file, Device(adapter) as gpu:
            runner = GpuRunner(gpu, file, load_model(file), **options)
            print(model)
            for batch in counts:
                report(runner, batch, tokens, look_ahead, rounds)


if __name__ == "__main__":
    main()
