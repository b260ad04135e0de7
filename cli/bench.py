"""`rwkv-gpu bench`: tokens a second, by prompt, depth, batch and chunk size."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import click

from rwkv_gpu import __version__
from rwkv_gpu.engine.cache.config import DEFAULT_LOOK_AHEAD, KVType
from rwkv_gpu.engine.runner import GpuRunner, HostRunner, Runner
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import find
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.gpu.tuned import find as find_tuned
from rwkv_gpu.measure.bench import bench, needed
from rwkv_gpu.measure.report import RENDER, Place, Subject, heading, row
from rwkv_gpu.measure.roofline import measure_roofline
from rwkv_gpu.measure.synthetic import open_synthetic
from rwkv_gpu.measure.workload import Workload, workloads
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.ops.self_test import tuning_for

from .folders import tuned_folder
from .options import ModelName, device_option, kv_option, numbers, synthetic_option


@click.command("bench", epilog="Example: rwkv-gpu bench --synthetic rwkv7-0.4b-q4_k_m -p 512 -n 32 -b 1,4,16")
@click.argument("model", metavar="[MODEL.gguf]", type=ModelName(), required=False)
@synthetic_option
@click.option("-p", "--prompt", type=numbers, default="512", show_default=True, help="Tokens of a prompt; 0 for none.")
@click.option("-n", "--tokens", type=numbers, default="128", show_default=True, help="Tokens to say; 0 for none.")
@click.option("-d", "--depth", type=numbers, default="0", show_default=True, help="Tokens that came before.")
@click.option("-b", "--batch", type=numbers, default="1", show_default=True, help="Sequences that decode together.")
@click.option("--chunk-size", type=numbers, default="512", show_default=True, help="Prompt tokens in one step.")
@click.option("-r", "--repeats", type=click.IntRange(1), default=5, show_default=True)
@click.option("--layers-per-submit", type=click.IntRange(0), default=0, show_default=True, help="0 is all at once.")
@click.option(
    "--look-ahead", type=click.IntRange(0, 16), default=DEFAULT_LOOK_AHEAD, show_default=True,
    help="Steps of decode under way before the tokens of the first are known.",
)  # fmt: skip
@click.option("--tuned/--untuned", default=True, show_default=True, help="Use what `rwkv-gpu tune` found.")
@click.option("-o", "--output", type=click.Choice(list(RENDER)), default="md", show_default=True)
@kv_option
@device_option
def command(
    model: str | None,
    synthetic: str | None,
    prompt: list[int],
    tokens: list[int],
    depth: list[int],
    batch: list[int],
    chunk_size: list[int],
    repeats: int,
    layers_per_submit: int,
    look_ahead: int,
    tuned: bool,
    output: str,
    kv: KVType,
    device: str,
) -> None:
    """Measure how fast MODEL, or a synthetic one, reads prompts and says tokens. Numbers can be lists: 1,4,16."""
    if min(*chunk_size, *batch) < 1:
        raise BadInput("a chunk size and a batch are at least 1")
    works = workloads(prompt, tokens, depth, batch, chunk_size)
    settings: dict[str, Any] = {"kv": kv, "look_ahead": look_ahead, "layers_per_submit": layers_per_submit}
    with opened(model, synthetic) as file, runner_for(file, works, device, tuned=tuned, **settings) as runner:
        gpu = runner.device if isinstance(runner, GpuRunner) else None
        roofline = measure_roofline(gpu) if gpu else None
        subject, place = Subject.of(file), Place.of(gpu, roofline, __version__)
        if output == "md":
            click.echo(heading(subject, place, repeats))
        rows = []
        for result in bench(runner, works, repeats, roofline):
            rows.append(row(subject, place, result))
            if output == "jsonl":  # as they come
                click.echo(RENDER[output](rows[-1:]))
            else:
                click.echo(f"{result.workload.name}: {result.rate:.2f} tok/s", err=True)
    if output != "jsonl":
        click.echo(RENDER[output](rows))


@contextmanager
def opened(model: str | None, synthetic: str | None) -> Iterator[GGUFFile]:
    """The file that is asked for, or what stands for one."""
    if (model is None) == (synthetic is None):
        raise BadInput("give either a model file or --synthetic NAME")
    with GGUFFile.open(model) if model is not None else open_synthetic(str(synthetic)) as file:
        yield file


@contextmanager
def runner_for(
    file: GGUFFile, works: list[Workload], device: str, *, tuned: bool = True, layers_per_submit: int = 0, **room: Any
) -> Iterator[Runner]:
    """The model loaded with just the room that the workloads need."""
    slots, context, rows = needed(works)
    room |= {"slots": slots, "chunk_size": rows, "context": context}
    model, adapter = load_model(file), find(device).adapter
    if adapter is None:
        yield HostRunner(file, model, **room)
        return
    with Device(adapter) as gpu:
        found = find_tuned(adapter, gpu.capabilities, tuned_folder()) if tuned else None
        tuning = tuning_for(gpu, found)
        yield GpuRunner(gpu, file, model, tuning=tuning, layers_per_submit=layers_per_submit, **room)
