"""Decode with LoRA adapters that a batch mixes, and without any: tokens a second of a synthetic model.

    python -m benchmarks.adapters llama-8b-q4_k_m --device 0 --adapters 4 --rank 16 --batch 16

Factors are random and small. `attention` adapts q, k, v and the output, `all` every matrix that can be adapted. Both
ways run in turns, each with a model of its own on the device.
"""

import re
from dataclasses import replace
from pathlib import Path

import click
import numpy as np
from gguf import GGUFWriter

from rwkv_gpu.engine.adapters import NOT_PRODUCTS, Adapter, Adapters
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import choose, list_adapters
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.profile import profile_plan
from rwkv_gpu.measure.bench import greedy, on_gpu
from rwkv_gpu.measure.synthetic import open_synthetic
from rwkv_gpu.measure.workload import Workload
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch

KINDS = "attention", "all"  # which matrices are adapted
ATTENTION = re.compile(r"blk\.\d+\.(attn_(q|k|v|output|qkv)|time_mix_(receptance|key|value|output))\.weight")


def random_adapter(number: int, file: GGUFFile, wanted: str, rank: int) -> Adapter:
    """An adapter for the matrices of a file."""
    random = np.random.default_rng(number)
    factors = {}
    for name, tensor in file.tensors.items():
        fits = ATTENTION.fullmatch(name) if wanted == "attention" else name.startswith("blk.")
        if not fits or len(tensor.shape) != 2 or min(tensor.shape) < 64 or NOT_PRODUCTS.search(name):
            continue
        if re.search(r"time_mix_[wagv][12]|ssm_", name):  # LoRAs of the model itself
            continue
        rows, columns = tensor.shape
        a, b = (0.01 * random.standard_normal(shape, np.float32) for shape in ((rank, columns), (rows, rank)))
        factors[name] = a, b
    return Adapter(f"adapter{number}", 1.0, rank, factors)


def save(path: str, adapter: Adapter, architecture: str) -> None:
    """As llama.cpp's converter writes it."""
    writer = GGUFWriter(path, architecture)
    writer.add_type("adapter")
    writer.add_string("adapter.type", "lora")
    writer.add_float32("adapter.lora.alpha", float(adapter.rank))
    for name, (a, b) in adapter.factors.items():
        writer.add_tensor(f"{name}.lora_a", a)
        writer.add_tensor(f"{name}.lora_b", b)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def wanting(work: Workload, count: int, rank: int) -> list[Batch]:
    """The steps, each row with one of so many adapters."""
    if not count:
        return work.steps()
    scales = np.repeat(np.eye(count, dtype=np.float32), rank, axis=1)[np.arange(work.batch) % count]
    return [replace(step, adapters=scales) for step in work.steps()]


def show(kind: str, runner: GpuRunner, step: Batch) -> None:
    """Where the time of a step goes, dispatch by dispatch."""
    for slot in range(runner.slots):
        runner.store.begin(slot, 0)
    batch = runner.prepare(step)
    plan = runner.plan_for(batch, "plain")
    inputs = batch.arrays() | {"draws": greedy(step).draws}
    found = profile_plan(plan, batch.rows, inputs, 20, len(batch.segments), len(batch.outputs))
    print(f"{kind}: {found.seconds * 1e3:.2f} ms on the GPU, {sum(one.calls for one in found.steps)} dispatches")
    for one in found.steps:
        print(f"  {one.calls:4} {one.seconds * 1e3:7.3f} ms  {one.name}")


@click.command()
@click.argument("model")
@click.option("--device", "wanted", default="auto")
@click.option("--adapters", "count", default=4)
@click.option("--rank", default=16)
@click.option("--batch", default=16)
@click.option("--tokens", default=32, help="Of each sequence in a pass.")
@click.option("--passes", default=3)
@click.option("--matrices", default="attention,all")
@click.option("--matrix-units", is_flag=True)
@click.option("--save", "saved", help="Write one such adapter of all matrices to this file, and measure nothing.")
@click.option("--detail", is_flag=True, help="List dispatches by what they take.")
def main(
    model: str,
    wanted: str,
    count: int,
    rank: int,
    batch: int,
    tokens: int,
    passes: int,
    matrices: str,
    matrix_units: bool,
    detail: bool,
    saved: str | None,
) -> None:
    """Prints a line for each, of a file or a synthetic MODEL."""
    if saved:
        with GGUFFile.open(model) if Path(model).exists() else open_synthetic(model) as file:
            save(saved, random_adapter(0, file, "all", rank), file.str("general.architecture"))
        return
    listed = list_adapters()
    adapter = choose(listed, wanted).adapter or next(a for a in listed if a.backend == "Vulkan")
    print(adapter.name)
    work = Workload("tg", tokens, 0, batch, batch)
    runners: dict[str, GpuRunner] = {}
    for kind in ("none", *matrices.split(",")):
        with GGUFFile.open(model) if Path(model).exists() else open_synthetic(model) as file:
            some = [] if kind == "none" else [random_adapter(n, file, kind, rank) for n in range(count)]
            file.apart = Adapters(some).apart  # as `load` does
            loaded = load_model(file)
            context = min(256, loaded.context or 256)
            device = Device(adapter, matrix_units=matrix_units)
            runners[kind] = GpuRunner(
                device, file, loaded, slots=batch, context=context, cache_bytes=0, adapters=Adapters(some)
            )
            matrix_count = len({name for one in some for name in one.factors})
            print(
                f"{kind}: {matrix_count} matrices adapted, {count if some else 0} adapters of rank {rank}", flush=True
            )
    rates: dict[str, list[float]] = {kind: [] for kind in runners}
    for number in range(passes + 1):
        for kind, runner in runners.items():
            seconds = on_gpu(runner, work, wanting(work, count if kind != "none" else 0, rank)).seconds
            if number:
                rates[kind].append(work.total / seconds)
    best = {kind: max(each) for kind, each in rates.items()}
    for kind, rate in best.items():
        print(f"{model} by {batch}, {kind}: {rate:,.1f} tok/s, {1 - rate / best['none']:+.1%} lost", flush=True)
    for kind, runner in runners.items():
        if detail:
            show(kind, runner, wanting(work, count if kind != "none" else 0, rank)[0])
        runner.close()


if __name__ == "__main__":
    main()
