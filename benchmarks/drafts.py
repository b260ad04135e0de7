"""Compares speculative decoding on and off, here and in builds of llama.cpp: tokens per second of greedy answers.

    python -m benchmarks.drafts llama-8b-q4_k_m --peer CUDA=python3:cuda --right 1,0.8,0.7,0.5 --draft llama-1.2b-q4_k_m
    python -m benchmarks.drafts qwen3.5-9b-mtp --heads --right 0.9,0.8,0.6
    python -m benchmarks.drafts MODEL.gguf --peer CUDA=python3:cuda --lookup --text FILE --draft SMALL.gguf

A trained model answers the text of a file. The answers of a synthetic model are meaningless: with `--right`, its drafts
are its own answer with random mistakes, so that the acceptance rate is synthetic. A draft model then runs its steps as
usual, but known tokens replace its own.

Our engine chooses the length of drafts. llama.cpp uses a fixed length; the table has the best of `--lengths`.
`accepted` is the share of drafted tokens that were right. It is lower than `--right`, because tokens after a wrong one
count as drafted, too. The first answer of each side is not counted, since it compiles kernels and measures step times.
Rates are those of whole answers, from their first token on.
"""

import statistics
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np

from rwkv_gpu.cli.options import device_option
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.speculation.draft_model import DraftModel
from rwkv_gpu.engine.speculation.head_drafts import HeadDrafts
from rwkv_gpu.engine.speculation.lookup import PromptLookup
from rwkv_gpu.engine.speculation.proposer import Proposer
from rwkv_gpu.engine.speculation.speculator import Speculator
from rwkv_gpu.errors import BadInput
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.llm.drafts import DraftOptions, drafts_of
from rwkv_gpu.measure.workload import FIRST_ID, LAST_ID
from rwkv_gpu.models.registry import load_model
from rwkv_gpu.text.tokenizer import load_tokenizer

from .known_drafts import Known, KnownHead, KnownModel, generate
from .opening import adapter_of, as_file
from .peers import loaded, shown
from .sides import Ended, Peer, Spec

SCRIPT = Path(__file__).with_name("peer_drafts.py")


@dataclass(frozen=True)
class Way:
    """A way to draft tokens."""

    kind: str  # none, known, lookup, model or head
    right: float | None = None  # of known tokens

    @property
    def name(self) -> str:
        share = "" if self.right is None else f", {self.right:.0%} right"
        names = {"none": "none", "known": "free", "lookup": "lookup", "model": "draft model", "head": "head"}
        return names[self.kind] + share


@dataclass
class Answers:
    """The results of one program with one source of drafts."""

    tokens: list[int]
    rates: list[float]
    drafted: int = 0
    accepted: int = 0
    length: int = 0  # of drafts, where it is fixed

    @property
    def acceptance(self) -> str:
        """The share of drafted tokens that were right. Tokens after a wrong one count as drafted, too."""
        return f"{self.accepted / self.drafted:.0%} of {self.drafted}" if self.drafted else "none drafted"


@dataclass(frozen=True)
class Task:
    """The prompts and answers of the benchmark."""

    prompt: list[int]
    count: int  # tokens of an answer
    repeats: int
    lengths: list[int]  # of drafts
    heads: bool = False  # whether the model's own head drafts, too

    @property
    def most(self) -> int:
        return max(self.lengths)

    @property
    def room(self) -> int:
        """The number of positions that the task needs."""
        return len(self.prompt) + self.count + self.most + 1


