"""What drafts give by what steps take: the engine itself, with simulated models on a simulated GPU and its clock.

    python -m benchmarks.simulate_drafts --steps 2.0:2.55,3.14,4.37,5.2,5.3 --draft 0.66:0.5 --right 0.95,0.9,0.8,0.7

`--steps` has the milliseconds of a step of the model: of one row submitted ahead, and of 1, 2, 4, 8 (16) rows that are
waited for, as `benchmarks.verifying` tells them. `--draft` has those of a step of the draft model on the GPU, and of
the round trip behind the last; without it drafts cost nothing. Kernels compile at first use. Times vary, and now and
then the host pauses for several milliseconds, as a garbage collector makes it.
"""

import statistics
import struct
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any, NamedTuple

import click
import numpy as np

from rwkv_gpu.engine.adapters import NO_ADAPTERS
from rwkv_gpu.engine.cache.kv import PageTables
from rwkv_gpu.engine.device_sampling import SampledRow
from rwkv_gpu.engine.engine import Engine
from rwkv_gpu.engine.request import Request
from rwkv_gpu.engine.runner import Logits, Output, Runner, StateArrays, store_of
from rwkv_gpu.engine.sampling_params import SamplingParams
from rwkv_gpu.engine.sequence import TokenSequence
from rwkv_gpu.engine.speculation.draft_model import DraftModel
from rwkv_gpu.engine.speculation.proposer import Proposer
from rwkv_gpu.engine.speculation.speculator import Speculator
from rwkv_gpu.engine.step_result import SamplingInputs, StepResult
from rwkv_gpu.ops.batch import Batch
from rwkv_gpu.ops.vocabulary import Cache

from .lookup import Steps, read_steps

VOCABULARY = 1000
PROMPT = 64  # tokens
AHEAD = 7  # steps under way
READ = 0.03  # of what a step of one row takes: a row of a prompt, on many rows
COMPILE = 0.5  # seconds of a plan
VARIES = 0.05  # of a time, its standard deviation


class DraftTimes(NamedTuple):
    """Milliseconds of a draft model."""

    step: float  # on the GPU, one behind the other
    back: float  # until the host knows the tokens of the last


@dataclass
class Machine:
    """A GPU that computes one step after the other, and a host; both by a clock of their own, in seconds."""

    random: np.random.Generator
    pauses: float = 0.0  # of so many seconds
    seldom: float = 0.0  # before a step, with such a probability
    now: float = 0.0
    free: float = 0.0  # when the GPU has done all that was submitted

    def clock(self) -> float:
        return self.now

    def submit(self, seconds: float, host: float) -> float:
        """A step; gives when it ends."""
        self.now += host + (self.pauses if self.random.random() < self.seldom else 0.0)
        begins = max(self.now, self.free)
        self.free = begins + seconds * max(0.5, 1 + VARIES * self.random.standard_normal())
        return self.free


@dataclass
class Pending:
    """A step under way."""

    machine: Machine
    ends: float
    rows: list[SampledRow]

    def wait(self) -> StepResult:
        self.machine.now = max(self.machine.now, self.ends)
        return StepResult(self.rows, None)


@dataclass
class Times:
    """Seconds of a model's steps."""

    rows: Sequence[float]  # on the GPU, of 1, 2, 4, ... rows
    host: float  # before a step is submitted
    back: float  # until its result is known

    def of(self, rows: int) -> float:
        at, last = (rows - 1).bit_length(), len(self.rows) - 1
        beyond = max(0, rows - (1 << last)) * READ * self.rows[0]
        return self.rows[min(at, last)] + beyond

    @classmethod
    def of_model(cls, steps: Steps) -> "Times":
        """Where steps of one row keep the GPU busy, what is waited for takes the round trip more."""
        host, trip = 0.06e-3, 1e-3 * (steps.waited[0] - steps.ahead)
        return cls([1e-3 * one - trip for one in steps.waited], min(host, trip), max(0.0, trip - host))

    @classmethod
    def of_draft(cls, times: DraftTimes) -> "Times":
        """The host fills in the next step while the GPU computes one."""
        host = min(0.7 * times.step, times.back)
        return cls([1e-3 * times.step], 1e-3 * host, 1e-3 * (times.back - host))


