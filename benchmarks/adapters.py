"""Measures decode with LoRA adapters, mixed in a batch, and without: tokens per second.

    python -m benchmarks.adapters llama-8b-q4_k_m --device 0 --adapters 4 --rank 16 --batch 16

Factors are random and small. `attention` adapts q, k, v and the output, `all` every matrix that can be adapted. All
variants are measured in turns, each with a separate model on the device.
"""

import re
from dataclasses import replace

import click
import numpy as np
from gguf import GGUFWriter

from rwkv_gpu.engine.adapters import NOT_PRODUCTS, Adapter, Adapters
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.measure.bench import on_gpu
from rwkv_gpu.measure.workload import Workload
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.batch import Batch

from .opening import adapter_of, open_model

KINDS = "attention", "all"  # which matrices are adapted
ATTENTION = re.compile(r"blk\.\d+\.(attn_(q|k|v|output|qkv)|time_mix_(receptance|key|value|output))\.weight")
OWN_LORA = re.compile(r"time_mix_[wagv][12]|ssm_")  # low-rank matrices of the model itself


def random_adapter(seed: int, file: GGUFFile, kind: str, rank: int) -> Adapter:
    """Makes a random adapter for the matrices of a file."""
    random = np.random.default_rng(seed)
    factors = {}
    for name, tensor in file.tensors.items():
        fits = ATTENTION.fullmatch(name) if kind == "attention" else name.startswith("blk.")
        if not fits or len(tensor.shape) != 2 or min(tensor.shape) < 64:
            continue
        if NOT_PRODUCTS.search(name) or OWN_LORA.search(name):
            continue
        rows, columns = tensor.shape
        a, b = (0.01 * random.standard_normal(shape, np.float32) for shape in ((rank, columns), (rows, rank)))
        factors[name] = a, b
    return Adapter(f"adapter{seed}", 1.0, rank, factors)


def save(path: str, adapter: Adapter, architecture: str) -> None:
    """Writes an adapter as llama.cpp's converter does."""
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


def steps_of(work: Workload, adapters: int, rank: int) -> list[Batch]:
    """Makes the steps of a workload. Each row uses one of the adapters."""
    if not adapters:
        return work.steps()
    scales = np.repeat(np.eye(adapters, dtype=np.float32), rank, axis=1)[np.arange(work.batch) % adapters]
    return [replace(step, adapters=scales) for step in work.steps()]


@click.command()
@click.argument("model")
@click.option("--device", "wanted", default="auto")
@click.option("--adapters", "count", default=4)
@click.option("--rank", default=16)
@click.option("--batch", default=16)
@click.option("--tokens", default=32, help="Tokens of each sequence in a pass.")
@click.option("--passes", default=3)
@click.option("--matrix-units", is_flag=True)
def main(
    model: str, wanted: str, count: int, rank: int, batch: int, tokens: int, passes: int, matrix_units: bool
) -> None:
    """Prints a line for each kind of adapter. MODEL is a file or a synthetic model."""
    adapter, work = adapter_of(wanted), Workload("tg", tokens, 0, batch, batch)
    print(adapter.name)
    runners: dict[str, GpuRunner] = {}
    for kind in ("none", *KINDS):
        with open_model(model) as file:
            adapters = Adapters([] if kind == "none" else [random_adapter(n, file, kind, rank) for n in range(count)])
            file.apart = adapters.apart  # as `load` does
            loaded, device = load_model(file), Device(adapter, matrix_units=matrix_units)
            context = min(256, loaded.context or 256)
            runners[kind] = GpuRunner(
                device, file, loaded, slots=batch, context=context, cache_bytes=0, adapters=adapters
            )
    rates: dict[str, list[float]] = {kind: [] for kind in runners}
    for _ in range(passes + 1):
        for kind, runner in runners.items():
            seconds = on_gpu(runner, work, steps_of(work, 0 if kind == "none" else count, rank)).seconds
            rates[kind].append(work.total / seconds)
    for kind, runner in runners.items():
        rate, plain = (max(rates[one][1:]) for one in (kind, "none"))  # the first pass compiles
        print(f"{model} by {batch}, {kind}: {rate:,.1f} tok/s, {1 - rate / plain:.1%} lost", flush=True)
        runner.close()


if __name__ == "__main__":
    main()
