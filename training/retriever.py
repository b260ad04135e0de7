"""Trains the retriever of the built-in help: rwkv_gpu/builtin/retriever.npz.

    python -m training.retriever             # a few minutes on a CPU
    python -m training.retriever --warm      # goes on from the weights that there are, in a quarter of the time
    python -m training.retriever --held-out  # leaves out every fifth wording, and measures with these

Each known question is an example of its entry, changed in each epoch as people type: words left out, misspelt,
replaced by synonyms, moved, with courtesies before them. Words of the answers are examples, too.
"""

import argparse
import random
import re
import time
import zlib
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
import numpy.typing as npt

from rwkv_gpu.builtin import help, index, retriever
from rwkv_gpu.builtin.retriever import ELSEWHERE, SMALL_TALK, SUM, Retriever, pieces
from rwkv_gpu.builtin.search import Search
from rwkv_gpu.builtin.words import stem

from . import help_index
from .grammar import expand

SUMS = Path(__file__).with_name("calculations.txt")
SIZE, BATCH, RATE = 64, 256, 0.01
WARM = 0.003  # the rate where weights were learnt before
SPREAD, LEARNT = 0.1, 0.3  # how large weights are before training and after it
NO_SUM = -1  # in place of the number of a name: any but SUM
SHORT = 3  # words; shorter questions are never held out
BEFORE = (
    "hi, ", "please ", "hey ", "ok so ", "question: ", "can you tell me ", "sorry, ", "i need to know ", "so ", "and ",
    "hello, i wonder ", "quick one: ", "guys ", "how do i ", "how to ", "is there a way: ", "pls help, ",
)  # fmt: skip
AFTER = (" please", " pls", "?", "??", " thanks", " here", " in rwkv-gpu", " with this", " now", ", any idea")
Floats = npt.NDArray[np.float32]


@dataclass(frozen=True)
class Example:
    """A question and the number of what it asks for."""

    text: str
    of: int
    exact: bool = False  # not one of those that people typed: never held out


@dataclass(frozen=True)
class Examples:
    """What is learnt."""

    names: tuple[str, ...]
    known: list[Example]
    words: list[list[str]]  # of each entry: its answer, and other words for it


def examples() -> Examples:
    """All known questions, of entries, of other passages, of small talk and of sums."""
    search, _ = index.read()
    forms, also = help_index.forms(), help_index.vocabulary()
    entries = [passage for passage in search.passages if passage.weight == 1.0 and passage.asked[0] in forms]
    names = (*(passage.asked[0] for passage in entries), ELSEWHERE, SMALL_TALK, SUM)
    number = {name: n for n, name in enumerate(names)}
    known = [Example(title, number[title], exact=True) for title in names if title in forms]
    known += [Example(form, number[title]) for title, asked in forms.items() if title in number for form in asked]
    for passage in search.passages:
        if passage.asked and passage.asked[0] not in forms:
            known += [Example(asked, number[ELSEWHERE], exact=True) for asked in passage.asked[:6]]
    known += [Example(text, number[SMALL_TALK], exact=True) for text in search.small_talk]
    known += [Example(text, number[SUM] if asks else NO_SUM, exact=True) for asks, text in calculations()]
    words = [re.findall(r"[a-z][a-z-]{2,}", f"{also.get(p.asked[0], '')} {p.text}".lower()) for p in entries]
    return Examples(names, known, words)


def calculations(times: int = 3) -> list[tuple[bool, str]]:
    """Questions for a calculation, and others with numbers in them, which begin with an exclamation mark."""
    rng = random.Random(0)
    slots = {"n": (2, 99), "big": (100, 9000), "year": (1900, 2030), "small": (2, 9)}

    def number(name: str) -> str:
        return str(rng.randint(*slots[name]))

    lines = [line for line in SUMS.read_text(encoding="utf-8").splitlines() if line and not line.startswith("#")]
    every = ((not line.startswith("! "), line.removeprefix("! ")) for line in lines)
    return [(asks, other_numbers(expand(line, rng, number), rng)) for asks, line in every for _ in range(times)]


