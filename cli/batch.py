"""`rwkv-gpu batch`: answers the prompts of a JSONL file, many at a time, and writes the results to another file."""

import itertools
import json
import os
import sys
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass, field
from functools import partial
from typing import IO, Any

import click

from rwkv_gpu import LLM
from rwkv_gpu.errors import NAME, BadInput, printable
from rwkv_gpu.gpu.adapters import several
from rwkv_gpu.llm.completion import GREEDY

from .bars import lines_bar
from .batch_answer import Job, answer
from .batch_devices import Pipe, Workers, answer_lines
from .batch_files import Line, Output, read_lines
from .batch_ray import Cluster, results_on_ray
from .load_model import load_model, load_quietly
from .options import loading_options, model_arguments, shared
from .page import Page
from .sampling import chosen, sampling_options
from .screen import Screen
from .texts import template_text

SHOWN_ERRORS = 3
EPILOG = "Example: rwkv-gpu batch model.gguf questions.jsonl answers.jsonl --sequences 16"


@click.command("batch", cls=Page, epilog=EPILOG)
@model_arguments("IN.jsonl", "OUT.jsonl")
@click.option(
    "--sequences", "--parallel", type=click.IntRange(1, 256), default=8, show_default=True, metavar="N",
    help="Lines to answer at the same time.",
)  # fmt: skip
@click.option(
    "--ray", "address", metavar="ADDRESS",
    help="Answer on a Ray cluster: auto, HOST:6379 or ray://HOST:10001. Each of its machines needs the model file.",
)  # fmt: skip
@click.option(
    "--ray-actors", "actors", type=click.IntRange(1), metavar="N",
    help="Processes that answer on the cluster. Default: as many as its GPUs, or CPUs, allow.",
)  # fmt: skip
@shared("template")
@sampling_options(GREEDY)
@loading_options
@click.pass_context
def command(
    ctx: click.Context, /, model: str, arguments: tuple[str, str], sequences: int, address: str | None,
    actors: int | None, template: str | None, loading: dict[str, Any], **options: Any,
) -> None:  # fmt: skip
    """Answer each line of IN.jsonl, and append results to OUT.jsonl as they are ready; - is standard input or output.

    A line is {"prompt": "..."} or {"messages": [...]}. It can have an "id" (default: its line number, or "line N" if
    another line has that id) and settings of its own, named as the options here or as in OpenAI's API, such as
    "temperature". Lines of OpenAI's batches, with "custom_id" and "body", work too. Messages can have images as in
    OpenAI's API: data URLs, or files by their paths from the folder of IN.jsonl. After an interruption, run the
    command again: lines that have an answer are skipped, lines that have an error are tried again. With
    --device 0,1 or all, each GPU has a process of its own; with --split they share one model; with --ray, each GPU of a
    cluster.

    Exit code 1: some lines have an error.
    """
    source, target = arguments
    template = None if template is None else template_text(template)
    if source != "-" and os.path.exists(source) and os.path.exists(target) and os.path.samefile(source, target):
        raise BadInput(f"{source} is both the input and the output; give two files")
    lines = read_lines(source)
    screen = Screen()
    folder = "" if source == "-" else os.path.dirname(source)
    job = Job(chosen(ctx, options), template, sequences, folder)
    with Output.open(target, [name for name, _ in lines]) as output:
        left = [(name, line) for name, line in lines if name not in output.answered]
        tally = Tally()
        devices = [loading["device"]]
        if address is None and loading["split"] is None:
            devices = several(loading["device"])
        if left and address is not None:
            done = results_on_ray(Cluster(address, actors), model, job, loading, left)
            write_all(done, output.file, screen, tally, (len(lines) - len(left), len(lines)))
        elif left and len(devices) > 1:
            with Workers.start(devices, partial(work, model, job, loading), 2 * sequences, screen.note) as workers:
                write_all(workers.results(left), output.file, screen, tally, (len(lines) - len(left), len(lines)))
        elif left:
            with load_model(model, screen, sequences=sequences, **{**loading, "device": devices[0]}) as llm:
                write_all(results(llm, job, left), output.file, screen, tally, (len(lines) - len(left), len(lines)))
    for line in (summary(len(lines), len(lines) - len(left), tally.ends), *tally.reasons()):
        screen.note(line)
    ctx.exit(1 if tally.ends["error"] else 0)


@dataclass
class Tally:
    """The results of lines as JSON: the number of each finish reason, and the different errors with their ids."""

    ends: Counter[str] = field(default_factory=Counter)
    errors: dict[str, list[str]] = field(default_factory=dict)

    def add(self, name: str, line: Line) -> None:
        """Counts the result of a line."""
        self.ends[line.get("finish_reason", "error")] += 1
        if "error" in line:
            self.errors.setdefault(line["error"], []).append(name)

    def reasons(self) -> Iterator[str]:
        """The first errors, such as: id 3: prompt is 5; it must be a string (and 2 more lines)"""
        for error, names in itertools.islice(self.errors.items(), SHOWN_ERRORS):
            others = f" (and {len(names) - 1:,} more)" if len(names) > 1 else ""
            yield f"  id {printable(names[0], NAME)}: {printable(error)}{others}"
        if (more := len(self.errors) - SHOWN_ERRORS) > 0:
            yield f"  {more:,} other error{'s are' if more > 1 else ' is'} in the results"


def summary(lines: int, before: int, ends: Counter[str]) -> str:
    """10 of 12 lines answered, 2 of them cut off by max_tokens or the context; 2 with an error"""
    good = ends.total() - ends["error"]
    text = f"{good:,} of {lines:,} lines answered"
    text += f", {before:,} answered before" if before else ""
    text += f", {ends['error']:,} with an error" if ends["error"] else ""
    return text + (f"; {ends['length']:,} cut off by max_tokens or the context" if ends["length"] else "")


def write_all(
    results: Iterable[tuple[str, Line]], file: IO[str], screen: Screen, tally: Tally, counts: tuple[int, int]
) -> None:
    """Writes each result as soon as it is ready, and counts it.

    `counts`: number of lines answered before, and of all lines.
    """
    before, total = counts
    with lines_bar(screen, prints=file is sys.stdout) as bar:
        for number, (name, line) in enumerate(results, before + 1):
            result = {"id": json.loads(name), **line}
            tally.add(name, line)
            file.write(json.dumps(result, ensure_ascii=False) + "\n")
            file.flush()
            bar.update(number, total)


def results(llm: LLM, job: Job, left: Sequence[tuple[str, str]]) -> Iterator[tuple[str, Line]]:
    """Yields the id and result of each line, as they are ready."""
    waiting = iter(left)
    running: dict[Future[Line], str] = {}
    with ThreadPoolExecutor(job.sequences) as pool:
        for _ in left:
            while len(running) < 2 * job.sequences and (more := next(waiting, None)) is not None:
                running[pool.submit(answer, llm, more[1], job)] = more[0]
            first = next(iter(wait(running, return_when=FIRST_COMPLETED).done))
            yield running.pop(first), first.result()


def work(model: str, job: Job, loading: dict[str, Any], pipe: Pipe, device: str) -> None:
    """The process of one of several devices: answers lines received through a pipe."""
    with load_quietly(model, sequences=job.sequences, **{**loading, "device": device}) as llm:
        answer_lines(pipe, lambda text: answer(llm, text, job), job.sequences)