class SimulatedRunner(Runner):
    """Steps that take their time and sample known tokens: those at a position, of which some share is `right`."""

    compile_seconds = 0.0
    ahead = AHEAD

    def __init__(self, machine: Machine, times: Times, right: float = 1.0, **options: Any) -> None:
        cache: Any = SimpleNamespace(
            vocabulary=VOCABULARY, caches=[Cache("", 1, 1)], states=[], context=1 << 20, weights=[]
        )
        options = {"slots": 1, "context": 1 << 14, "cache_bytes": 0, **options}
        chunk_size = options.pop("chunk_size", 512)
        super().__init__(cache, NO_ADAPTERS, chunk_size, options)  # type: ignore[arg-type]
        self.right = right
        self._machine, self._times = machine, times
        self._compiled: set[int] = set()
        self.store = store_of(cache, self.cache_config, PageTables.of(cache.caches, self.cache_config), _no_copy)

    def submit(self, batch: Batch, sampling: SamplingInputs) -> Pending:
        assert len(sampling.rows) == len(batch.outputs)
        machine, size = self._machine, (batch.rows - 1).bit_length()
        if size not in self._compiled:
            self._compiled.add(size)
            self.compile_seconds += COMPILE
            machine.now += COMPILE
        ends = machine.submit(self._times.of(batch.rows), self._times.host) + self._times.back
        positions = batch.places()[:, 0]
        tokens = [token_at(int(positions[row]) + 1) for row in batch.outputs]
        lucky = machine.random.random(len(tokens)) < self.right
        data = b"".join(
            struct.pack("=IfI4x", token ^ int(not right), 0.0, 0) for token, right in zip(tokens, lucky, strict=True)
        )
        return Pending(machine, ends, SampledRow.rows(data, len(tokens)))

    def warm_up(self) -> Iterator[None]:
        return iter(())

    def remember(self, slot: int, ids: Sequence[int], params: SamplingParams) -> None: ...

    def run(self, batch: Batch, what: Output) -> Logits:
        raise NotImplementedError

    def read_state(self, slot: int) -> StateArrays:
        raise NotImplementedError

    def put_state(self, slot: int, states: StateArrays) -> None:
        raise NotImplementedError

    def close(self) -> None: ...


def _no_copy(*_: Any) -> None:
    """No page has any bytes."""


def token_at(position: int) -> int:
    """The known text, in which no run comes again soon."""
    return (position * position * 7 + position * 13) % VOCABULARY


class Free(Proposer):
    """Drafts that cost nothing."""

    def __init__(self, random: np.random.Generator, right: float) -> None:
        self._random, self._right = random, right

    def draft(self, wanted: Sequence[tuple[TokenSequence, int]]) -> dict[TokenSequence, list[int]]:
        drafts = {}
        self.steps = max(most for _, most in wanted)
        for sequence, most in wanted:
            lucky = self._random.random(most) < self._right
            drafts[sequence] = [token_at(len(sequence.ids) + i) ^ int(not good) for i, good in enumerate(lucky)]
        return drafts


class Gain(NamedTuple):
    """What drafts gave."""

    times: float  # faster than without
    accepted: int
    drafted: int


@dataclass(frozen=True)
class Setup:
    """What is simulated."""

    steps: Steps
    draft: DraftTimes | None
    most: int
    sequences: int = 1
    pauses: float = 0.0
    seldom: float = 0.0

    def engine(self, seed: int, right: float | None) -> tuple[Engine, Machine]:
        """An engine that knows nothing yet; without drafts where none are `right`."""
        machine = Machine(np.random.default_rng(seed), self.pauses, self.seldom)
        runner = SimulatedRunner(machine, Times.of_model(self.steps), drafts=self.most, slots=self.sequences)
        if right is None:
            return Engine(runner, clock=machine.clock), machine
        drafter: Proposer = Free(machine.random, right)
        if self.draft is not None:
            small = SimulatedRunner(
                machine, Times.of_draft(self.draft), right, slots=self.sequences, rewind=self.most + 1, look_ahead=0
            )
            drafter = DraftModel(small)
        speculator = Speculator(self.most, [drafter])
        return Engine(runner, speculator=speculator, clock=machine.clock), machine


