"""How soon a long conversation goes on: the first token after a new question, by us and by llama.cpp, in turns.

    python -m benchmarks.talk granite4-h-tiny-7b-q4_k_m --peer CUDA=python3:cuda --matrix-units

A conversation of `--tokens` tokens has `--turns` turns, the last of which is a question of `--question` tokens. It goes
on where it ended, the answer before it is another one (a client left thoughts out, or the user regenerated it), or an
earlier question was edited. We keep states and pages by ourselves. llama.cpp's side does what a slot of llama-server
does: it computes what the slot does not hold, and all of it where a recurrent state cannot be cut. A server that stores
checkpoints of states (`--ctx-checkpoints`) may find one near; that is not measured.
"""

import statistics
import time
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import click
import numpy as np

from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.gpu_runner import GpuRunner
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.gguf.file import GGUFFile
from rwkv_gpu.gpu.adapters import choose, list_adapters
from rwkv_gpu.gpu.device import Device
from rwkv_gpu.measure.synthetic import open_synthetic
from rwkv_gpu.models.registry import load_model

from .peers import as_file, loaded
from .sides import Peer, Spec


@dataclass(frozen=True)
class Talk:
    """A conversation of random tokens: turns of equal length, each a question and an answer."""

    tokens: int
    turns: int
    question: int

    @property
    def turn(self) -> int:
        """Tokens of a turn."""
        return self.tokens // self.turns

    def ids(self, count: int, seed: int) -> list[int]:
        """Other ones for every seed."""
        return np.random.default_rng(seed).integers(3, 250, count).tolist()

    @property
    def before(self) -> list[int]:
        """All turns but the last."""
        return self.ids(self.turn * (self.turns - 1), 0)

    def prompts(self, seed: int) -> Iterator[tuple[str, list[int]]]:
        """What is asked, by the way in which it goes on."""
        before, question, answer = self.before, self.ids(self.question, seed), self.turn - self.question
        yield "goes on", [*before, *question]
        yield "the last answer is another", [*before[:-answer], *self.ids(answer, -seed % 999), *question]
        half = self.turn * (self.turns // 2)
        yield "a question half way is edited", [*before[:half], *question]


def first_token(engine: Engine, ids: list[int], marks: tuple[int, ...]) -> tuple[float, int]:
    """Seconds to the first token, and how many tokens were not computed again."""
    begin = time.perf_counter()
    engine.add(Request(ids, SamplingParams(temperature=0, max_tokens=1), keep=True, marks=marks))
    while True:
        for update in engine.step():
            if update.sampled:
                return time.perf_counter() - begin, update.reused


def hold(engine: Engine, talk: Talk) -> None:
    """Has the conversation so far, turn by turn, as a chat comes."""
    engine.prefixes.clear()
    for end in range(talk.turn, talk.turn * talk.turns, talk.turn):
        first_token(engine, talk.before[:end], (end - talk.turn + talk.question,))


def measure(runner: GpuRunner, peers: list[Peer], talk: Talk, repeats: int) -> Iterator[str]:
    """A row for each way to go on: the median of all sides, in turns."""
    engine = Engine(runner)
    first_token(engine, talk.before[: talk.turn], ())  # pipelines are compiled
    hold(engine, talk)
    for number, (what, _) in enumerate(talk.prompts(1)):
        taken: list[list[float]] = [[] for _ in range(1 + len(peers))]
        reused = 0
        for seed in range(repeats + 1):
            _, ids = list(talk.prompts(1000 * number + seed + 1))[number]
            hold(engine, talk)
            seconds, reused = first_token(engine, ids, ())
            taken[0].append(seconds)
            for peer, times in zip(peers, taken[1:], strict=True):
                times.append(peer.turn(talk.before, ids))
        # The first time records plans of such steps, which no later turn does; nor is it counted for peers.
        ours, *theirs = (1e3 * statistics.median(times[1:]) for times in taken)
        others = "".join(f" {each:,.0f} | {each / ours:.1f} |" for each in theirs)
        yield f"| {what} | {len(ids):,} | {reused:,} | {ours:,.1f} |{others}"


@click.command()
@click.argument("model")
@click.option("--peer", "specs", type=Spec.read, multiple=True, metavar="[NAME=]PYTHON[:FOLDER]")
@click.option("--tokens", default=20_000, help="Of the whole conversation.")
@click.option("--turns", default=20)
@click.option("--question", default=50, help="Tokens of each question.")
@click.option("--device", default="auto")
@click.option("--chunk-size", default=512)
@click.option("-r", "--repeats", type=click.IntRange(1), default=3)
@click.option("--threads", default=0, help="Of llama.cpp's CPU backend; 0 is its own choice.")
@click.option("--patience", default=120.0, help="Seconds after which a peer is given up.")
@click.option("--matrix-units", is_flag=True)
def main(
    model: str,
    specs: tuple[Spec, ...],
    tokens: int,
    turns: int,
    question: int,
    device: str,
    chunk_size: int,
    repeats: int,
    threads: int,
    patience: float,
    matrix_units: bool,
) -> None:
    """Prints a row for each way in which the conversation goes on."""
    talk, adapter = Talk(tokens, turns, question), choose(list_adapters(), device).adapter
    assert adapter is not None, "this measures a GPU"
    with ExitStack() as stack:
        path = stack.enter_context(as_file(model)) if specs else model
        peers = [Peer(spec, path, threads, patience) for spec in specs]  # load while we do
        for peer in peers:
            stack.callback(peer.close)
        file = stack.enter_context(GGUFFile.open(path) if Path(path).exists() else open_synthetic(path))
        opened = stack.enter_context(Device(adapter, matrix_units=matrix_units))
        runner = GpuRunner(opened, file, load_model(file), slots=1, chunk_size=chunk_size, context=tokens + 256)
        click.echo(f"{model}, {turns} turns of {talk.turn:,} tokens, on {adapter}")
        peers = list(loaded(peers))
        names = "".join(f" {peer.name}, ms | times |" for peer in peers)
        columns = 4 + 2 * len(peers)
        click.echo(f"| it | prompt | of which kept | rwkv-gpu, ms |{names}\n|---|{'--:|' * (columns - 1)}")
        for row in measure(runner, peers, talk, repeats):
            click.echo(row)


if __name__ == "__main__":
    main()
