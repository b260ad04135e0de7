"""Decode over several devices, beside what the same layers take when one device has them all.

    python -m benchmarks.split rwkv7-0.1b --device 0,1 --split 1,1

A model is a file, or the name of a synthetic one. The model is measured whole on each device, where it fits, and then
split. A device that has a share of the layers is expected to take that share of the time that all of them take on it.
"""

import statistics
import time
from collections.abc import Sequence
from contextlib import ExitStack, closing
from pathlib import Path

import click

from rwkv_gpu.cli.bench import runner_for
from rwkv_gpu.engine.runner import Runner
from rwkv_gpu.engine.split import SplitRunner
from rwkv_gpu.engine.split_layout import device_names
from rwkv_gpu.errors import BadInput, OutOfMemory
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.measure.bench import greedy, rewind
from rwkv_gpu.measure.synthetic import open_synthetic
from rwkv_gpu.measure.workload import Workload

AIM = 0.7  # of what the same layers reach on one device


def seconds_a_token(runner: Runner, work: Workload, repeats: int) -> float:
    """Of decode, where each step waits for the one before; the middle of several passes."""
    draws, took = greedy(work.steps()[0]), []
    for _ in range(repeats + 1):  # the first compiles
        rewind(runner, work)
        begin = time.perf_counter()
        for step in work.steps():
            runner.submit(runner.prepare(step), draws).wait()
        took.append((time.perf_counter() - begin) / work.tokens)
    return statistics.median(took[1:])


def whole(file: GGUFFile, work: Workload, device: str, repeats: int) -> float | None:
    """Seconds a token with all layers on one device; None where they do not fit."""
    try:
        with runner_for(file, [work], device) as runner:
            return seconds_a_token(runner, work, repeats)
    except OutOfMemory as error:
        click.echo(f"{device}: {error}", err=True)
        return None


def report(names: Sequence[str], alone: Sequence[float | None], layers: Sequence[int], split: float) -> list[str]:
    """A line for each device, and one for all together."""
    lines = [f"{name} alone: {1 / took:.2f} tok/s" for name, took in zip(names, alone, strict=True) if took]
    lines.append(f"split into {' + '.join(map(str, layers))} layers: {1 / split:.2f} tok/s")
    if all(alone):
        shares = [count / sum(layers) for count in layers]
        expected = sum(share * (took or 0) for share, took in zip(shares, alone, strict=True))
        lines.append(f"the same layers on one device each: {1 / expected:.2f} tok/s")
        lines.append(f"split reaches {expected / split:.0%} of it (aim: {AIM:.0%})")
    return lines


@click.command()
@click.argument("model")
@click.option("--device", required=True)
@click.option("--split", required=True, help="Shares of the layers, such as 1,1.")
@click.option("-n", "--tokens", default=64, show_default=True, type=click.IntRange(1))
@click.option("--depth", default=0, show_default=True, type=click.IntRange(0))
@click.option("-r", "--repeats", default=3, show_default=True, type=click.IntRange(1))
def main(model: str, device: str, split: str, tokens: int, depth: int, repeats: int) -> None:
    names, work = device_names(device), Workload("tg", tokens, depth, 1, 1)
    if len(names) < 2:
        raise BadInput("name several devices, such as 0,1")
    with ExitStack() as opened:
        file = opened.enter_context(closing(GGUFFile.open(model)) if Path(model).is_file() else open_synthetic(model))
        alone = [whole(file, work, name, repeats) for name in names]
        runner = opened.enter_context(runner_for(file, [work], device, split=split))
        assert isinstance(runner, SplitRunner)
        layers = [len(part.layers) for part in runner.layout]
        for line in report(names, alone, layers, seconds_a_token(runner, work, repeats)):
            click.echo(line)


if __name__ == "__main__":
    main()
