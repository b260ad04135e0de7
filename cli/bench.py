"""`rwkv-gpu bench`: tokens per second, by prompt length, depth, batch and chunk size; of encoders, texts per second."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from functools import partial
from typing import Any, Unpack

import click

from rwkv_gpu import __version__
from rwkv_gpu.builtin import builtin_model
from rwkv_gpu.engine.cache.config import DEFAULT_CHUNK, DEFAULT_LOOK_AHEAD, CacheOptions
from rwkv_gpu.engine.fit import default_chunk
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.host_runner import HostRunner
from rwkv_gpu.engine.offload import ON_GPU, Offload
from rwkv_gpu.engine.runner import Logits, Runner
from rwkv_gpu.engine.split import SplitRunner
from rwkv_gpu.engine.split_layout import choices_of, device_names, shares_of
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import Choice
from rwkv_gpu.gpu.matrix_units import MatrixUnits, refuse_cpu
from rwkv_gpu.kernels.tuned import find as find_tuned
from rwkv_gpu.llm.drafts import DraftOptions, drafts_of
from rwkv_gpu.llm.folders import tuned_folder
from rwkv_gpu.llm.load_options import ENCODER_CONTEXT, DeviceOptions, room_of
from rwkv_gpu.llm.pooling import Pooling
from rwkv_gpu.llm.runners import Opened
from rwkv_gpu.llm.split_loading import load_split
from rwkv_gpu.measure.bench import Pool, bench, needed
from rwkv_gpu.measure.energy import find_meter
from rwkv_gpu.measure.report import RENDER, Place, Subject, heading, row
from rwkv_gpu.measure.roofline import measure_roofline
from rwkv_gpu.measure.synthetic import open_synthetic
from rwkv_gpu.measure.workload import BY_DEVICE, Workload, by_device, embeddings, workloads
from rwkv_gpu.models.registry import ENCODER, Model, diffusion_of, is_encoder, load_model, refuse_encoder, refuse_source
from rwkv_gpu.ops.kv_format import KVType
from rwkv_gpu.ops.open_device import open_device
from rwkv_gpu.ops.self_test import tuning_for
from rwkv_gpu.ops.vocabulary import StateType

from .echo import echo_text
from .options import counts_option, model_arguments, placement_options, shared
from .page import Page
from .printing import print_text

TOKENS = 128  # default number of generated tokens


counts = partial(counts_option, "bench")


@click.command("bench", cls=Page, epilog="Example: rwkv-gpu bench --synthetic rwkv7-0.4b-q4_k_m -p 512 -n 32 -b 1,4,16")
@model_arguments(default=None, file=True)
@shared("synthetic")
@counts("-p", "--prompt", "--n-prompt", default="512", help="Lengths of prompts or texts, in tokens; 0 skips prompts.")
@counts("-n", "--tokens", "--n-gen", shown=str(TOKENS), help="Tokens to generate; 0 skips generation.")
@counts("-d", "--depth", "--n-depth", default="0", help="Tokens in the context before the measurement.")
@counts(
    "-b", "--batch", default="1",
    help="Batch size: sequences decoded, or texts embedded, at the same time; not llama-bench's -b.",
)  # fmt: skip
@counts(
    "--chunk-size", shown=f"as for `run`; {ENCODER_CONTEXT} for encoders",
    help="Tokens per step of a prompt, or of texts; llama-bench calls it -b.",
)  # fmt: skip
@shared("repeats")
@click.option(
    "--layers-per-submit", type=click.IntRange(0), default=0, show_default=True, metavar="N",
    help="Layers per command buffer; 0 is all.",
)  # fmt: skip
@click.option(
    "--look-ahead", type=click.IntRange(0, 16), default=DEFAULT_LOOK_AHEAD, show_default=True, metavar="N",
    help="Decode steps in flight before the token of the first is read.",
)  # fmt: skip
@click.option("--tuned/--untuned", default=True, show_default=True, help="Use the settings that `rwkv-gpu tune` found.")
@click.option("-o", "--output", type=click.Choice(list(RENDER)), default="md", show_default=True, help="Output format.")
@shared("kv", "states", "matrix_units", "device")
@placement_options
@shared("split")
def command(
    model: str | None, synthetic: str | None, prompt: list[int], tokens: list[int] | None, depth: list[int],
    batch: list[int], chunk_size: list[int] | None, repeats: int, layers_per_submit: int, look_ahead: int, tuned: bool,
    output: str, kv: KVType, states: StateType, matrix_units: MatrixUnits, device: str, offload: Offload,
    split: str | None,
) -> None:  # fmt: skip
    """Measure how many tokens per second MODEL, a synthetic model or the built-in model reads and generates.

    An embedding model embeds batches of whole texts; texts per second are shown, too.

    Counts can be lists such as 1,4,16; every combination is measured. Tokens per joule are shown where the system
    reports the energy: NVML, the hwmon of AMD's and Intel's cards, and RAPL for the processor.
    """
    settings: dict[str, Any] = {"kv": kv, "states": states, "look_ahead": look_ahead}
    settings |= {
        "layers_per_submit": layers_per_submit,
        "matrix_units": matrix_units,
        "offload": offload,
        "split": split,
    }
    with ExitStack() as running:
        file = running.enter_context(opened(model, synthetic))
        works = works_of(load_model(file), prompt, tokens, depth, batch, chunk_size)
        runner = running.enter_context(runner_for(file, works, device, tuned=tuned, **settings))
        works = by_device(works, runner.chunk_size)
        gpu = runner.device if isinstance(runner, GpuRunner) else None
        roofline = measure_roofline(gpu) if gpu else None
        subject, place = Subject.of(file), Place.of(gpu, roofline, __version__)
        if isinstance(runner, SplitRunner):
            place = Place.of_parts(runner.names, __version__)
        if output == "md":
            print_text(heading(subject, place, repeats))
        rows = []
        meter = running.enter_context(found) if (found := find_meter(place.device)) else None
        for result in bench(runner, works, repeats, roofline, meter, pool_of(file, works)):
            rows.append(row(subject, place, result))
            if output == "jsonl":  # line by line
                echo_text(RENDER[output](rows[-1:]))
            else:
                print_text(f"{result.workload.name}: {result.rate:.2f} tok/s", err=True)
    if output != "jsonl":
        print_text(RENDER[output](rows))


@contextmanager
def opened(model: str | None, synthetic: str | None) -> Iterator[GGUFFile]:
    """Opens the model's file or a synthetic one; without either, the built-in model."""
    if model is not None and synthetic is not None:
        raise BadInput("give a model file or --synthetic NAME, not both")
    with GGUFFile.open(model or builtin_model()) if synthetic is None else open_synthetic(synthetic) as file:
        yield file