def other_numbers(text: str, rng: random.Random) -> str:
    """A text in which other numbers of as many digits may stand."""

    def other(found: re.Match[str]) -> str:
        digits = "".join(rng.choice("123456789") for _ in found[0])
        return digits if rng.random() < 0.7 else found[0]

    return re.sub(r"(?<![\w.,:-])\d+(?![\w.,:-])", other, text)


def typed(text: str, synonyms: dict[str, list[str]], rng: random.Random) -> str:
    """A question as somebody else might type it."""
    words, found = text.split(), []
    for word in words:
        roll = rng.random()
        if roll < 0.16 and len(words) > 3:
            continue
        if roll < 0.22:
            word = misspelt(word, rng)
        elif roll < 0.36 and (others := synonyms.get(stem(word.lower().strip("?,.")))):
            word = rng.choice(others)
        found.append(word)
    if rng.random() < 0.1 and len(found) > 4:
        cut = rng.randrange(1, len(found))
        found = found[cut:] + found[:cut]
    before = rng.choice(BEFORE) if rng.random() < 0.25 else ""
    return before + " ".join(found) + (rng.choice(AFTER) if rng.random() < 0.15 else "")


def misspelt(word: str, rng: random.Random) -> str:
    """A word with a letter left out, doubled, changed, or exchanged with the next."""
    if len(word) < 4 or not word.isalpha():
        return word
    at = rng.randrange(1, len(word) - 1)
    other = rng.choice("abcdefghijklmnopqrstuvwxyz")
    return rng.choice(
        (
            word[:at] + word[at + 1 :],
            word[:at] + word[at] + word[at:],
            word[:at] + other + word[at + 1 :],
            word[:at] + word[at + 1] + word[at] + word[at + 2 :],
        )
    )


class Adam:
    """Adam, for one matrix."""

    def __init__(self, values: Floats) -> None:
        self.values = values
        self._mean, self._square, self._steps = np.zeros_like(values), np.zeros_like(values), 0

    def step(self, gradient: Floats, rate: float) -> None:
        self._steps += 1
        self._mean += 0.1 * (gradient - self._mean)
        self._square += 0.01 * (gradient**2 - self._square)
        mean, square = self._mean / (1 - 0.9**self._steps), self._square / (1 - 0.99**self._steps)
        self.values -= rate * mean / (np.sqrt(square) + 1e-6)


def unit(values: Floats) -> tuple[Floats, Floats]:
    """Rows of length 1, and how long they were."""
    length = np.sqrt((values**2).sum(1, keepdims=True)) + 1e-6
    return values / length, length


def through(gradient: Floats, direction: Floats, length: Floats) -> Floats:
    """The gradient of rows, from that of their directions."""
    return (gradient - direction * (gradient * direction).sum(1, keepdims=True)) / length


def start(names: Sequence[str], last: Retriever | None) -> tuple[Floats, Floats]:
    """The table and the vectors of answers to begin with: random ones, or those of the last training."""
    normal = np.random.default_rng(0)
    table = normal.normal(0, SPREAD, (retriever.ROWS, SIZE)).astype(np.float32)
    answers = normal.normal(0, SPREAD, (len(names), SIZE)).astype(np.float32)
    if last:
        table = last.table.astype(np.float32)
        table *= LEARNT / np.sqrt((table**2).mean())
        known = dict(zip(last.names, unit(last.answers.astype(np.float32))[0], strict=True))
        answers = np.stack([known.get(name, one) for name, one in zip(names, answers, strict=True)])
    return table, answers