class Ours:
    """Our models on the device. The engine chooses the length of drafts."""

    name = "rwkv-gpu"

    def __init__(self, device: Device, file: GGUFFile, small: GGUFFile | None, task: Task) -> None:
        self._runner = runner_of(device, file, task, drafts=task.most)
        self._headed = runner_of(device, file, task, heads=True, drafts=task.most) if task.heads else None
        self._small = runner_of(device, small, task, rewind=task.most + 1, look_ahead=task.most) if small else None

    def answer(self, way: Way, task: Task, plain: list[int]) -> Answers:
        """Runs the task several times. `plain` is the answer without drafts, if it is known."""
        speculator = None if way.kind == "none" else Speculator(task.most, self._proposers(way, task, plain))
        engine = Engine(self._headed if way.kind == "head" and self._headed else self._runner, speculator=speculator)
        generate(engine, task.prompt, task.count)
        before = engine.drafted, engine.accepted
        runs = [generate(engine, task.prompt, task.count) for _ in range(task.repeats)]
        drafted, accepted = engine.drafted - before[0], engine.accepted - before[1]
        rates = [1 / seconds for _, seconds in runs]
        return Answers(runs[-1][0], rates, drafted // task.repeats, accepted // task.repeats)

    def _proposers(self, way: Way, task: Task, plain: list[int]) -> list[Proposer]:
        """Returns the source of drafts."""
        known = None if way.right is None else Known({tuple(task.prompt): plain}, way.right)
        if way.kind == "lookup":
            return [PromptLookup()]
        if way.kind == "model" and self._small is not None:
            return [DraftModel(self._small) if known is None else KnownModel(self._small, known)]
        if way.kind == "head" and self._headed is not None:
            return [HeadDrafts(self._headed) if known is None else KnownHead(self._headed, known)]
        return [known] if known else []

    def close(self) -> None:
        for runner in filter(None, (self._small, self._headed, self._runner)):
            runner.close()


class Theirs:
    """A build of llama.cpp. Its drafts have the length that was the fastest."""

    def __init__(self, peer: Peer) -> None:
        self.name, self._peer = peer.name, peer

    def answer(self, way: Way, task: Task, plain: list[int]) -> Answers:
        found = []
        for length in [0] if way.kind == "none" else task.lengths:
            question = {"ids": task.prompt, "count": task.count, "kind": way.kind, "length": length}
            question |= {"right": way.right, "answer": plain}
            _, *runs = [self._peer.asked(question) for _ in range(task.repeats + 1)]
            rates = [(task.count - 1) / run["seconds"] for run in runs]
            found.append(Answers(runs[-1]["tokens"], rates, runs[-1]["drafted"], runs[-1]["accepted"], length))
        return max(found, key=lambda one: statistics.mean(one.rates))


def runner_of(device: Device, file: GGUFFile, task: Task, *, heads: bool = False, **options: Any) -> GpuRunner:
    """Loads a model with room for one answer, and with its head if it has one."""
    model = load_model(file)
    if heads:
        with drafts_of(DraftOptions(), file, model) as found:
            model = found.in_use(model)
            if found.head is None:
                raise BadInput(f"{file.path}: has no head that drafts")
    context = min(task.room, model.context or task.room) if model.caches else None
    return GpuRunner(device, file, model, slots=1, context=context, cache_bytes=0, **options)


def cells(way: Way, sides: list[Ours | Theirs], task: Task, plain: dict[str, Answers]) -> list[str]:
    """Measures one row of the table. A side whose process ends is removed from `sides`."""
    found = [way.name]
    for side in list(sides):
        try:
            if way.kind == "head" and isinstance(side, Theirs):
                found += ["", "", "", ""]
                continue
            known = plain[side.name].tokens if side.name in plain else []
            each = side.answer(way, task, known)
        except Ended as end:
            click.echo(str(end), err=True)
            sides.remove(side)
            continue
        first = plain.setdefault(side.name, each)
        place = next((i for i, (a, b) in enumerate(zip(each.tokens, first.tokens, strict=True)) if a != b), None)
        if place is not None:  # rounding can cause it
            click.echo(f"{side.name}, {way.name}: another answer from token {place} on", err=True)
        times = statistics.mean(each.rates) / statistics.mean(first.rates)
        found += [
            shown(each.rates),
            f"{times:.2f}",
            str(each.length or ""),
            "" if way.kind == "none" else each.acceptance,
        ]
    return found


def prompt_of(text: str | None, file: GGUFFile, length: int, again: int) -> list[int]:
    """Returns the tokens of a text, or random tokens that repeat."""
    if text is not None:
        return load_tokenizer(file.metadata).encode(Path(text).read_text(encoding="utf-8"))
    random: list[int] = np.random.default_rng(0).integers(FIRST_ID, LAST_ID, length).tolist()
    return random * again


def ways(lookup: bool, draft: str | None, right: str, *, heads: bool = False) -> list[Way]:
    shares: list[float | None] = [float(part) for part in right.split(",") if part]
    found = [Way("none")] + [Way("lookup")] * lookup + [Way("known", share) for share in shares]
    found += [Way("model", share) for share in shares or [None]] * (draft is not None)
    return found + [Way("head", share) for share in shares or [None]] * heads


@click.command()
@click.argument("model")
@click.option("--peer", "specs", type=Spec.read, multiple=True, metavar="[NAME=]PYTHON[:FOLDER]")
@click.option("--lookup", is_flag=True, help="Draft by prompt lookup.")
@click.option("--draft", help="A small model, a file or a synthetic name.")
@click.option("--heads", is_flag=True, help="Draft by the model's own head; this side only.")
@click.option("--right", default="", help="Draft known tokens, of which these shares are right.")
@click.option("--lengths", default="1,3,7", help="Lengths of llama.cpp's drafts; the last is the maximum of ours.")
@click.option("--text", help="A file with the prompt; otherwise random tokens.")
@click.option("--prompt", "length", default=32, help="Random tokens of the prompt.")
@click.option("--again", default=2, help="Times that they come in the prompt.")
@click.option("-n", "count", default=256, help="Tokens of an answer.")
@click.option("-r", "--repeats", type=click.IntRange(1), default=3)
@click.option("--threads", default=0, help="Threads of llama.cpp's CPU backend; 0 lets it choose.")
@click.option("--patience", default=120.0, help="Seconds to wait for a peer.")
@click.option("--matrix-units", is_flag=True)
@device_option
def main(
    model: str,
    specs: Sequence[Spec],
    lookup: bool,
    draft: str | None,
    heads: bool,
    right: str,
    lengths: str,
    text: str | None,
    length: int,
    again: int,
    count: int,
    repeats: int,
    threads: int,
    patience: float,
    matrix_units: bool,
    device: str,
) -> None:
    """Prints a row for each way to draft."""
    adapter = adapter_of(device)
    with ExitStack() as stack:
        path = stack.enter_context(as_file(model))
        small_path = stack.enter_context(as_file(draft)) if draft else None
        file = stack.enter_context(GGUFFile.open(path))
        small = stack.enter_context(GGUFFile.open(small_path)) if small_path else None
        prompt = prompt_of(text, file, length, again)
        task = Task(prompt, count, repeats, [int(part) for part in lengths.split(",")], heads)
        options = ["--rollback", str(task.most)] + (["--draft", small_path] if small_path else [])
        peers = [Peer(spec, path, threads, patience, options, SCRIPT) for spec in specs]
        for peer in peers:
            stack.callback(peer.close)
        ours = Ours(Device(adapter, matrix_units=matrix_units), file, small, task)
        stack.callback(ours.close)
        click.echo(f"{Path(path).stem}, {len(prompt)} tokens of prompt, {count} of answer\n\nrwkv-gpu: {adapter}")
        sides: list[Ours | Theirs] = [ours, *map(Theirs, loaded(peers))]
        columns = ["drafts"]
        for side in sides:
            columns += [f"{side.name}, tok/s", "times", "length", "accepted"]
        click.echo(f"\n| {' | '.join(columns)} |\n|---|{'--:|' * (len(columns) - 1)}")
        plain: dict[str, Answers] = {}
        for way in ways(lookup, draft, right, heads=heads):
            click.echo(f"| {' | '.join(cells(way, sides, task, plain))} |")


if __name__ == "__main__":
    main()
