"""Prompt lookup by kind of text: how many tokens a step of decode gives, for texts that are known.

    python -m benchmarks.lookup

Each task is a prompt and the answer that a good model would give. The answer is replayed through drafts as the engine
makes them, with the built-in model's tokenizer: every token of it is a sampled one. So the figures are of the texts
and not of a model. A step of several rows costs more than one of a single row, by an amount that depends on the device:
tokens per step are the most that drafts can gain.
"""

import itertools
from typing import NamedTuple

import click

import rwkv_gpu
from rwkv_gpu.engine.speculation.acceptance import Drafting, kind_of
from rwkv_gpu.engine.speculation.costs import Candidate, StepCosts, best_widths
from rwkv_gpu.engine.speculation.gate import SpeculationGate
from rwkv_gpu.engine.speculation.lookup import NgramIndex

ARTICLE = """The harbour bridge was closed on Monday morning after engineers found cracks in two of the steel cables on
the northern side. The city council said that the bridge would stay closed for at least three weeks while the
cables are replaced. About forty thousand cars cross the bridge every day, and traffic on the ring road was
already twice as heavy as usual by eight o'clock. Ferries will run every ten minutes between the old port and
the market until the bridge is open again. The council will pay for the ferries, and tickets for buses are
valid on board.""".replace("\n", " ")
SUMMARY = """The harbour bridge was closed on Monday morning after engineers found cracks in two of the steel cables. It
will stay closed for at least three weeks while the cables are replaced. Traffic on the ring road was already
twice as heavy as usual, and ferries will run every ten minutes between the old port and the market until the
bridge is open again.""".replace("\n", " ")
CODE = """def load_users(path):
    users = []
    with open(path) as file:
        for line in file:
            name, age = line.strip().split(",")
            users.append({"name": name, "age": int(age)})
    return users


def oldest(users):
    best = None
    for user in users:
        if best is None or user["age"] > best["age"]:
            best = user
    return best
"""
EDITED = (
    CODE.replace("load_users", "read_people")
    .replace('"age": int(age)', '"age": int(age), "line": line')
    .replace("with open(path) as file:", 'with open(path, encoding="utf-8") as file:')
)
TALK = """I have been thinking about moving to the coast next year. The winters here are long, and my sister already
lives near the sea. What holds me back is work: most of the offices are in the city, and a train takes two
hours each way. Perhaps I could ask for three days a week from home. My friends say I would miss the theatres,
but I have not been to one since last autumn, so that argument does not weigh much.""".replace("\n", " ")
TASKS = {
    "summarising": (f"Summarise this text.\n\n{ARTICLE}\n\nSummary: ", SUMMARY),
    "code edit": (f"Rename load_users to read_people, open the file as UTF-8 and keep the line.\n\n{CODE}\n\n", EDITED),
    "free talk": ("User: What are your plans for next year?\n\nAssistant: ", TALK),
}
MOST = 7  # tokens of a draft, as by default of models with a state


def steps(prompt: list[int], answer: list[int]) -> tuple[int, int, int]:
    """Steps of decode that the answer takes, tokens drafted, and of these accepted. A row more costs little."""
    drafting, costs, text, done, count = Drafting(MOST), StepCosts(), list(prompt), 0, 0
    index = NgramIndex()
    while done < len(answer):
        found, run = index.find(text, MOST)
        drafting.kind = kind_of(run)
        chance = drafting.chance(drafting.kind)
        without = costs.of(1)
        [width] = best_widths([Candidate(chance, len(found))], 1, 1 + MOST, costs.of, 1 / without, without)
        draft, rest = found[:width], answer[done:]
        right = next(
            (i for i, (a, b) in enumerate(zip(draft, rest, strict=False)) if a != b), min(len(draft), len(rest))
        )
        drafting.verified(len(draft), right)
        new = rest[: right + 1]  # the step samples one token more than was right
        text += new
        done += len(new)
        count += 1
    return count, drafting.drafted, drafting.accepted


class Steps(NamedTuple):
    """Milliseconds of steps on some device, as `benchmarks.verifying` tells them."""

    ahead: float  # of one row, submitted ahead
    waited: tuple[float, ...]  # of 1, 2, 4 and 8 rows, maybe of 16

    @property
    def most(self) -> int:
        """Tokens of a draft: with the one before them they are as many rows as the largest step has."""
        return (1 << (len(self.waited) - 1)) - 1

    def of(self, rows: int) -> float:
        """Of a step that is waited for."""
        return self.waited[(rows - 1).bit_length()]


def times_faster(prompt: list[int], answer: list[int], device: Steps) -> float:
    """How many times sooner the answer comes than without drafts, by an engine that knows the device already."""
    gate, costs = SpeculationGate(watches=True), StepCosts()
    for _ in range(3):  # the first is dropped, and one may have been disturbed
        costs.measured(1, device.ahead, ahead=True)
        for i, seconds in enumerate(device.waited):
            costs.measured(1 << i, seconds, ahead=False)
    drafting, index, text, done, took = Drafting(device.most), NgramIndex(), list(prompt), 0, 0.0

    def planned(chance: float, length: int) -> tuple[int, float]:
        draft = Candidate(chance, length)
        [width] = best_widths([draft], 1, 1 + device.most, costs.of, costs.rate(1), costs.of(1))
        return width, costs.relative(1 + width, 1)

    def find() -> tuple[list[int], int]:
        found, run = index.find(text, device.most)
        return found, kind_of(run)

    while done < len(answer):
        gate.decide([drafting], 1, costs)
        right = 0
        if gate.on:
            found, drafting.kind = find()
            draft = found[: planned(drafting.chance(drafting.kind), len(found))[0]] if found else []
            right = sum(1 for _ in itertools.takewhile(lambda pair: pair[0] == pair[1], zip(draft, answer[done:])))  # noqa: B905
            took += device.of(1 + len(draft))
            drafting.verified(len(draft), right)
            gate.verified(1 + right, 1 + len(draft), 1, costs)
        else:
            took += device.ahead
        new = answer[done : done + right + 1]
        text += new
        done += len(new)
        if not gate.on:
            gate.watched(drafting.watch(text[-1], find, planned), 1)
    return len(answer) * device.ahead / took


def read_steps(text: str) -> Steps:
    """1.13:1.6,2.8,3.3,4.4"""
    ahead, _, waited = text.partition(":")
    return Steps(float(ahead), tuple(map(float, waited.split(","))))


@click.command()
@click.option(
    "--steps", "devices", type=read_steps, multiple=True, metavar="MS:MS,MS,MS,MS",
    help="What steps take: of a row submitted ahead, and of 1, 2, 4, 8 (16) that are waited for. Adds a column each.",
)  # fmt: skip
def main(devices: tuple[Steps, ...]) -> None:
    """Prints a row for each kind of text."""
    with rwkv_gpu.load(device="cpu", sequences=1) as llm:
        heads = ["text", "tokens", "steps", "tokens per step", "drafted", "accepted"]
        heads += [f"times faster by {one.ahead} ms" for one in devices]
        print(f"| {' | '.join(heads)} |\n|---|{'--:|' * (len(heads) - 1)}")
        for name, (prompt, answer) in TASKS.items():
            ids = llm.tokenize(prompt), llm.tokenize(answer)
            count, drafted, accepted = steps(*ids)
            share = f"{accepted / drafted:.0%}" if drafted else ""
            cells = [name, len(ids[1]), count, f"{len(ids[1]) / count:.2f}", drafted, share]
            cells += [f"{times_faster(*ids, one):.2f}" for one in devices]
            print(f"| {' | '.join(map(str, cells))} |")


if __name__ == "__main__":
    main()
