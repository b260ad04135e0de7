"""Measures the engine: tokens per second by batch size, time to first token, idle time, CPU time, memory.

    python -m benchmarks.engine rwkv7-0.1b --device 0

A model is a file, or the name of a synthetic one.
"""

import time
from collections.abc import Sequence
from typing import NamedTuple

import click
import numpy as np

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.fit import fit
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.trace import Trace, idle
from rwkv_gpu.models.registry import load_model

from .opening import adapter_of, open_model

MOST_STEPS = 2048  # that a set of queries has room for


def ids_of(count: int, seed: int) -> list[int]:
    return np.random.default_rng(seed).integers(3, 250, count).tolist()


class Decoded(NamedTuple):
    """The time to decode several sequences, measured once all of them have started."""

    tokens: int
    steps: int
    wall: float
    cpu: float  # of the thread that steps, its sleep left out


def decoding(runner: GpuRunner, batch: int, tokens: int, look_ahead: int) -> Engine:
    """Starts an engine with some sequences, and waits until all of them have started."""
    runner.run_ahead(look_ahead)
    engine = Engine(runner, look_ahead=look_ahead)
    for seed in range(batch):
        engine.add(Request(ids_of(4, seed), SamplingParams(temperature=0.8, seed=seed, max_tokens=tokens)))
    begun: set[int] = set()
    while len(begun) < batch:
        begun |= {update.id for update in engine.step() if update.sampled}
    return engine


def decode(runner: GpuRunner, batch: int, tokens: int, look_ahead: int, trace: Trace | None = None) -> Decoded:
    """Runs the sequences to their ends. A trace records the time of each step, which costs some host time."""
    engine = decoding(runner, batch, tokens, look_ahead)
    count = steps = 0
    runner.queue.trace = trace
    wall, cpu = time.perf_counter(), time.thread_time()
    while engine.busy:
        count += sum(len(update.sampled) for update in engine.step())
        steps += 1
    wall, cpu = time.perf_counter() - wall, time.thread_time() - cpu
    runner.queue.trace = None
    return Decoded(count, steps, wall, cpu)


def report(runner: GpuRunner, batch: int, tokens: int, look_ahead: int) -> str:
    """Prints the duration of a run, and the idle time of the GPU in a second run."""
    took = decode(runner, batch, tokens, look_ahead)
    trace = Trace(runner.device, MOST_STEPS)
    decode(runner, batch, tokens, look_ahead, trace)
    return (
        f"{took.tokens / took.wall:9.2f} tok/s, CPU {1e3 * took.cpu / took.steps:6.2f} ms a step "
        f"({took.cpu / took.wall:4.0%}), GPU idle {idle(trace.spans()):5.1%}"
    )


def first_token(engine: Engine, ids: Sequence[int], marks: tuple[int, ...] = ()) -> tuple[float, int]:
    """Returns the seconds to the first token of a prompt, and the number of its tokens that were reused."""
    params = SamplingParams(temperature=0, max_tokens=1)
    begin = time.perf_counter()
    engine.add(Request(ids, params, keep=bool(marks), marks=marks))
    while True:
        for update in engine.step():
            if update.sampled:
                return time.perf_counter() - begin, update.reused


@click.command()
@click.argument("model")
@click.option("--device", default="auto")
@click.option("--batches", default="1,2,4,8,16,32")
@click.option("--look-aheads", default="0,1,2")
@click.option("--tokens", default=32, help="Tokens of each sequence.")
@click.option("--prompt", default=2000)
@click.option("--chunk-size", default=512)
@click.option("--matrix-units", is_flag=True)
def main(
    model: str,
    device: str,
    batches: str,
    look_aheads: str,
    tokens: int,
    prompt: int,
    chunk_size: int,
    matrix_units: bool,
) -> None:
    counts, aheads = ([int(n) for n in text.split(",")] for text in (batches, look_aheads))
    adapter = adapter_of(device)
    options = {"slots": max(counts), "chunk_size": chunk_size, "context": prompt + 48, "look_ahead": max(aheads)}
    with open_model(model) as file, Device(adapter, matrix_units=matrix_units) as opened:
        loaded = load_model(file)
        promised = fit(opened, file, loaded, **options)
        runner = GpuRunner(opened, file, loaded, **options)
        print(f"{model}, {adapter}, chunk {chunk_size}{', matrix units' * matrix_units}")
        cached = prompt * 9 // 10
        for seed in (7, 0):  # the first time compiles the pipelines of these steps
            engine, ids = Engine(runner), ids_of(prompt, seed)
            plain, _ = first_token(engine, ids_of(prompt, seed + 2))
            engine.prefixes.clear()  # of a context of one prompt, which it would hold
            cut, _ = first_token(engine, ids, (cached,))
            rest, reused = first_token(engine, [*ids[:cached], *ids_of(prompt - cached, seed + 1)])
            engine.prefixes.clear()
        print(
            f"  first token of {prompt:,}:                {plain:7.3f} s, {cut:.3f} s with the state at {cached:,} kept"
        )
        print(f"  first token of {prompt:,}, {reused:,} reused:  {rest:7.3f} s", flush=True)
        engine.prefixes.clear()
        for batch in counts:
            decode(runner, batch, 3, 0)
            for ahead in aheads:
                print(f"  batch {batch:2}, look-ahead {ahead}: {report(runner, batch, tokens, ahead)}", flush=True)
        used = sum(opened.memory().values())
        print(f"  memory: {used:,} bytes, promised {promised.needed:,}: {used / promised.needed - 1:+.1%}")
        print(f"  {dict(opened.memory())}\n  {promised}")


if __name__ == "__main__":
    main()