def works_of(
    model: Model, prompt: Sequence[int], tokens: Sequence[int] | None, depth: Sequence[int], batch: Sequence[int],
    chunk_size: Sequence[int] | None,
) -> list[Workload]:  # fmt: skip
    """The workloads for a model; an encoder only embeds."""
    if min(*(chunk_size or [1]), *batch) < 1:
        raise BadInput("a chunk size and a batch size must be at least 1")
    refuse_source(model)
    if diffusion_of(model):
        if any(tokens or ()):
            raise BadInput("this model generates by diffusion, and not token by token; leave out -n")
        tokens = [0]
    if not is_encoder(model):
        return workloads(prompt, [TOKENS] if tokens is None else tokens, depth, batch, chunk_size or [BY_DEVICE])
    refuse_decode({"-n": tokens, "--depth": depth})
    return texts_of(model, prompt, batch, chunk_size)


def texts_of(
    model: Model, prompt: Sequence[int], batch: Sequence[int], chunk_size: Sequence[int] | None
) -> list[Workload]:
    """The workloads for an encoder, in steps with as many tokens as in an `LLM`."""
    if model.context and max(prompt) > model.context:
        raise BadInput(
            f"texts of {max(prompt):,} tokens are longer than the {model.context:,} that the model was trained on"
        )
    rows, _, _ = room_of(model, max(batch), None, None)
    return embeddings(prompt, batch, chunk_size or [rows or DEFAULT_CHUNK])


def refuse_decode(options: Mapping[str, Sequence[int] | None]) -> None:
    """Refuses decode options above 0, which an encoder does not support."""
    wanted = [name for name, given in options.items() if any(given or ())]
    if wanted:
        raise BadInput(f"{ENCODER}; leave out {' and '.join(wanted)}")


def pool_of(file: GGUFFile, works: Sequence[Workload]) -> Pool:
    """Pools vectors of texts on the host, if any are embedded."""
    if all(work.kind != "embed" for work in works):
        return len
    pooling = Pooling.of(file, encoder=True)

    def vector(rows: Logits) -> object:
        pool = pooling.begun()
        pool.take(rows)
        return pool.vector()

    return vector


@contextmanager
def runner_for(
    file: GGUFFile, works: list[Workload], device: str, *, tuned: bool = True, layers_per_submit: int = 0,
    matrix_units: MatrixUnits = "auto", offload: Offload = ON_GPU, split: str | None = None, head: bool = False,
    **room: Unpack[CacheOptions],
) -> Iterator[Runner]:  # fmt: skip
    """Loads the model with just the memory that the workloads need; with `head`, on one device with its draft head."""
    slots, context, tokens, least = needed(works)
    open_chunk = any(work.chunk == BY_DEVICE for work in works)
    rows = max(least, DEFAULT_CHUNK) if open_chunk else least
    room = {**room, "slots": slots, "context": context, "tokens": tokens}
    model, names, folder = load_model(file), device_names(device), tuned_folder() if tuned else None
    if head and len(names) == 1:
        with drafts_of(DraftOptions(), file, model) as drafts:
            model, room["drafts"] = drafts.in_use(model), drafts.most
    if any(work.kind != "embed" for work in works):
        refuse_encoder(model)
    shares, choices = shares_of(split, len(names)), choices_of(names)
    choice = choices[0]
    if len(choices) > 1:
        options = DeviceOptions(names, shares, offload, matrix_units, folder, layers_per_submit, at_once=False)
        loaded = load_split(Opened(file, model), choices, options, rows, room)
        if not isinstance(loaded, Choice):
            with closing(loaded.runner) as runner:
                yield runner
            return
        choice = loaded
    adapter = choice.adapter
    if adapter is None:
        refuse_cpu(matrix_units)
        yield HostRunner(file, model, chunk_size=rows, **room)
        return
    with open_device(adapter, matrix_units, tuned_folder()) as gpu:
        found = find_tuned(adapter, gpu.capabilities, folder) if tuned else None
        tuning = tuning_for(gpu, found)
        if open_chunk:
            rows = max(least, default_chunk(gpu, found))
        yield GpuRunner(
            gpu, file, model, chunk_size=rows, tuning=tuning, layers_per_submit=layers_per_submit, offload=offload,
            **room,
        )  # fmt: skip
