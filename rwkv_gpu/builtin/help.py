"""Finds the passages of the documentation that answer a question.

`python -m training.help_index` makes the index beside this file, of the documentation and `--help`. Which models are
supported comes from the registry, through `load`.
"""

import functools
import itertools
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import certainty as odds_of
from . import problems, rates, reading, reports, sums
from . import retriever as trained
from .certainty import certainty
from .decline import decline
from .greeting import greeting, without_greeting
from .index import INDEX, read
from .naming import SHORT_NAME, SIGNS, asks_default, plain_name
from .naming import named as asked_by_name
from .pages import Pages, Sentence, has, identifiers
from .pages import read as read_pages
from .reference import OPTION, Reference
from .retriever import ELSEWHERE, SMALL_TALK, SUM, Retriever
from .search import Ranking, Search
from .words import words

SURE, MAYBE = 0.5, -1.5  # log odds from which on a question is taken to be about the program, or may be
CERTAIN = 2.0  # the same for one whose best passage is not quite its answer
WEAK, FAIR = 0.75, 1.25  # a lower score than the first is no answer; one below the second needs a CERTAIN question
LIKELY = 2.0  # a lower score is only called the nearest: of wordings that were left out, less than 0.4 are right
PROMISING = 1.1  # a lower score is no answer where the question may be small talk
STRONG = 1.5  # with this score of the search, what seems to be small talk may be about the program
NEAR, MOST = 0.6, 3  # passages with this share of the best score are quoted, too; so many in all
WIDE = 0.4  # the share where the retriever is not certain
GLANCE = 650  # characters of all that is quoted
KNOWN, UNCLEAR = 0.85, 0.5  # its probability from which on it is certain; below the second it is said what is answered
NAMED, BESIDE = 0.2, 2  # what a name counts in a question that has more other words than the second
CLEAR = 2.5  # with this score, a passage is named beside what does not exist
GUESS = 3.0  # what the retriever's probability counts, beside the search's score
LEAST = 0.05  # the probability from which on a passage is considered that the search does not find
CALCULATES, SURELY = 0.5, 0.7  # the probability of a sum from which on it is one, with a number and without
AGAIN = 1.0  # what a passage loses that answered the question before
COMMAND = 0.35  # what it counts that a passage is on the command that is named
REPORTED = 2.0  # what a symptom counts for the entry that helps with it
SYMPTOM = 1.5  # what it counts for a question about the program
ENOUGH = 0.75  # the share of a question that a sentence of a page has at least, where nothing else is found
VAGUE = 0.7  # a lower probability lets a sentence of a page be added that has more of the question
LONG = 40  # words; what is longer is a text and no question
# Characters of a message, and of a word in it. The rules are regular expressions, whose time grows faster than a text.
MOST_READ, MOST_WORD = 2000, 100
BEFORE = 0.7  # what a word of the question before counts

FROM = "From the docs: "
NEAREST = "The nearest that I find in the docs: "
ALSO = " Also: "
ELSEWHERE_SAID = "\nIn {}: "
ABSENT = "There is no "
UNMENTIONED = 'The docs and --help do not mention "{}". '
IS_SUPPORTED, PLANNED = "Is my model supported?", "What is planned?"  # entries for what is not mentioned
MEAN = '\n- If you mean "{}": '
NOTHING = (
    "I do not know: I find nothing about that in the docs. See docs/questions.md; `rwkv-gpu --help` lists the "
    "commands, /help those of the chat."
)


@dataclass(frozen=True)
class Found:
    """What was found for a question."""

    passages: tuple[str, ...] = ()  # that stand with the question in the prompt
    answer: str = ""  # a quotation, a result, a refusal; none where the model answers by itself
    sure: bool = False  # it is the answer; else the model chooses between it and one of its own


def with_passages(question: str, passages: Iterable[str]) -> str:
    """A question with the passages that were found for it, as the model reads them."""
    return "".join([question, *(f"\n> {passage}" for passage in passages)])


