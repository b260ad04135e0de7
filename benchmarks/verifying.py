"""What a step costs that verifies drafts, by its rows: on the GPU, and on the host before and behind it.

    python -m benchmarks.verifying rwkv7-2.9b-q4_k_m --device 0 --rows 1,2,4,8 --depth 0

Beside it a step of as many sequences with a row each. `GPU` is one pass between two stamps; all times are medians.
"""

import itertools
import statistics
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
import numpy.typing as npt

from rwkv_gpu.engine.device_sampling import draw_row
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.scheduler import ScheduledChunk
from rwkv_gpu.engine.step_result import SamplingInputs
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import choose, list_adapters
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.profile import lap, profile_plan
from rwkv_gpu.measure.bench import on_gpu
from rwkv_gpu.measure.synthetic import open_synthetic
from rwkv_gpu.measure.workload import Workload
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.sampling import draw_words

PARTS = ("place", "submit", "wait")


def chunks_of(rows: int, start: int, *, together: bool) -> list[ScheduledChunk]:
    """Rows of one sequence, or of one each."""
    if together:
        return [ScheduledChunk(0, start, start + rows, rows, None)]  # type: ignore[arg-type]
    return [ScheduledChunk(slot, start, start + 1, 1, None) for slot in range(rows)]  # type: ignore[arg-type]


def step(runner: GpuRunner, chunks: Sequence[ScheduledChunk], draws: npt.NDArray[Any]) -> list[float]:
    """Seconds of each of the parts of a step; `draws` says how each slot is sampled, as an engine knows it."""
    marks = [time.perf_counter()]
    placements = runner.store.place(chunks)
    fed = [(chunk.slot, chunk.start, [7] * (chunk.end - chunk.start)) for chunk in chunks]
    batch = Batch.of(fed, wanted=[chunk.samples for chunk in chunks], placements=placements)
    rows = draws[[chunk.slot for chunk in chunks for _ in range(chunk.samples)]]
    rows["number"] = range(len(rows))
    marks.append(time.perf_counter())
    pending = runner.submit(batch, SamplingInputs.of(rows))
    runner.device.flush()
    marks.append(time.perf_counter())
    pending.wait()
    marks.append(time.perf_counter())
    return [end - begin for begin, end in itertools.pairwise(marks)]


def decode(runner: GpuRunner, tokens: int = 128) -> float:
    """Prints tokens a second of one sequence whose steps are submitted ahead; gives seconds a token."""
    work = Workload("tg", tokens, 0, 1, 1)
    steps = work.steps()
    on_gpu(runner, work, steps)
    best = min(on_gpu(runner, work, steps).seconds for _ in range(4))
    print(f"  without drafts, submitted ahead: {tokens / best:.1f} tok/s, {best / tokens * 1e3:.2f} ms", flush=True)
    return best / tokens


def measure(runner: GpuRunner, rows: int, depth: int, *, together: bool, seconds: float, detail: bool) -> None:
    """Prints a line of a step of so many rows."""
    for slot in range(runner.slots):
        runner.store.begin(slot, depth)
    chunks = chunks_of(rows, depth, together=together)
    every = np.array([draw_row(SamplingParams(temperature=0), 0, slot) for slot in range(runner.slots)])
    end, parts = time.perf_counter() + seconds, [step(runner, chunks, every)]
    end += sum(parts[0])  # compiling
    while time.perf_counter() < end:
        parts.append(step(runner, chunks, every))
    kept = parts[len(parts) // 2 :]
    placements = runner.store.place(chunks)
    fed = [(chunk.slot, chunk.start, [7] * (chunk.end - chunk.start)) for chunk in chunks]
    batch = Batch.of(fed, wanted=[chunk.samples for chunk in chunks], placements=placements)
    shares = together and rows > 1 and not runner.model.states
    batch = batch.apart() if shares else batch
    plan = runner.plan_for(batch, "plain", shared_pages=shares)
    inputs = batch.arrays() | {"draws": draw_words(every[[0] * rows])}
    counts = len(batch.segments), len(batch.outputs)
    gpu = statistics.median(lap(plan, batch.rows, inputs, *counts) for _ in range(9))
    each = [statistics.median(times) * 1e3 for times in zip(*kept, strict=True)]
    whole = statistics.median(map(sum, kept)) * 1e3
    told = ", ".join(f"{name} {ms:.2f}" for name, ms in zip(PARTS, each, strict=True))
    kind = "of one sequence" if together else "of one each"
    print(
        f"  {rows} rows {kind}: {whole:.2f} ms, GPU {gpu * 1e3:.2f}; {told}; {len(plan.dispatches)} dispatches",
        flush=True,
    )
    if detail:
        found = profile_plan(plan, batch.rows, inputs, 5, *counts)
        for one in found.steps[:14]:
            print(f"    {one.name} {one.calls}: {one.seconds * 1e6 / one.calls:.1f} us each", flush=True)


@click.command()
@click.argument("model")
@click.option("--device", "wanted", default="auto")
@click.option("--rows", default="1,2,3,4,6,8")
@click.option("--depth", default=0)
@click.option("--seconds", default=0.25, help="Of each measurement.")
@click.option("--detail", default="8", help="Rows whose dispatches are listed.")
def main(model: str, wanted: str, rows: str, depth: int, seconds: float, detail: str) -> None:
    """Prints a line for each, of a file or a synthetic MODEL."""
    adapters = list_adapters()
    adapter = choose(adapters, wanted).adapter or next(a for a in adapters if a.backend == "Vulkan")
    counts = [int(one) for one in rows.split(",")]
    most = max(counts)
    print(f"{model} at {depth} on {adapter.name}", flush=True)
    with GGUFFile.open(model) if Path(model).exists() else open_synthetic(model) as file:
        loaded = load_model(file)
        context = min(depth + 256, loaded.context) if loaded.caches else None
        runner = GpuRunner(
            Device(adapter), file, loaded, slots=most, context=context, drafts=most - 1, cache_bytes=0,
            tokens=None if context is None else context * most,
        )  # fmt: skip
    decode(runner)
    for together in (True, False):
        for count in counts:
            if count > 1 or together:
                detailed = str(count) in detail.split(",")
                measure(runner, count, depth, together=together, seconds=seconds, detail=detailed)
    runner.close()


if __name__ == "__main__":
    main()
