"""Sheets: what is said, as text files of questions and answers, some over tables. See `talk/` for how they look.

    weight: 3                    how often the sheet is taken
    columns: one | many          a table; its rows follow, and the blocks after it are about a row
    - cat | cats
    ? what is <a one>            what a user may say: any of the lines
    ! <a one> is an animal.      what is answered: any of the lines
    ? and many of them           a later stage of the same block, which follows the first or is left out
    ! <many>.
    ~ <a one>                    names a row when the question is asked again of another: and a dog?
    * 2                          the block counts twice

Blocks are parted by empty lines.
"""

import functools
import random
from dataclasses import dataclass, field
from pathlib import Path

from .grammar import Slots, expand, names, sentences
from .noise import typed

TALK = Path(__file__).parent / "talk"
Row = dict[str, str]
_ONSETS = (
    "b",
    "c",
    "d",
    "f",
    "g",
    "gr",
    "h",
    "j",
    "k",
    "l",
    "m",
    "n",
    "p",
    "pl",
    "qu",
    "r",
    "s",
    "sn",
    "t",
    "tr",
    "v",
    "w",
    "z",
    "bl",
    "fl",
)
_ENDS = ("", "n", "r", "x", "k", "lo", "ling", "t", "mp", "sh", "bo", "der", "zle")
Turn = tuple[str, str]  # what the user says, what the assistant says


@dataclass
class Block:
    """Questions and their answers, stage by stage, and the rows of a table that it is about."""

    rows: list[Row]
    stages: list[tuple[list[str], list[str]]] = field(default_factory=list)
    again: str = ""
    weight: float = 1.0

    def fitting(self) -> list[Row]:
        """The rows that have all that the block speaks of."""
        asked = {
            name.removeprefix("other.") for stage in self.stages for line in stage[0] + stage[1] for name in names(line)
        }
        if not self.rows:
            return [{}]
        return [row for row in self.rows if all(row.get(name, "?") for name in asked)]


@dataclass
class Sheet:
    """The blocks of a file."""

    name: str
    weight: float = 1.0
    blocks: list[Block] = field(default_factory=list)

    def prepare(self) -> None:
        self.choices = [(block, block.fitting()) for block in self.blocks]
        for block, rows in self.choices:
            whole = bool(rows) and all(answers for _, answers in block.stages)
            assert whole, f"{self.name}: {block}"
        self.weights = [block.weight * (3 if block.rows else 1) for block, _ in self.choices]

    def scene(self, rng: random.Random) -> list[Turn]:
        """A few turns about one thing."""
        block, rows = rng.choices(self.choices, self.weights)[0]
        row = rng.choice(rows)
        turns = [_turn(block, stage, row, rows, rng) for stage in _taken(block, rng)]
        while block.again and len(rows) > 1 and rng.random() < 0.3:
            row = rng.choice([r for r in rows if r is not row])
            ask = rng.choice(("what about ", "and ", "how about ", "and what about ", "what about ")) + block.again
            slots = _slots(row, row, rng)
            answer = sentences(expand(rng.choice(block.stages[0][1]), rng, slots))
            turns.append((typed(expand(ask, rng, slots), rng), answer))
        return turns


def _taken(block: Block, rng: random.Random) -> list[int]:
    return [0, *(i for i in range(1, len(block.stages)) if rng.random() < 0.45)]


def _turn(block: Block, stage: int, row: Row, rows: list[Row], rng: random.Random) -> Turn:
    other = rng.choice([r for r in rows if r is not row] or [row])
    slots = _slots(row, other, rng)
    questions, answers = block.stages[stage]
    question = typed(expand(rng.choice(questions), rng, slots), rng)
    return question, sentences(expand(rng.choice(answers), rng, slots))


def _slots(row: Row, other: Row, rng: random.Random) -> Slots:
    chosen: Row = {}

    def value(name: str) -> str:
        if name in row:
            return row[name]
        if name.startswith("other."):
            return other[name[6:]]
        if name not in chosen:
            chosen[name] = any_of(name, rng)
        return chosen[name]

    return value


def any_of(name: str, rng: random.Random) -> str:
    """A value for a slot that no table gives: of the lists in talk/lists.txt, or made up."""
    name = name.rstrip("0123456789")
    if name == "made" or (name == "person" and rng.random() < 0.2):
        word = made_up(rng)
        return word.capitalize() if name == "person" else word
    return rng.choice(lists()[name])


def made_up(rng: random.Random) -> str:
    """A word that there is not."""
    parts = (rng.choice(_ONSETS) + rng.choice("aeiou") for _ in range(rng.choice((1, 2, 2))))
    return "".join(parts) + rng.choice(_ENDS)


@functools.cache
def lists() -> dict[str, list[str]]:
    """Names and things by the dozen."""
    found: dict[str, list[str]] = {}
    for line in (TALK / "lists.txt").read_text(encoding="utf-8").splitlines():
        name, colon, values = line.partition(":")
        if colon and not line.startswith("#"):
            found.setdefault(name, []).extend(value.strip() for value in values.split(",") if value.strip())
    return found


@functools.cache
def sheets() -> list[Sheet]:
    """All of them."""
    return [read(path) for path in sorted(TALK.glob("*.txt")) if path.name != "lists.txt"]


def read(path: Path) -> Sheet:
    """A sheet from its file."""
    sheet, columns, rows, block = Sheet(path.stem), [], [], None
    for line in path.read_text(encoding="utf-8").splitlines():
        kind, rest = line[:2], line[2:].strip().replace("\\n", "\n")
        if line.startswith("weight:"):
            sheet.weight = float(line[7:])
        elif line.startswith("columns:"):
            columns, rows = [name.strip() for name in line[8:].split("|")], []
        elif kind == "- ":
            values = [value.strip() for value in rest.split("|")]
            assert len(values) == len(columns), f"{path.name}: {line}"
            rows.append(dict(zip(columns, values, strict=True)))
        elif not line.strip() or line.startswith("#"):
            block = None
        else:
            assert kind in ("? ", "! ", "~ ", "* "), f"{path.name}: {line}"
            if block is None:
                block = Block(rows)
                sheet.blocks.append(block)
            _add(block, kind[0], rest)
    sheet.prepare()
    return sheet


def _add(block: Block, kind: str, rest: str) -> None:
    if kind == "?":
        if not block.stages or block.stages[-1][1]:
            block.stages.append(([], []))
        block.stages[-1][0].append(rest)
    elif kind == "!":
        block.stages[-1][1].append(rest)
    elif kind == "~":
        block.again = rest
    else:
        block.weight = float(rest)
