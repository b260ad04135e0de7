"""The sentences of all pages of the documentation, where one is looked for that no entry of the index has.

`python -m training.help_index` makes pages.tsv. It is read when it is first needed: most questions have an entry.
"""

import functools
import math
import re
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .words import terms

SENTENCES = Path(__file__).with_name("pages.tsv")
HEADING, SYNONYM = 0.7, 0.5  # what a word counts that is in the heading only, or has a synonym in the sentence
CODE = 3  # digits of a number that means something, with the sign that stands before numbers
ENOUGH, GAIN = 0.6, 0.15  # the share of a question that a sentence has at least; how much more than what is quoted
WHOLE, MANY = 0.8, 4  # the share that is nearly all of a question; the words that it has at least
RARE = 8  # sentences that have a rare word, at most
LENGTH = 0.002  # what each word of a sentence costs, so that the shortest of like ones is taken
_IDENTIFIER = re.compile(
    r"(?<![\w-])-*(\w+_\w+)|(?<!\w)(/\w+(?:/\w+)+)|\b([a-z]+[a-z][A-Z]\w*)"
    r"|(?i:\b(?:exit|error|codes?|status|http|signal|does|return\w*|gives?|answers?) (?:code |status )?([1-5]\d\d)\b)"
)


@dataclass(frozen=True)
class Sentence:
    """A sentence of a page, or a row of a table."""

    page: str
    heading: str
    text: str


class Pages:
    """Finds the sentence that has most of a question's words, by their weight: the rarer, the more."""

    def __init__(self, sentences: Sequence[Sentence], synonyms: Mapping[str, Collection[str]]) -> None:
        self.sentences = sentences
        self._synonyms = synonyms
        self._with: dict[str, dict[int, float]] = defaultdict(dict)  # sentences that have a word, and what it counts
        self._lengths = []
        for number, one in enumerate(sentences):
            found = _words(one.text)
            self._lengths.append(len(set(found)))
            self._with_words(number, found, 1.0)
            self._with_words(number, _words(one.heading), HEADING)
        self._count = Counter({word: len(found) for word, found in self._with.items()})

    def _with_words(self, number: int, found: Collection[str], share: float) -> None:
        for word in found:
            self._with[word].setdefault(number, share)

    def best(self, asked: Mapping[str, float]) -> tuple[float, Sentence]:
        """The share of a question that a sentence has words for, and the sentence that has most."""
        scores, total = self._scores(asked), sum(self._weights(asked).values()) or 1.0

        def worth(number: int) -> tuple[float, int]:
            return scores[number] / total - LENGTH * self._lengths[number], -number

        number = max(scores, key=worth, default=0)
        return scores[number] / total, self.sentences[number]

    def _scores(self, asked: Mapping[str, float]) -> dict[int, float]:
        """The weight of the words of a question that each sentence has."""
        scores = defaultdict[int, float](float)
        for word, weight in self._weights(asked).items():
            counts: dict[int, float] = {}
            for other in self._synonyms.get(word, ()):
                counts.update(dict.fromkeys(self._with.get(other, ()), SYNONYM))
            counts.update(self._with.get(word, {}))
            for number, count in counts.items():
                scores[number] += weight * count
        return scores

    def missing(
        self, asked: Mapping[str, float], quoted: Collection[str], everyday: Mapping[str, float], vague: bool
    ) -> Sentence | None:
        """The sentence that has more of a question than the quoted texts: nearly all of it or, where the question is
        vague, a rare word that they lack."""
        share, sentence = self.best(asked)
        more = share - self.share(asked, quoted)
        have = {word for text in quoted for word in _words(text)}
        said = {word for word in _words(sentence.text) if word in asked}
        if share >= WHOLE and more >= GAIN and len(said) >= MANY:
            return sentence
        rare = any(self._count[word] <= RARE and word not in everyday for word in said - have)
        return sentence if vague and rare and share >= ENOUGH and more >= GAIN else None

    def naming(self, name: str, asked: Mapping[str, float]) -> Sentence | None:
        """The sentence on a name such as logit_bias or /v1/models: one that begins with it, or else the nearest."""
        having = [n for n, one in enumerate(self.sentences) if has(one.text, name)]
        scores = self._scores(asked)

        def worth(number: int) -> tuple[bool, float]:
            return bool(re.match(rf"\W*{_whole(name)}", _names(self.sentences[number].text))), scores[number]

        return self.sentences[max(having, key=worth)] if having else None

    def share(self, asked: Mapping[str, float], texts: Collection[str]) -> float:
        """The share of a question, by the weight of its words, that texts have words for."""
        weights, found = self._weights(asked), {word for text in texts for word in _words(text)}

        def count(word: str) -> float:
            return 1.0 if word in found else SYNONYM * any(other in found for other in self._synonyms.get(word, ()))

        return sum(weight * count(word) for word, weight in weights.items()) / (sum(weights.values()) or 1.0)

    def _weights(self, asked: Mapping[str, float]) -> dict[str, float]:
        every = len(self.sentences) + 1
        return {w: share * math.log(every / (self._count[w] + 0.5)) for w, share in asked.items() if _counts(w)}


def _words(text: str) -> list[str]:
    return [term for term in terms(text) if _counts(term)]


def _counts(term: str) -> bool:
    """Whether it is a word, or a number such as a code or a port."""
    return term[0] != "~" or (term[1:].isdigit() and len(term) > CODE)


def identifiers(question: str) -> list[str]:
    """Names of fields, routes and functions in a question, and codes that it asks for, as they are compared."""
    return [_names(next(part for part in match.groups() if part)) for match in _IDENTIFIER.finditer(question)]


def has(text: str, name: str) -> bool:
    """Whether a text has a name."""
    return re.search(_whole(name), _names(text)) is not None


def _names(text: str) -> str:
    return text.lower().replace("_", "-")


def _whole(name: str) -> str:
    return rf"(?<![a-z0-9]){re.escape(name)}(?![a-z0-9]|-[a-z0-9])"


@functools.cache
def read(path: Path = SENTENCES) -> tuple[Sentence, ...]:
    """The sentences of the index."""
    return tuple(Sentence(*line.split("\t")) for line in path.read_text(encoding="utf-8").splitlines())