def answer(engine: Engine, machine: Machine, tokens: int, sequences: int = 1) -> float:
    """Seconds a token of some answers at a time, from when all have begun, without those of compiling."""
    params = SamplingParams(temperature=0, max_tokens=tokens)
    lengths = {}  # of texts
    for i in range(sequences):
        prompt = [token_at(place) for place in range(PROMPT + i)]
        lengths[engine.add(Request(prompt, params))] = len(prompt)
    prompts, began, first = dict(lengths), 0.0, 0
    while engine.busy:
        for update in engine.step():
            if update.error is not None:
                raise update.error
            for one in update.sampled:
                assert one.token == token_at(lengths[update.id]), "drafts change no answer"
                lengths[update.id] += 1
        if not first and all(lengths[id] > prompts[id] for id in lengths):
            began, first = machine.now - engine.compile_seconds, sum(lengths.values())
    return (machine.now - engine.compile_seconds - began) / (sum(lengths.values()) - first)


def gain(setup: Setup, right: float, tokens: int, *, seed: int, answers: int = 1, skipped: int = 1) -> Gain:
    """Of some answers of an engine that has given others before."""
    plain, machine = setup.engine(seed, None)
    without = statistics.mean(answer(plain, machine, tokens, setup.sequences) for _ in range(skipped + answers))
    engine, machine = setup.engine(seed, right)
    for _ in range(skipped):
        answer(engine, machine, tokens, setup.sequences)
    before = engine.accepted, engine.drafted
    taken = statistics.mean(answer(engine, machine, tokens, setup.sequences) for _ in range(answers))
    return Gain(without / taken, engine.accepted - before[0], engine.drafted - before[1])


def read_draft(text: str) -> DraftTimes:
    """0.66:0.5"""
    step, _, back = text.partition(":")
    return DraftTimes(float(step), float(back or 0))


@click.command()
@click.option("--steps", type=read_steps, default="2.0:2.55,3.14,4.37,5.2,5.3", show_default=True)
@click.option("--draft", type=read_draft, metavar="MS:MS", help="A step of a draft model, and its round trip.")
@click.option("--right", default="0.95,0.9,0.8,0.7,0.5", show_default=True)
@click.option("-n", "tokens", default=256, show_default=True, help="Tokens of an answer.")
@click.option("--sequences", default=1, show_default=True, help="Answers at a time.")
@click.option("--answers", default=2, show_default=True, help="Of an engine, behind its first.")
@click.option("--engines", default=20, show_default=True)
@click.option("--pauses", type=float, default=0.0, help="Milliseconds that the host pauses.")
@click.option("--seldom", default=0.01, show_default=True, help="How often it does, before a step.")
def main(
    steps: Steps,
    draft: DraftTimes | None,
    right: str,
    tokens: int,
    sequences: int,
    answers: int,
    engines: int,
    pauses: float,
    seldom: float,
) -> None:
    """Prints a row for each chance of a token."""
    setup = Setup(steps, draft, steps.most, sequences, 1e-3 * pauses, seldom if pauses else 0.0)
    click.echo(
        "| right | first answer | later ones | the worst | accepted | tokens drafted |\n|---|--:|--:|--:|--:|--:|"
    )
    for share in map(float, right.split(",")):
        first = [gain(setup, share, tokens, seed=seed, skipped=0).times for seed in range(engines)]
        later = [gain(setup, share, tokens, seed=seed, answers=answers) for seed in range(engines)]
        times = [one.times for one in later]
        accepted, drafted = (sum(each) / engines / answers for each in zip(*(one[1:] for one in later), strict=True))
        shown = f"{accepted / drafted:.0%}" if drafted else ""
        cells = f"{share:.0%}", f"{statistics.mean(first):.2f}", f"{statistics.mean(times):.2f}", f"{min(times):.2f}"
        click.echo(f"| {' | '.join(cells)} | {shown} | {drafted:.0f} |")


if __name__ == "__main__":
    main()
