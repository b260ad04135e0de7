"""Ranks passages by how well they answer a question.

A passage has questions that it answers. Its score is the sum of two parts: how near the nearest of these questions is
(the cosine of word and word-pair weights), and which share of the question the passage has words for.
"""

import math
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from difflib import get_close_matches
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from .words import stem, terms

PAIR, FUNCTION = 0.6, 0.4  # what a pair of words and a function word weigh, beside a content word
NEXT = 0.15  # what the next nearest questions of a passage count, beside the nearest
SYNONYM = 0.25  # what a synonym counts, beside the word itself
TEXT, ALSO = 0.4, 0.9  # what a word counts that is in the text of a passage, or beside it, beside one of a question
CLOSE = 0.86  # how similar a mistyped word is to the one that was meant

Numbers = npt.NDArray[np.int32]
Floats = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Passage:
    """A part of the documentation that can be quoted."""

    weight: float  # how much its page is preferred
    asked: tuple[str, ...]  # questions that it answers, or the names of what it explains
    also: frozenset[str]  # other words for it
    text: str
    needs: frozenset[str] = frozenset()  # words, one of which a question must have; none where any question will do


@dataclass(frozen=True)
class Ranking:
    """What is found for a question."""

    ranked: list[tuple[float, int]]  # scores and numbers of passages, the best first
    small_talk: float  # how near the nearest questions of small talk are


