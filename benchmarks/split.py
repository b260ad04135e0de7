"""Decode over several devices, beside what the same layers take when one device has them all.

    python -m benchmarks.split rwkv7-0.1b --device 0,1 --split 1,1 --depth 0,4096

A model is a file, or the name of a synthetic one. The model is measured whole on each device, where it fits, and then
split. A device that has a share of the layers is expected to take that share of the time that all of them take on it.
Each token is the one that was sampled before, as in an answer: once with steps submitted ahead as the engine does, and
once where each step waits for the one before. Chunks of a prompt go through the devices one behind the other, so that
those may reach more than one device. Devices of one name are taken to be alike, and the first is measured.
With `--timeline` it shows in µs what the host does for a step of each part, how long the device computes, and how much
longer its result takes ("beyond": to begin, to wake the host).
"""

import statistics
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from pathlib import Path

import click
import numpy as np

from rwkv_gpu.cli.bench import runner_for
from rwkv_gpu.engine.cache.config import DEFAULT_CHUNK, DEFAULT_LOOK_AHEAD
from rwkv_gpu.engine.runner import Runner
from rwkv_gpu.engine.split import SplitRunner
from rwkv_gpu.engine.split_layout import choices_of, device_names
from rwkv_gpu.engine.step_result import PendingStep
from rwkv_gpu.errors import BadInput, OutOfMemory
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.measure.bench import greedy, rewind
from rwkv_gpu.measure.synthetic import open_synthetic
from rwkv_gpu.measure.workload import Workload
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.sampling import FROM_SLOT

from .split_timeline import Timeline

AIM = 0.7  # of what the same layers reach on one device


@dataclass(frozen=True)
class Token:
    """Seconds of a token, the middle of several passes."""

    ahead: float  # with steps submitted ahead
    alone: float  # where each step waits for the one before
    host: float  # of these, CPU time of the host
    passes: tuple[float, ...]  # with steps submitted ahead, in their order


def answer(work: Workload) -> Iterator[Batch]:
    """The steps of a workload; of an answer each has the token that was sampled before."""
    first, *rest = work.steps()
    yield first
    if work.kind == "pp":
        yield from rest
        return
    for step in rest:
        yield replace(step, ids=np.array([FROM_SLOT | segment.slot for segment in step.segments], np.uint32))


def seconds_a_token(runner: Runner, work: Workload, ahead: int) -> tuple[float, float]:
    """One pass: wall time and CPU time of this thread."""
    rewind(runner, work)
    draws, flights = greedy(work.steps()[0]), deque[PendingStep]()
    begin, host = time.perf_counter(), time.thread_time()
    for step in answer(work):
        flights.append(runner.submit(runner.prepare(step), draws))
        while len(flights) > min(ahead, runner.ahead):
            flights.popleft().wait()
    while flights:
        flights.popleft().wait()
    return (time.perf_counter() - begin) / work.tokens, (time.thread_time() - host) / work.tokens


def measure(runner: Runner, works: Sequence[Workload], repeats: int, warm: float = 0.0) -> list[Token]:
    """All workloads, in turns with and without steps ahead, after passes of `warm` seconds, and one at least."""
    found = []
    for work in works:
        both = DEFAULT_LOOK_AHEAD, 0
        seconds_a_token(runner, work, DEFAULT_LOOK_AHEAD)  # compiles
        end = time.perf_counter() + warm
        while time.perf_counter() < end:
            seconds_a_token(runner, work, DEFAULT_LOOK_AHEAD)
        passes = [[seconds_a_token(runner, work, ahead) for ahead in both] for _ in range(repeats)]
        ahead, alone = zip(*passes, strict=True)
        middle = statistics.median
        found.append(
            Token(
                middle(t for t, _ in ahead),
                middle(t for t, _ in alone),
                middle(cpu for _, cpu in alone),
                tuple(t for t, _ in ahead),
            )
        )
    return found


