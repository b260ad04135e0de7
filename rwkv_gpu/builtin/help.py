"""Finds the passages of the documentation that answer a question, by the words that they share with it.

`python -m training.help_index` makes the index beside this file, of the documentation and `--help`.
"""

import functools
import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise
from pathlib import Path

INDEX = Path(__file__).with_name("help.tsv")
COVERED = 0.4  # share of a question, by weight, that the best passage must have, or it is only called the nearest
SURE, MAYBE = 0.5, 0.0  # log odds from which on a question is taken to be about the program, or may be
UNKNOWN = -1.5  # what a word says for the program that neither the documentation nor small talk has
RARE = 1e-4  # how often a word is met at least, in small talk and in questions about the program
NEAR = 0.86  # passages that score this share of the best are quoted with it
ALSO = 0.6  # the same for the second of two that are called the nearest
MOST = 3  # passages that are quoted
LONG = 40  # words; what is longer is a text and no question

FROM = "From the docs: "  # before a passage that is the answer
NEAREST = "The nearest that I find in the docs: "  # before passages that share little with the question
NOTHING = "I find nothing about that in the docs. `rwkv-gpu --help` lists the commands, /help those of the chat."

_WORD = re.compile(r"//?[a-z?]+\b|-{0,2}[a-z0-9](?:[\w.+-]*[a-z0-9+])?")
_YOU = re.compile(r"(?i)\b(you|your|u|ur|yourself)\b")
_I = re.compile(r"(?i)\W*(i|my|we|im|i'm)\b")
_AND = re.compile(r"(?i)\W*(and|but|what about|how about)\b")
_ASKS = re.compile(r"(?i)\W*(?:and |but )?(then|why|when|how|where|which|can|could|is|does|will)\b")
_MEANS = re.compile(r"(?i)\b(it|that|this|one|them|those)\b")
_NAMED = re.compile(
    r"(?<!\S)`?(--[a-z][\w-]+|/[a-z]+)`?(?=[\s?!.,]|$)"
    r"|does `?(rwkv-gpu [a-z-]+)`? (?:do|mean)\b"
    r"|(?:explain|command|what is) `?(rwkv-gpu [a-z-]+)`?(?=\W*$| for\W*$)"
)
# What is never answered by a quotation, whatever words it shares with one.
_GRAVE = re.compile(
    r"(?i)\b(guns?|weapons?|bombs?|explosives?|poison\w*|suicid\w*|drugs?|steal\w*|medicines?|pills?)\b"
)
_NO_WORDS = frozenset(
    re.findall(
        r"\w+",
        """
    a about actually all also am an and any are aren as at be been but by can could d did didn didnt do does doesn
    doesnt doing don dont for from get getting give go going got had has have hello hey hi how i if im in into is
    isn isnt it its just let like ll may me might my now of ok okay on one or our please pls question quick re s
    said say should show so some such t tell than thanks that the their them then there these they this to u us ve
    want was we well were what whats when where which who why will with would you your
    """,
    )
)
_ENDINGS = ("isations", "isation", "ations", "ation", "ings", "ing", "ers", "ies", "ed", "es", "er", "s", "e", "y")


@dataclass(frozen=True)
class Passage:
    """A part of the documentation that can be quoted."""

    weight: float  # how much its page is preferred
    title: frozenset[str]  # the words of the question that it answers, or of what it explains
    words: frozenset[str]  # its own words, and others that people use for it
    alike: frozenset[str]  # words that may stand for those of the title
    text: str


def words(text: str) -> list[str]:
    """The words of a text by their stems, without those that say nothing; compounds as a whole and in parts."""
    found: list[str] = []
    for word in _WORD.findall(text.lower().replace("'", "").replace("_", "-")):
        if word.startswith("rwkv-gpu"):
            found.append("rwkv-gpu")
            word = word.removeprefix("rwkv-gpu").strip(".-")
            if not word:
                continue
        if word[0] in "-/":
            found.append(word)
        parts = [part for part in re.split(r"[-/]+", word) if part]
        if len(parts) > 1:
            found.append("".join(parts))
        found += [stem(part) for part in parts if part not in _NO_WORDS and len(part) > 1 and not part.isdigit()]
    return found


