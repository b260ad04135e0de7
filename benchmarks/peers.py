"""Compares this program with builds of llama.cpp on the same file and machine, in turns, in one table.

    python -m benchmarks.peers MODEL.gguf --peer CUDA=python3:cuda --peer Vulkan=python3:vulkan
    python -m benchmarks.peers llama-8b-q4_k_m --peer python3 -t tg32x1,16 -t pp64,512,2048 -t tg32@512,4096x1,16
    python -m benchmarks.peers llama-8b-q4_k_m --peer python3 -t tg32x1,16 --lora none --lora attention --lora all
    python -m benchmarks.peers bge-m3-f16 --peer python3 -t pp512 -t pp32x1,16

A peer is a Python that can import llama_cpp, if necessary from a folder that `benchmarks/build_peer.sh` made. A
synthetic model is first written to a temporary file. Rows are printed as they are measured. A peer that ends, or takes
too long, is left out of later rows. With several `--lora` or `--kv`, each has a row, and all are measured in turns.
llama.cpp applies adapters to whole batches, so all sequences have the same one.

An encoder embeds texts: pp32x16 is 16 texts of 32 tokens. A step has as many texts as fit the chunk, and both sides
pool them.
"""

import itertools
import re
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

import click

from rwkv_gpu.cli.bench import pool_of, runner_for, works_of
from rwkv_gpu.cli.options import device_option, numbers
from rwkv_gpu.engine.adapters import adapters_of
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.offload import Offload
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.matrix_units import CHOICES, MatrixUnits
from rwkv_gpu.measure.workload import Workload, by_device
from rwkv_gpu.models.registry import Model, is_encoder, load_model
from rwkv_gpu.ops.kv_format import KVType

from .opening import as_file
from .sides import NONE, Ended, Ours, Peer, Spec, Variant, variants

Test = tuple[str, list[int], list[int], list[int]]  # kind, tokens, depths, batches
TEST = re.compile(r"(pp|tg)([\d,]+)(?:@([\d,]+))?(?:x([\d,]+))?")


def read_test(text: str) -> Test:
    """Parses workloads such as pp64,512@0,4096 or tg32@512x1,16."""
    found = TEST.fullmatch(text)
    if found is None:
        raise click.BadParameter(f"'{text}' does not have a form like pp64,512@0,4096 or tg32@512x1,16")
    kind, *lists = found.groups()
    tokens, depths, batches = (numbers(part) for part in (lists[0], lists[1] or "0", lists[2] or "1"))
    return kind, tokens, depths, batches


def asked(model: Model, given: Sequence[Test], chunks: list[int] | None) -> list[Workload]:
    """Returns the workloads of all tests, in the order given."""
    works = []
    for kind, tokens, depths, batches in given:
        prompts, said = (tokens, [0]) if kind == "pp" else ([0], tokens)
        works += works_of(model, prompts, said, depths, batches, chunks)
    return works


def measure(sides: list[Ours | Peer], work: Workload, repeats: int, settle: float) -> dict[str, list[float]]:
    """Returns the tokens per second of each side, measured in turns. A peer whose process ends is removed from
    `sides`.

    First, each side compiles its kernels in a pass that is not counted. Then all sides run for `settle` seconds,
    because clocks drop while only a compiler runs. Each side runs a short warm-up before its timed pass: a device
    loses some milliseconds when it switches processes, which affects a fast side more.
    """
    lap(sides, work, prepare=True)
    spent = 0.0
    while spent < settle:
        spent += sum(lap(sides, work).values())
    laps = [lap(sides, work) for _ in range(repeats)]
    return {side.name: [work.total / each[side.name] for each in laps] for side in sides}


def lap(sides: list[Ours | Peer], work: Workload, *, prepare: bool = False) -> dict[str, float]:
    """Returns the seconds of each side in one pass."""
    seconds = {}
    for side in list(sides):
        try:
            if prepare:
                side.prepare(work)
            else:
                side.warm(work)
            seconds[side.name] = side.run(work)
        except Ended as end:
            click.echo(f"{work.name}, batch {work.batch}: {end}", err=True)
            sides.remove(side)
    return seconds


Rates = Sequence[list[float]]  # of us and of every peer


def row(work: Workload, rates: Rates, variant: Variant | None = None, first: Rates = ()) -> str:
    """Returns a line of the table: our rate, then each peer's rate with our speed-up.

    One of several variants has its name, and its difference from the `first`.
    """
    ours, *theirs = (
        shown(each) + changed(base, each) for base, each in itertools.zip_longest(first, rates, fillvalue=[])
    )
    cells = [work.name, "" if work.kind == "tg" else str(work.chunk), str(work.batch)]
    cells += [ours] if variant is None else [variant.name, ours]
    for cell, each in zip(theirs, rates[1:], strict=True):
        cells += [cell, f"{statistics.mean(rates[0]) / statistics.mean(each):.2f}" if each else ""]
    return f"| {' | '.join(cells)} |"


def changed(base: list[float], rates: list[float]) -> str:
    """Returns the relative difference of the means; empty if there is nothing to compare with."""
    if not base or not rates or rates is base:
        return ""
    return f" ({statistics.mean(rates) / statistics.mean(base) - 1:+.1%})"


def shown(rates: list[float]) -> str:
    """Returns the mean and the deviation as text."""
    if not rates:
        return "–"
    spread = statistics.stdev(rates) if len(rates) > 1 else 0.0
    digits = 2 if statistics.mean(rates) < 10 else 1
    return f"{statistics.mean(rates):,.{digits}f} ± {spread:,.{digits}f}"