class Search:
    """The words of all passages, with what each word says about a passage. The constants are the best of a few
    for the questions of tests/help_questions.txt."""

    def __init__(
        self, passages: Sequence[Passage], synonyms: Mapping[str, frozenset[str]], small_talk: Sequence[str] = ()
    ) -> None:
        self.passages = passages
        self.small_talk = small_talk
        self.synonyms = synonyms
        self._weights_of = np.array([passage.weight for passage in passages])
        self._needing = [n for n, passage in enumerate(passages) if passage.needs]
        self._with: dict[str, _Column] = defaultdict(_Column)  # passages that have a word, and in how many questions
        read = [[terms(question) for question in passage.asked] for passage in passages]
        for number, (passage, questions) in enumerate(zip(passages, read, strict=True)):
            bag = Counter[str]()
            for question in questions:
                bag.update(iter(dict.fromkeys(question)))  # each word once, counted in C
            bag.update(dict.fromkeys(terms(passage.text), TEXT))
            bag.update(dict.fromkeys(passage.also, ALSO))
            for word, count in bag.items():
                self._with[word].add(number, count)
        self._small_talk = len(passages)  # stands for small talk, in place of the number of a passage
        asked_of = [number for number, questions in enumerate(read) for _ in questions]
        self._asked_of = np.array(asked_of + [self._small_talk] * len(small_talk), np.int32)  # the passage of each
        known = (*(question for questions in read for question in questions), *map(terms, small_talk))
        self._set_postings([features(question) for question in known])
        self._by_letter: dict[str, list[str]] = defaultdict(list)
        for word in self._with:
            if len(word) > 4 and word.isalpha():
                self._by_letter[word[0]].append(word)

    def knows(self, word: str) -> bool:
        """Whether a passage has the word."""
        return word in self._with

    def share(self, word: str) -> float:
        """The share of passages whose questions have a word."""
        return self._asked_with.get(word, 0) / len(self.passages)

    def weight(self, word: str) -> float:
        """What a word weighs: the rarer in questions, the more."""
        return self._worth.get(word) or self._weight(word)

    def read(self, question: str, known: Mapping[str, float]) -> dict[str, float]:
        """The words of a question, in order.

        One that no passage has, and that is not `known`, is read as the nearest one, or as two. Neighbours that
        passages have as one word are that word, too.
        """
        found = [meant for word in terms(question) for meant in self._meant(word, known)]
        joined = [first + second for first, second in pairwise(found) if first + second in self._with]
        return dict.fromkeys(found + joined, 1.0)

    def ranked(self, asked: Mapping[str, float]) -> list[tuple[float, int]]:
        """Scores and numbers of passages that share words with a question, the best first."""
        return self.found(asked).ranked

    def found(self, asked: Mapping[str, float]) -> Ranking:
        """The passages that share words with a question, and how near small talk is."""
        near, covered = self._nearness(asked), self._coverage(asked)
        for number in self._needing:
            if self.passages[number].needs.isdisjoint(asked):
                covered[number] = 0.0
        meant = np.flatnonzero(covered)
        scores = (near[meant] + covered[meant]) * self._weights_of[meant]
        order = np.argsort(-scores, kind="stable")
        ranked = zip(scores[order].tolist(), meant[order].tolist(), strict=True)
        return Ranking(list(ranked), float(near[self._small_talk]))

    def _set_postings(self, known: Sequence[Mapping[str, float]]) -> None:
        """For each word and pair, the known questions that have it, and its share of the question's length."""
        self._numbers: dict[str, int] = {}
        numbers = self._numbers
        every = np.array([numbers.setdefault(feature, len(numbers)) for one in known for feature in one], np.int64)
        question = np.repeat(np.arange(len(known), dtype=np.int32), [len(one) for one in known])
        kinds = self._small_talk + 1
        which = np.unique(every * kinds + self._asked_of[question])
        counts = np.bincount(which[which % kinds < self._small_talk] // kinds, minlength=len(numbers))
        # Passages whose questions have it.
        self._asked_with: dict[str, int] = dict(zip(numbers, counts.tolist(), strict=True))
        self._worth = {feature: self._weight(feature) for feature in numbers}
        weights = np.fromiter(self._worth.values(), np.float64)[every]
        sizes = np.sqrt(np.bincount(question, weights**2, len(known)))
        order = np.argsort(every, kind="stable")
        self._ends = np.cumsum(np.bincount(every, minlength=len(numbers))).tolist()
        self._questions, self._shares = question[order], (weights / sizes[question])[order]

    def _weights(self, found: Mapping[str, float]) -> dict[str, float]:
        """The rarer a word or pair in questions, the more. Half of what is asked is half of its weight."""
        worth = self._worth
        return {f: (worth[f] if f in worth else self._weight(f)) * share for f, share in found.items()}

    def _weight(self, feature: str) -> float:
        """What a word or a pair weighs."""
        rare = math.log((len(self.passages) + 1) / (self._asked_with.get(feature, 0) + 0.5))
        parts = feature.split(" ")
        return rare * FUNCTION ** sum(part[0] == "~" for part in parts) * (PAIR if len(parts) > 1 else 1.0)

    def _nearness(self, asked: Mapping[str, float]) -> Floats:
        """How near the nearest questions of each passage are, and those of small talk. [P + 1]"""
        weights = self._weights(features(asked))
        size = math.hypot(*weights.values()) or 1.0
        cosines = np.zeros(len(self._asked_of))
        for feature, weight in weights.items():
            if (number := self._numbers.get(feature)) is not None:
                part = slice(self._ends[number - 1] if number else 0, self._ends[number])
                cosines[self._questions[part]] += self._shares[part] * (weight / size)
        near = np.flatnonzero(cosines)
        near = near[np.lexsort((-cosines[near], self._asked_of[near]))]  # by passage, the nearest first
        passage, cosine = self._asked_of[near], cosines[near]
        first = np.flatnonzero(np.diff(passage, prepend=-1))
        place = np.arange(len(near)) - np.repeat(first, np.diff(first, append=len(near)))
        counts = np.where(place == 0, 1.0, np.where(place < 4, NEXT, 0.0))
        return np.bincount(passage, cosine * counts, self._small_talk + 1).astype(np.float64)

    def _coverage(self, asked: Mapping[str, float]) -> Floats:
        """The share of a question, by the weight of its words, that each passage has words for. [P]"""
        covered = np.zeros(len(self.passages))
        total = 0.0
        for word, share in asked.items():
            numbers, counts = self._with[word].arrays() if word in self._with else _Column().arrays()
            rare = math.log((len(self.passages) + 1) / (len(numbers) + 0.5))
            weight = max(0.0, rare) * share * (FUNCTION if word[0] == "~" else 1.0)
            total += weight
            has = np.zeros(len(self.passages))
            for other in self.synonyms.get(word, ()):
                if other in self._with:
                    with_it, often = self._with[other].arrays()
                    has[with_it[often >= 1]] = SYNONYM
            has[numbers] = 1 - np.exp(-0.9 * counts)
            covered += weight * has
        return covered / total if total else covered

    def _meant(self, word: str, known: Mapping[str, float]) -> tuple[str, ...]:
        if word in self._with or word in known or len(word) < 5 or not word.isalpha():
            return (word,)
        swapped = (stem(each) for form in (word, f"{word}e") for each in _swapped(form))
        meant = next((each for each in swapped if each in self._with), "")
        if meant:
            return (meant,)
        near = get_close_matches(word, self._by_letter.get(word[0], ()), 1, CLOSE)
        if near:
            return (near[0],)
        parts = ((stem(word[:at]), stem(word[at:])) for at in range(3, len(word) - 2))
        return next((pair for pair in parts if all(part in self._with for part in pair)), (word,))


class _Column:
    """Rising numbers, each with an amount."""

    def __init__(self) -> None:
        self._numbers, self._amounts = array("i"), array("d")

    def add(self, number: int, amount: float) -> None:
        self._numbers.append(number)
        self._amounts.append(amount)

    def arrays(self) -> tuple[Numbers, Floats]:
        """Both as arrays; after this nothing is added."""
        return np.frombuffer(self._numbers, np.int32), np.frombuffer(self._amounts, np.float64)


def _swapped(word: str) -> Iterator[str]:
    """A word with each pair of neighbours in the other order: qunatise, quantise."""
    return (f"{word[:at]}{word[at + 1]}{word[at]}{word[at + 2 :]}" for at in range(len(word) - 1))


def features(question: Mapping[str, float] | Sequence[str]) -> dict[str, float]:
    """Words and pairs of neighbours, each with its share."""
    shares = question if isinstance(question, Mapping) else dict.fromkeys(question, 1.0)
    pairs = {f"{first} {second}": min(shares[first], shares[second]) for first, second in pairwise(shares)}
    return {**shares, **pairs}
