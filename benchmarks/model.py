"""Prefill by chunk size and decode of a whole model; with a table of where the time goes.

    python -m benchmarks.model MODEL.gguf [--device NAME] [--prompt 512] [--chunks 64,128,256,512,1024] [--decode 16]

One warm-up of each plan, then the median of several repeats. --profile adds the GPU's own time by step.
"""

import itertools
import statistics
import time

import click
import numpy as np

from rwkv_gpu.engine.runner import GpuRunner, HostRunner, Runner, prefill
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import find
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch


def timed(repeats: int, run) -> float:
    """The median of seconds, after one run that compiles."""
    run()
    seconds = []
    for _ in range(repeats):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return statistics.median(seconds)


def decode(runner: Runner, count: int, batch: int, depth: int) -> None:
    """Steps of one token for each of `batch` sequences, `depth` long already; what they said costs nothing."""
    for position in range(depth, depth + count):
        runner.step(Batch.of([(slot, position, [5]) for slot in range(batch)]))


def numbers(text: str) -> list[int]:
    return [int(number) for number in text.split(",") if number]


@click.command()
@click.argument("model")
@click.option("--device", default="auto")
@click.option("--prompt", default=512)
@click.option("--chunks", default="64,128,256,512")
@click.option("--decode", "tokens", default=16)
@click.option("--depths", default="0", help="Decode so far into a sequence.")
@click.option("--batches", default="1", help="Decode so many sequences at a time.")
@click.option("--repeats", default=3)
@click.option("--profile", is_flag=True)
def main(
    model: str,
    device: str,
    prompt: int,
    chunks: str,
    tokens: int,
    depths: str,
    batches: str,
    repeats: int,
    profile: bool,
) -> None:
    sizes = numbers(chunks)
    slots = max(numbers(batches))
    context = max(prompt, max(numbers(depths)) + tokens)
    choice = find(device)
    with GGUFFile.open(model) as file:
        loaded = load_model(file)
        runner: Runner
        if choice.adapter is None:
            runner = HostRunner(file, loaded, slots=slots, chunk_size=max(sizes), context=context)
        else:
            runner = GpuRunner(
                Device(choice.adapter), file, loaded, slots=slots, chunk_size=max(sizes), context=context
            )
    ids = np.random.default_rng(0).integers(1, 250, prompt).tolist()
    print(f"{model}, {choice.adapter or 'cpu, numpy'}, prompt of {prompt}, median of {repeats}")
    for size in sizes:
        seconds = timed(repeats, lambda size=size: prefill(runner, ids, chunk_size=size))
        print(f"  prefill, chunk {size:5}: {prompt / seconds:10.1f} tok/s", flush=True)
    for depth, batch in itertools.product(numbers(depths), numbers(batches)):
        for slot in range(slots):
            runner.forget(slot)
            if depth and isinstance(runner, GpuRunner):
                runner.prepare(Batch.of([(slot, 0, [5] * depth)]))
        seconds = timed(repeats, lambda depth=depth, batch=batch: decode(runner, tokens, batch, depth))
        print(f"  decode at {depth:5}, batch {batch:3}: {batch * tokens / seconds:7.2f} tok/s", flush=True)
    if profile and isinstance(runner, GpuRunner):
        for rows in (1, max(sizes)):
            batch = Batch.of([(0, 0, ids[:rows])])
            batch = runner.prepare(batch)
            plan = runner.plan_for(batch)
            took = plan.profile(rows, batch.arrays(), 3, len(batch.segments), len(batch.outputs))
            print(f"\n{rows} rows, {len(plan.dispatches)} dispatches\n{took.table()}")
    runner.close()


if __name__ == "__main__":
    main()