def stem(word: str) -> str:
    """A word without its ending, roughly: quantise, quantised and quantization are one."""
    word = word.replace("iz", "is").strip(".+")
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)]
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word


@dataclass(frozen=True)
class Found:
    """What was found for a question."""

    passages: tuple[str, ...] = ()  # that stand with the question in the prompt
    answers: tuple[str, ...] = ()  # one of which is the answer
    sure: bool = False  # the question is about the program; else the answer may be another one


def with_passages(question: str, passages: Iterable[str]) -> str:
    """A question with the passages that were found for it, as the model reads them."""
    return "".join([question, *(f"\n> {passage}" for passage in passages)])


class Help:
    """The passages, and how much each word says."""

    def __init__(self, passages: Iterable[Passage], everyday: Mapping[str, float] | None = None) -> None:
        self.passages = tuple(passages)
        self._everyday = everyday or {}  # how many of the questions in small talk have a word
        self._with: dict[str, list[tuple[int, float]]] = defaultdict(list)
        for number, passage in enumerate(self.passages):
            for words, part in ((passage.title, 1.0), (passage.words - passage.title, 0.8)):
                for word in words:
                    self._with[word].append((number, part))
            for word in passage.alike - passage.title - passage.words:
                self._with[word].append((number, 0.4))
        self._alike: dict[str, list[str]] = defaultdict(list)  # long words by their first letter, for what was mistyped
        for word in self._with:
            if len(word) > 4:
                self._alike[word[0]].append(word)
        self._names = {
            name
            for p in self.passages
            for name in re.findall(r"(?<![\w/.-])(?:--[a-z][\w-]*|/[a-z]+|rwkv-gpu [a-z]+)", p.text)
        }

    def find(self, question: str, before: str = "") -> Found:
        """What answers a question, the best first; nothing where it is not about the program.

        `before` is the question before it, which a short one may go on with.
        """
        if len(question.split()) > LONG or _GRAVE.search(question):
            return Found()
        missing = self._missing(question)
        if missing:
            return Found(answers=(f"There is no {missing} in the docs or in --help.",), sure=True)
        asked = self._read(question)
        certainty = self._certainty(question, asked)
        if before and self._goes_on(question, asked, certainty):
            first = self._read(before)
            if self._certainty(before, first) >= SURE:
                asked = dict.fromkeys(first, 0.5) | asked
                certainty = self._certainty(question, asked)
        if certainty < MAYBE:
            return Found()
        ranked = self._ranked(asked)
        passages = self._texts(ranked, NEAR)
        if certainty < SURE or self._covered(asked)[ranked[0][1]] >= COVERED:
            return Found(passages, tuple(FROM + passage for passage in passages), certainty >= SURE)
        nearest = self._texts(ranked, ALSO)[:2]
        return Found(nearest, (NEAREST + " Also: ".join(nearest),), sure=True)

    def _goes_on(self, question: str, asked: Mapping[str, float], certainty: float) -> bool:
        """Whether a question is one only together with the question before it: and from Python?"""
        if len(asked) > 3 or any(word[0] in "-/" for word in asked):
            return False
        if asked and _AND.match(question):
            return True
        return certainty < SURE and bool(_ASKS.match(question) and _MEANS.search(question))

    def best(self, question: str, near: float = NEAR) -> tuple[str, ...]:
        """The passages that share most with a question, whatever it is about."""
        return self._texts(self._ranked(self._read(question)), near)

    def _texts(self, ranked: list[tuple[float, int]], near: float) -> tuple[str, ...]:
        return tuple(self.passages[number].text for rank, number in ranked[:MOST] if rank >= near * ranked[0][0])

    def _covered(self, asked: Mapping[str, float]) -> dict[int, float]:
        """The share of a question, by the weight of its words, that passages have words for."""
        weights = {word: self._weight(word) * share for word, share in asked.items()}
        total = sum(weights.values())
        covered: dict[int, float] = defaultdict(float)
        for word, weight in weights.items():
            for number, part in self._with.get(word, ()):
                covered[number] += weight * part / total
        return covered

    def _ranked(self, asked: Mapping[str, float]) -> list[tuple[float, int]]:
        """The passages that have words of a question, with how well they fit, the best first."""
        ranked = [(self._rank(number, share, asked), number) for number, share in self._covered(asked).items()]
        return sorted(ranked, key=lambda found: (-found[0], found[1]))

    def _certainty(self, question: str, asked: Mapping[str, float]) -> float:
        """How sure it is that a question is about the program, as log odds.

        The factors are a logistic regression over questions about the program and small talk.
        """
        ranked = self._ranked(asked)
        if not ranked:
            return -math.inf
        evidence = [self._evidence(word) for word in asked]
        says = 0.82 * sum(evidence) + 0.56 * max(evidence) + 5.98 * ranked[0][0] + 1.37 * len(asked) - 9.13
        return says - 3.08 * bool(_YOU.search(question)) - 0.83 * bool(_I.match(question))

    def _missing(self, question: str) -> str:
        """An option or a command that is asked for by its name, and that there is not."""
        for found in _NAMED.finditer(question.lower()):
            name = next(part for part in found.groups() if part)
            if name.replace("_", "-") not in self._names:
                return f"`{name}`"
        return ""

    def _evidence(self, word: str) -> float:
        """How much a word speaks for a question about the program, and against small talk."""
        if word not in self._with and word not in self._everyday:
            return UNKNOWN
        here = sum(0.3 if part == 1.0 else 0.1 for _, part in self._with.get(word, ())) / len(self.passages)
        return max(-3.0, min(3.0, math.log((here + RARE) / (self._everyday.get(word, 0.0) + RARE))))

    def _rank(self, number: int, share: float, asked: Mapping[str, float]) -> float:
        """How well a passage fits: it has the words of the question, and the question those of its title."""
        passage = self.passages[number]
        title = sum(self._weight(word) for word in passage.title if word in asked or word[0] not in "-/")
        shared = sum(self._weight(word) for word in passage.title if word in asked)
        return passage.weight * (share + 0.15 * (shared / title if title else 0.0))

    def _read(self, question: str) -> dict[str, float]:
        """The words of a question; of those that no passage has, the nearest that one has."""
        plain = words(question)
        joined = [first + second for first, second in pairwise(plain) if first + second in self._with]
        return dict.fromkeys([self._nearest(word) for word in plain] + joined, 1.0)

    def _nearest(self, word: str) -> str:
        if word in self._with or word in self._everyday or len(word) < 5:
            return word
        return next(iter(get_close_matches(word, self._alike.get(word[0], ()), 1, 0.88)), word)

    def _weight(self, word: str) -> float:
        """The rarer in the documentation, and the less of small talk, the more."""
        rare = math.log((len(self.passages) + 1) / (len(self._with.get(word, "...")) + 0.5))
        return rare * (0.5 + max(0.0, self._evidence(word)) / 6)


@functools.cache
def load(path: Path = INDEX) -> Help:
    """From the index: a line of everyday words, then a passage a line."""
    everyday, *lines = path.read_text(encoding="utf-8").splitlines()
    rows = (line.split("\t") for line in lines)
    counts = (part.split(":") for part in everyday.split())
    return Help(
        (
            Passage(float(weight), frozenset(title.split()), frozenset(more.split()), frozenset(alike.split()), text)
            for weight, title, more, alike, text in rows
        ),
        {word: int(count) / 1e6 for word, count in counts},
    )