class Help:
    """The passages, and how often each word is met in small talk."""

    def __init__(
        self, search: Search, everyday: Mapping[str, float] | None = None, retriever: Retriever | None = None
    ) -> None:
        self.passages = search.passages
        self.retriever = retriever
        self.search = search
        self.everyday = everyday or {}  # the share of questions in small talk that have a word
        self._asked: dict[str, list[int]] = {}  # the passages that answer a question, or explain a name
        for number, passage in enumerate(self.passages):
            for name in passage.asked:
                self._asked.setdefault(name, []).append(number)
        self._called = {name for name in self._asked if SHORT_NAME.fullmatch(name)}
        self._guessed: dict[str, dict[str, float]] = {}  # the last guess, which several rules look at
        known = retriever.names if retriever else ()
        self._first = {passage.asked[0]: number for number, passage in enumerate(self.passages) if passage.asked}
        self._titles = {name: self._first[name] for name in known if name in self._first}
        self._entries = frozenset(self._titles.values())
        self._names = {
            name
            for passage in self.passages
            for name in re.findall(r"(?<![\w/.-])(?:--[a-z][\w-]*|/[a-z]+|rwkv-gpu [a-z]+)", passage.text)
        }

    def find(self, question: str, before: str = "") -> Found:
        """What answers a question: a refusal, a result, or a quotation; nothing where it is small talk.

        `before` is the question before it, which a short one may go on with.
        """
        if _is_data(question):
            return Found()
        before = "" if _is_data(before) else before
        fixed = decline(question) or greeting(question) or sums.answer(question) or rates.answer(question)
        if fixed:
            return Found(answer=fixed, sure=True)
        if problems.calculation(question):
            return Found(answer=sums.BEYOND, sure=True)
        if self.guess(question).get(SUM, 0.0) >= (CALCULATES if re.search(r"\d", question) else SURELY):
            return Found(answer=sums.BEYOND, sure=True)
        question = reports.plain(without_greeting(question))
        request = reports.requested(question)
        asks = reports.asks_whether(question)
        found = self._requested(request) if request else self._quoted(question, before)
        unknown = self._unknown(asks) if asks and found.passages else ""
        if unknown:
            found = Found(found.passages[:1], UNMENTIONED.format(unknown) + NEAREST + found.passages[0], found.sure)
        if not found.sure and problems.beyond(question):
            return Found(answer=sums.BEYOND, sure=True)
        return found

    def _requested(self, request: str) -> Found:
        """What there is of what a title requests. A name that the documentation does not have is said to be none."""
        unknown = self._unknown(request)
        if unknown and reports.names_model(request):
            return Found(answer=UNMENTIONED.format(unknown) + self.passages[self._first[IS_SUPPORTED]].text, sure=True)
        found = self._quoted(f"does it have {request}", "")
        if not unknown or found.answer.startswith(ABSENT):
            return found
        text = found.passages[0] if found.passages else self.passages[self._first[PLANNED]].text
        return Found(found.passages[:1], UNMENTIONED.format(unknown) + NEAREST + text, sure=True)

    def _unknown(self, text: str) -> str:
        """The first name in a text that neither the documentation nor everyday language has."""
        for word in re.findall(r"[\w+-]*\w", text):
            longest = max(re.split("[-_+]", word), key=len)
            stems = [stem for stem in self._words(longest) if stem[0] != "~"]
            named = len(longest) > 2 and not word[0].isdigit() and not word.endswith("ly")  # no amount, no adverb
            if named and stems and not any(self.search.knows(s) or s in self.everyday for s in stems):
                return str(word)
        return ""

    def _quoted(self, question: str, before: str) -> Found:
        """The passages that answer a question about the program."""
        if len(question.split()) > LONG:
            return Found()
        named = asked_by_name(question)
        for name in named - self._names:
            return Found(answer=self._absent(name), sure=True)
        named |= self._called.intersection(plain_name(word.strip(SIGNS)) for word in question.split())
        shown: tuple[int, ...] = ()
        asked = reading.asked(question, self._words)
        if asks_default(question):
            asked["default"] = 1.0
        if before and reading.goes_on(question, asked):
            asked, shown = self._together(asked, before)
        found = self.search.found(asked)
        guess = self.guess(f"{question} {before}" if shown else question)
        reported = reports.symptoms(question)
        odds = certainty(self.signs(question, asked, found)) + (SYMPTOM if reported else 0.0)
        scores = self._scores(found.ranked, guess, shown)
        self._add_names(scores, named, question)
        self._add_commands(scores, question)
        self._add_reported(scores, reported)
        ranked = _best_first(scores)
        if not ranked or (odds < MAYBE and max(found.ranked, default=(0.0, 0))[0] < STRONG):
            return Found()
        score, best = ranked[0]
        fair = score >= FAIR
        sure = odds >= (SURE if fair else CERTAIN)
        sure |= score >= STRONG and not named.isdisjoint(self.passages[best].asked)
        if score < WEAK:
            return Found(answer=self._nothing(asked), sure=True) if sure else Found()
        if odds < SURE and score < PROMISING:
            return Found()
        known = 1.0 if named.intersection(self.passages[best].asked) else max(guess.values(), default=1.0)
        quoted = self._best(ranked, NEAR if known >= KNOWN else WIDE, MOST)
        exact = self._exact(question, best, known) if sure and not reported else ()
        texts = self._texts(dict.fromkeys((*exact, best)) if exact else quoted)
        if exact:
            return Found(texts, FROM + ALSO.join(texts), sure)
        said = self._said(quoted, known)
        sentence = self._missing(question, asked, [said, *texts], known) if sure else None
        if sentence:
            said = self._said(quoted[: MOST - 1], known) + ELSEWHERE_SAID.format(sentence.page) + sentence.text
        likely = score >= LIKELY or bool(shown) or not named.isdisjoint(self.passages[best].asked)
        return Found(texts, (FROM if likely or not sure else NEAREST) + said, sure)

    def _exact(self, question: str, best: int, known: float) -> tuple[int, ...]:
        """The passages of `--help` that answer a question about a default, a bound or a difference."""
        return self._reference.asked(question) or (self._compared(question, best) if known < KNOWN else ())

    def _missing(
        self, question: str, asked: Mapping[str, float], quoted: Sequence[str], known: float
    ) -> Sentence | None:
        """The sentence of a page on what the quoted texts lack: a name that is asked for, or rare words."""
        for name in identifiers(question):
            if not any(has(text, name) for text in quoted) and (found := self._pages.naming(name, asked)):
                return found
        return self._pages.missing(asked, quoted, self.everyday, known < VAGUE)

    def _nothing(self, asked: Mapping[str, float]) -> str:
        """What is said where no passage fits: a sentence of a page that does, or else where to look."""
        share, sentence = self._pages.best(asked)
        return ELSEWHERE_SAID.format(sentence.page).lstrip() + sentence.text if share >= ENOUGH else NOTHING

    @functools.cached_property
    def _pages(self) -> Pages:
        options = (Sentence("docs/cli.md", "", passage.text) for passage in self.passages if passage.weight == OPTION)
        return Pages([*read_pages(), *options], self.search.synonyms)

    def _compared(self, question: str, best: int) -> tuple[int, ...]:
        """The passages on what is compared, unless the best passage is on all of it."""
        names, found = self._reference.compared(question)
        title, text = set(re.findall(r"[\w/-]+", self._name(best).lower())), self.passages[best].text
        both = (title.issuperset(names) and "differen" in self._name(best)) or all(
            f"`rwkv-gpu {name}" in text or f"`{name}" in text for name in names
        )
        return () if both else found[:MOST]

    @functools.cached_property
    def _reference(self) -> Reference:
        return Reference(self.search)

    def _together(self, asked: dict[str, float], before: str) -> tuple[dict[str, float], tuple[int, ...]]:
        """The words of a question and of the one before it, if that was about the program, and what was quoted then."""
        first = self._words(before)
        found = self.search.found(first)
        if certainty(self.signs(before, first, found)) < SURE:
            return asked, ()
        shown = self._best(self.ranked(found.ranked, self.guess(before)), NEAR, MOST)
        return {word: BEFORE for word in first if word[0] != "~"} | asked, shown

    def _said(self, quoted: Sequence[int], known: float) -> str:
        """Passages as an answer. Where it is not certain what was asked, each has the question that it answers."""
        said = ""
        for number in quoted:
            text, name = self.passages[number].text, self._name(number).replace('"', "'")
            names = name != ELSEWHERE
            if said:
                said += MEAN.format(name) + text if names and known < KNOWN else ALSO + text
            else:
                said = f'"{name}" {text}' if names and known < UNCLEAR else text
        return said

    def _absent(self, name: str) -> str:
        """That an option or a command does not exist, and what comes nearest to its name."""
        plain = name.removeprefix("rwkv-gpu ").strip("-/").replace("-", " ")
        near = self.ranked(self.search.ranked(self._words(plain)), self.guess(plain))
        more = f" {NEAREST}{self.passages[near[0][1]].text}" if near and near[0][0] >= CLEAR else ""
        return f"{ABSENT}`{name}` in this version: neither the docs nor --help have it.{more}"

    def guess(self, question: str) -> dict[str, float]:
        """What the retriever takes a question for: names with their probabilities."""
        if question not in self._guessed:
            self._guessed = {question: self.retriever.guess(question) if self.retriever else {}}
        return self._guessed[question]

    def ranked(
        self, found: list[tuple[float, int]], guess: Mapping[str, float], shown: Collection[int] = ()
    ) -> list[tuple[float, int]]:
        """What the search found and what the retriever guesses, by the sum of their scores; less what was `shown`."""
        return _best_first(self._scores(found, guess, shown))

    def _scores(
        self, found: list[tuple[float, int]], guess: Mapping[str, float], shown: Collection[int]
    ) -> dict[int, float]:
        """The score of each passage: the search's and the retriever's."""
        elsewhere = GUESS * guess.get(ELSEWHERE, 0.0)
        scores = {n: score + elsewhere * (n not in self._entries and score >= WEAK) for score, n in found}
        for name, number in self._titles.items():
            share = guess.get(name, 0.0)
            if number in scores or share >= LEAST:
                scores[number] = scores.get(number, 0.0) + GUESS * share
        _add(scores, shown, -AGAIN)
        return scores

    def _name(self, number: int) -> str:
        """What the retriever calls a passage."""
        asked = self.passages[number].asked
        return asked[0] if asked and asked[0] in self._titles else ELSEWHERE

    def _words(self, question: str) -> dict[str, float]:
        return self.search.read(question, self.everyday)

    def best(self, question: str, near: float = 0.75, most: int = MOST) -> tuple[str, ...]:
        """The passages that fit a question best, whatever it is about."""
        ranked = self.search.ranked(self._words(question))
        return self._texts(self._best(ranked, near, most))

    def _texts(self, numbers: Iterable[int]) -> tuple[str, ...]:
        return tuple(self.passages[number].text for number in numbers)

    def _best(self, ranked: list[tuple[float, int]], near: float, most: int) -> tuple[int, ...]:
        """The passages that are quoted: those with nearly the best score, and no more than can be read at a glance."""
        near_best = [number for score, number in ranked[:most] if score >= near * ranked[0][0]]
        lengths = itertools.accumulate(len(self.passages[number].text) for number in near_best)
        return tuple(n for n, length in zip(near_best, lengths, strict=True) if n == near_best[0] or length <= GLANCE)

    def _add_names(self, scores: dict[int, float], named: set[str], question: str) -> None:
        """Passages that explain what is named come first, as strong answers: where little else is asked."""
        beside = set(words(question)).difference(*(words(name) for name in named)) if named else set()
        more = GUESS + STRONG if len(beside) <= BESIDE else NAMED
        _add(scores, {number for name in named for number in self._asked.get(name, ())}, more)

    def _add_commands(self, scores: dict[int, float], question: str) -> None:
        """Passages on the commands that are named come before others that are as near."""
        _add(scores, self._reference.of_commands(question), COMMAND)

    def _add_reported(self, scores: dict[int, float], reported: Mapping[str, float]) -> None:
        """The entries that help with what is reported come before others that are not certain."""
        for heading, share in reported.items():
            number = self._first[heading]
            scores[number] = scores.get(number, 0.0) + REPORTED * share

    def signs(self, question: str, asked: Mapping[str, float], found: Ranking) -> list[float]:
        """What speaks for a question about the program, or against it."""
        small_talk = self.guess(question).get(SMALL_TALK, 0.5)
        return odds_of.signs(question, asked, found, self.search, self.everyday, small_talk)


def _add(scores: dict[int, float], numbers: Iterable[int], more: float) -> None:
    for number in numbers:
        if number in scores:
            scores[number] += more


def _best_first(scores: Mapping[int, float]) -> list[tuple[float, int]]:
    return sorted(((score, number) for number, score in scores.items()), key=lambda one: (-one[0], one[1]))


@functools.cache
def load(architectures: Collection[str] = (), path: Path = INDEX) -> Help:
    """The help of this version, where these architectures are supported."""
    search, everyday = read(architectures, path)
    return Help(search, everyday, trained.load())


def _is_data(text: str) -> bool:
    """Whether a message is too long for a question, or has a word that is: pasted text, digits, base64."""
    return len(text) > MOST_READ or any(len(word) > MOST_WORD for word in text.split())