def train(of: Examples, known: list[Example], epochs: int, last: Retriever | None = None) -> tuple[Floats, Floats]:
    """The table and the vectors of answers: softmax over cosines, Adam with a rate that falls to zero."""
    rng = random.Random(0)
    synonyms = {word: sorted(others) for word, others in index.read()[0].synonyms.items()}
    table, answers = map(Adam, start(of.names, last))
    highest = WARM if last else RATE
    steps = [part for _ in range(epochs) for part in batches(known, rng)]
    for done, batch in enumerate(steps):
        batch = [replace(one, text=typed(one.text, synonyms, rng)) if rng.random() < 0.85 else one for one in batch]
        entries = (rng.randrange(len(of.words)) for _ in range(BATCH // 10))
        batch += [Example(" ".join(rng.sample(of.words[n], min(4, len(of.words[n])))), n) for n in entries]
        rows = [np.fromiter(pieces(one.text), np.int64) for one in batch]
        sizes = np.array([len(row) for row in rows])
        every, starts = np.concatenate(rows), np.cumsum(sizes) - sizes
        asked, length = unit(np.add.reduceat(table.values[every], starts, axis=0))
        answer, answer_length = unit(answers.values)
        scores = retriever.SHARP * asked @ answer.T
        shares = np.exp(scores - scores.max(1, keepdims=True))
        shares /= shares.sum(1, keepdims=True)
        shares -= targets(shares, np.array([one.of for one in batch]))
        shares *= retriever.SHARP / len(batch)
        gradient = np.repeat(through(shares @ answer, asked, length), sizes, axis=0)
        order = np.argsort(every, kind="stable")
        which, first = np.unique(every[order], return_index=True)
        whole = np.zeros_like(table.values)
        whole[which] = np.add.reduceat(gradient[order], first, axis=0)
        rate = highest * (1 - done / len(steps))
        table.step(whole, rate)
        answers.step(through(shares.T @ asked, answer, answer_length), rate)
    return table.values, answers.values


def targets(shares: Floats, right: npt.NDArray[np.int64]) -> Floats:
    """1 for what is right. Where only a sum is wrong, what is guessed without it."""
    found = np.zeros_like(shares)
    found[:, :-1] = shares[:, :-1] / (shares[:, :-1].sum(1, keepdims=True) + 1e-9)
    found[right != NO_SUM] = np.eye(shares.shape[1], dtype=np.float32)[right[right != NO_SUM]]
    return found


def batches(known: list[Example], rng: random.Random) -> list[list[Example]]:
    mixed = rng.sample(known, len(known))
    return [mixed[at : at + BATCH] for at in range(0, len(mixed), BATCH)]


def left_out(text: str) -> bool:
    """Whether a question is one of every five that are left out."""
    return len(text.split()) >= SHORT and zlib.crc32(text.encode()) % 5 == 0


def held_out(of: Examples, epochs: int) -> None:
    """Which share of wordings that nobody learnt is among the first one, two and three answers."""
    texts = {one.text for one in of.known if not one.exact and left_out(one.text)}
    left = [one for one in of.known if one.text in texts]
    known = [one for one in of.known if one.text not in texts]
    trained = retriever.quantised(of.names, *train(of, known, epochs))
    search, everyday = index.read()
    kept = [
        replace(passage, asked=tuple(asked for asked in passage.asked if asked not in texts))
        for passage in search.passages
    ]
    without = help.Help(Search(kept, search.synonyms, search.small_talk), everyday, trained)
    title = {number: passage.asked[0] for number, passage in enumerate(kept) if passage.asked}
    for weight in (0.0, 1.0, 2.0, 3.0, 5.0, 1e3):
        found = np.zeros(3)
        for one in left:
            guess = {name: share * weight / help.GUESS for name, share in trained.guess(one.text).items()}
            ranked = without.ranked(without.search.ranked(without.search.read(one.text, everyday)), guess)
            first = [title.get(number, "") for _, number in ranked[:3]]
            found += [of.names[one.of] in first[:count] for count in (1, 2, 3)]
        print(f"{weight:6g}  " + "  ".join(f"{share:.3f}" for share in found / len(left)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--held-out", action="store_true")
    parser.add_argument("--warm", action="store_true", help="go on from the weights that there are")
    parser.add_argument("--epochs", type=int, help="times that each question is seen: 20, or 5 with --warm")
    args = parser.parse_args()
    epochs = args.epochs or (5 if args.warm else 20)
    last = retriever.load() if args.warm else None
    begun = time.perf_counter()
    of = examples()
    print(f"{len(of.known)} questions of {len(of.names)} kinds")
    if args.held_out:
        held_out(of, epochs)
    else:
        retriever.save(retriever.WEIGHTS, retriever.quantised(of.names, *train(of, of.known, epochs, last)))
    print(f"in {time.perf_counter() - begun:.0f} s")


if __name__ == "__main__":
    main()