def loaded(peers: Sequence[Peer]) -> Iterator[Peer]:
    """Starts the peers. Returns those that started, each with a line that names its device."""
    for peer in peers:
        try:
            click.echo(f"{peer.name}: {peer.loaded()}")
            yield peer
        except Ended as end:
            click.echo(str(end), err=True)


def heading(names: Sequence[str], several: bool = False) -> str:
    cells = ["test", "chunk", "batch", *["with"] * several, f"{names[0]}, tok/s"]
    for name in names[1:]:
        cells += [f"{name}, tok/s", "times"]
    return f"\n| {' | '.join(cells)} |\n|---|{'--:|' * (len(cells) - 1)}"


@click.command()
@click.argument("model")
@click.option("--peer", "specs", type=Spec.read, multiple=True, required=True, metavar="[NAME=]PYTHON[:FOLDER]")
@click.option("-t", "--test", "tests", type=read_test, multiple=True, help="pp64,512@4096 or tg32@512x1,16; several.")
@click.option("--chunk-size", type=numbers, help="Prompt tokens per step, for both sides.")
@click.option("-r", "--repeats", type=click.IntRange(1), default=5)
@click.option("--threads", default=0, help="Threads of llama.cpp's CPU backend; 0 lets it choose.")
@click.option("--settle", default=1.0, help="Seconds that all work before a test is timed; 0 for a processor.")
@click.option("--patience", default=120.0, help="Seconds to wait for a peer.")
@click.option("--seconds", default=float("inf"), help="No test begins later than this.")
@click.option(
    "--matrix-units",
    "units",
    type=click.Choice(CHOICES),
    multiple=True,
    default=("auto",),
    help="Value of --matrix-units. Repeat it to compare both values.",
)
@click.option("--cpu-moe", is_flag=True, help="Experts in main memory: ours read by the GPU, llama.cpp's by the CPU.")
@click.option("--gpu-memory", help="Limit of our GPU memory, such as 8G; other weights stay in main memory.")
@click.option(
    "--kv",
    type=click.Choice(["f16", "q8", "q4"]),
    multiple=True,
    default=("f16",),
    help="Type of the KV cache, for both sides (q8_0 and q4_0 in llama.cpp). Repeat it for several rows.",
)
@click.option(
    "--lora",
    multiple=True,
    default=(NONE,),
    help="LoRA adapter of all sequences and both sides: a GGUF file, random factors for `attention` or `all` matrices, "
    "or `none`. Repeat it for several rows.",
)
@click.option("--rank", default=16, help="Rank of random factors.")
@device_option
def main(
    model: str,
    specs: Sequence[Spec],
    tests: Sequence[Test],
    chunk_size: list[int] | None,
    repeats: int,
    threads: int,
    settle: float,
    patience: float,
    seconds: float,
    units: Sequence[MatrixUnits],
    cpu_moe: bool,
    gpu_memory: str | None,
    kv: Sequence[KVType],
    lora: Sequence[str],
    rank: int,
    device: str,
) -> None:
    """Measures MODEL, a file or the name of a synthetic model, with this program and every peer."""
    begin = time.monotonic()
    with ExitStack() as stack:
        path = stack.enter_context(as_file(model))
        file = stack.enter_context(GGUFFile.open(path))
        kind = load_model(file)
        default = ["pp512"] if is_encoder(kind) else ["pp512", "tg64"]
        works = asked(kind, tests or [read_test(text) for text in default], chunk_size)
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        offload = Offload.of(cpu_moe=cpu_moe, gpu_memory=gpu_memory)
        every = variants(kv, lora)
        peers = []
        for variant, spec in itertools.product(every, specs):
            options = ["--cpu-moe"] * cpu_moe + ["--kv", variant.kv]
            if adapter := variant.adapter(path, rank, folder):
                options += ["--lora", adapter]
            named = replace(spec, name=spec.name + variant.suffix)
            peers.append(Peer(named, path, threads, patience, options))
            stack.callback(peers[-1].close)  # it loads while our model loads
        ours = ["rwkv-gpu"] if len(units) == 1 else [f"rwkv-gpu, matrix units {each}" for each in units]
        sides: list[Ours | Peer] = []
        for variant in every:
            file = stack.enter_context(GGUFFile.open(path))
            adapters = adapters_of(variant.adapter(path, rank, folder), file)
            file.separate = adapters.separate
            room = {"offload": offload, "kv": variant.kv, "adapters": adapters}
            for name, each in zip(ours, units, strict=True):
                runner = stack.enter_context(runner_for(file, works, device, matrix_units=each, **room))
                sides.append(Ours(name + variant.suffix, runner, pool_of(file, works)))
        place = runner.device.adapter if isinstance(runner, GpuRunner) else "numpy"
        click.echo(f"{Path(path).stem}\n\nrwkv-gpu: {place}")
        sides += loaded(peers)
        up = {side.name for side in sides}
        names = ours + [spec.name for spec in specs if any(spec.name + one.suffix in up for one in every)]
        click.echo(heading(names, several=len(every) > 1))
        for work in by_device(works, runner.chunk_size):
            if time.monotonic() - begin > seconds:
                click.echo(f"no time left for {work.name}, batch {work.batch}", err=True)
                continue
            rates = measure(sides, work, repeats, settle)
            table = {one: [rates.get(name + one.suffix, []) for name in names] for one in every}
            for variant, found in table.items():
                click.echo(row(work, found, variant, table[every[0]]) if len(every) > 1 else row(work, found))


if __name__ == "__main__":
    main()