def timelines(runner: SplitRunner, work: Workload) -> Iterator[str]:
    """Where the time of a step goes, with steps submitted ahead and where each waits."""
    for ahead in (1, 0):
        timeline = Timeline(runner, len(work.steps()))
        with timeline.watch():
            rate, _ = seconds_a_token(runner, work, ahead)
        yield f"{work.name}: {1 / rate:.2f} tok/s with {ahead} ahead, watched"
        yield from timeline.lines()


def whole(file: GGUFFile, works: list[Workload], device: str, repeats: int, warm: float) -> list[Token] | None:
    """With all layers on one device; None where they do not fit."""
    try:
        with runner_for(file, works, device) as runner:
            return measure(runner, works, repeats, warm)
    except OutOfMemory as error:
        click.echo(f"{device}: {error}", err=True)
        return None


def report(
    work: Workload, names: Sequence[str], alone: Sequence[Token | None], layers: Sequence[int], split: Token
) -> Iterator[str]:
    """A line for each device, and one for all together."""

    def line(what: str, token: Token) -> str:
        return (
            f"{work.name}: {what}: {1 / token.ahead:.2f} tok/s, {1 / token.alone:.2f} where each step waits; "
            f"{1e6 * token.host:.0f} µs of CPU a token; passes {', '.join(f'{1 / one:.0f}' for one in token.passes)}"
        )

    for name, token in dict(zip(names, alone, strict=True)).items():
        if token is not None:
            yield line(name, token)
    yield line(f"split into {' + '.join(map(str, layers))} layers", split)
    known = [token for token in alone if token is not None]
    if len(known) == len(alone):
        shares = [count / sum(layers) for count in layers]
        expected = sum(share * token.ahead for share, token in zip(shares, known, strict=True))
        waiting = sum(share * token.alone for share, token in zip(shares, known, strict=True))
        added = (split.ahead - expected) / len(layers)
        yield (
            f"{work.name}: split reaches {expected / split.ahead:.0%} of the same layers on one device each (aim: "
            f"{AIM:.0%}), {waiting / split.alone:.0%} where each step waits; a part adds {1e6 * added:.0f} µs"
        )


@click.command()
@click.argument("model")
@click.option("--device", required=True)
@click.option("--split", required=True, help="Shares of the layers, such as 1,1.")
@click.option("-n", "--tokens", default=64, show_default=True, type=click.IntRange(2))
@click.option("-d", "--depth", default="0", show_default=True, help="Tokens before; one or several, such as 0,4096.")
@click.option("-p", "--prompt", default=0, help="Tokens of a prompt, which is measured as well.")
@click.option("-r", "--repeats", default=3, show_default=True, type=click.IntRange(1))
@click.option("--warm", default=2.0, show_default=True, help="Seconds that it decodes before: clocks rise.")
@click.option("--timeline", is_flag=True, help="Show what the host does for each part, and when.")
def main(
    model: str, device: str, split: str, tokens: int, depth: str, prompt: int, repeats: int, warm: float, timeline: bool
) -> None:
    names = device_names(device)
    works = [Workload("tg", tokens, one, 1, 1) for one in map(int, depth.split(","))]
    works += [Workload("pp", prompt, 0, 1, min(prompt, DEFAULT_CHUNK))] if prompt else []
    if len(names) < 2:
        raise BadInput("name several devices, such as 0,1")
    with ExitStack() as opened:
        file = opened.enter_context(closing(GGUFFile.open(model)) if Path(model).is_file() else open_synthetic(model))
        kinds = [str(choice.adapter.name if choice.adapter else "cpu") for choice in choices_of(names)]
        by_kind = {kind: whole(file, works, names[kinds.index(kind)], repeats, warm) for kind in dict.fromkeys(kinds)}
        runner = opened.enter_context(runner_for(file, works, device, split=split))
        assert isinstance(runner, SplitRunner)
        layers = [len(part.layers) for part in runner.layout]
        for number, (work, token) in enumerate(zip(works, measure(runner, works, repeats, warm), strict=True)):
            each = [None if (tokens_of := by_kind[kind]) is None else tokens_of[number] for kind in kinds]
            for line in report(work, kinds, each, layers, token):
                click.echo(line)
        for work in works if timeline else ():
            for line in timelines(runner, work):
                click.echo(line)


if __name__ == "__main__":
    main()
