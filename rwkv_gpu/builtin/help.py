"""Finds the passages of the documentation that answer a question.

`python -m training.help_index` makes the index beside this file, of the documentation and `--help`. Which models are
supported comes from the registry, through `load`.
"""

import functools
import itertools
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from . import problems, rates, reports, sums
from . import retriever as trained
from .decline import decline
from .greeting import greeting
from .retriever import ELSEWHERE, SMALL_TALK, SUM, Retriever
from .search import Passage, Ranking, Search
from .words import words

INDEX = Path(__file__).with_name("help.tsv")
SURE, MAYBE = 0.5, -1.5  # log odds from which on a question is taken to be about the program, or may be
CERTAIN = 2.0  # the same for one whose best passage is not quite its answer
UNKNOWN = -1.5  # what a word says for the program that neither the documentation nor small talk has
RARE = 1e-4  # how often a word is met at least, in small talk and in questions about the program
WEAK, FAIR = 0.75, 1.25  # a lower score than the first is no answer; one below the second is only called the nearest
PROMISING = 1.1  # a lower score is no answer where the question may be small talk
STRONG = 1.5  # with this score of the search, what seems to be small talk may be about the program
NEAR, MOST = 0.6, 3  # passages with this share of the best score are quoted, too; so many in all
WIDE = 0.3  # the share where the retriever is not certain
GLANCE = 650  # characters of all that is quoted
KNOWN, UNCLEAR = 0.85, 0.5  # its probability from which on it is certain; below the second it is said what is answered
NAMED, BESIDE = 0.2, 2  # what a name counts in a question that has more other words than the second
CLEAR = 2.5  # with this score, a passage is named beside what does not exist
GUESS = 3.0  # what the retriever's probability counts, beside the search's score
LEAST = 0.05  # the probability from which on a passage is considered that the search does not find
CALCULATES, SURELY = 0.5, 0.7  # the probability of a sum from which on it is one, with a number and without
AGAIN = 1.0  # what a passage loses that answered the question before
REPORTED = 2.0  # what a symptom counts for the entry that helps with it
SYMPTOM = 1.5  # what it counts for a question about the program
SHARE = 0.01  # what is added to probabilities, so that none is certain
LONG = 40  # words; what is longer is a text and no question
AROUND = 0.5  # what a word counts in the sentences around the one that asks
BEFORE = 0.7  # the same in the question before it
ARCHITECTURES = "{architectures}"  # stands in a passage for how many are supported, and the best known of them
UNNAMED = "?"  # stands for an architecture whose name is not known
WELL_KNOWN = ("llama", "qwen2", "qwen3", "gemma3", "phi3", "deepseek2", "gpt-oss", "rwkv7", "mamba2")

GET = "`rwkv-gpu pull hf.co/OWNER/NAME:Q4_K_M` gets one from Hugging Face."
FROM = "From the docs: "
NEAREST = "The nearest that I find in the docs: "
ALSO = " Also: "
ABSENT = "There is no "
UNMENTIONED = 'The docs and --help do not mention "{}". '
IS_SUPPORTED, PLANNED = "Is my model supported?", "What is planned?"  # entries for what is not mentioned
MEAN = '\n- If you mean "{}": '
NOTHING = (
    "I do not know: I find nothing about that in the docs. See docs/questions.md; `rwkv-gpu --help` lists the "
    "commands, /help those of the chat."
)

_YOU = re.compile(r"(?i)\b(you|your|u|ur|yourself)\b")
_IT = re.compile(r"(?i)\b(can|does|will|is|do i|could|would|should|how|where|why|make|let|tell)\b.*\b(it|this)\b \w")
_THING = re.compile(r"(?i)\w\.(txt|md|json|csv|pdf|docx?|py|gguf)\b|\d ?(gb|gigs?|tok)\b|\b(llms?|the model|rwkv)\b")
_I = re.compile(r"(?i)\W*(i|my|we|im|i'm)\b")
_SENTENCE = re.compile(r"(?<=[.!?;]) +|\n+")
_QUESTION = re.compile(
    r"(?i)\W*(?:but |and |so |ok |now )*(?:how|what|which|where|when|why|who|can|could|is|are|does|do|will|should)\b"
)
# It begins as a question that goes on with the one before it: and from Python? only the code? over http?
_GOES_ON = re.compile(
    r"(?i)\W*(and|but|then|also|even|only|just|what about|how about|what if|from|over|in|on|with|without|for|by|via)\b"
)
_MEANS = re.compile(r"(?i)\b(it|its|that|this|one|them|they|those|there(?=\W*$)|back|again|rest)\b")
_NAMED = re.compile(
    r"(?<!\S)`?(--[a-z][\w-]+|/[a-z]+)`?(?=[\s?!.,]|$)"
    r"|does `?(rwkv-gpu [a-z-]+)`? (?:do|mean)\b"
    r"|(?:explain|command|what is) `?(rwkv-gpu [a-z-]+)`?(?=\W*$| for\W*$)"
)
_PATH = re.compile(r"\b(?:under|below|at|in|on|to|path|prefix|folder|route|endpoint|location) `?/[a-z]+")  # no command
_SHORT_NAME = re.compile(r"-[a-z]{1,4}|--[a-z-]+|(?:ollama|num|repeat)-[a-z-]+")  # they need no other word to be meant


@dataclass(frozen=True)
class Found:
    """What was found for a question."""

    passages: tuple[str, ...] = ()  # that stand with the question in the prompt
    answer: str = ""  # a quotation, a result, a refusal; none where the model answers by itself
    sure: bool = False  # it is the answer; else the model chooses between it and one of its own


def _named(question: str) -> set[str]:
    """The options and commands that are asked for by their names."""
    text = _PATH.sub(" ", question.lower())
    found = (next(part for part in match.groups() if part) for match in _NAMED.finditer(text))
    return {_plain_name(name) for name in found}


def _plain_name(name: str) -> str:
    """An option's name as the index has it: num_ctx is num-ctx."""
    return name.lower().partition("=")[0].replace("_", "-")


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
        every = {name for passage in self.passages for name in passage.asked}
        self._called = {name for name in every if _SHORT_NAME.fullmatch(name)}
        known = retriever.names if retriever else ()
        self._first = {passage.asked[0]: number for number, passage in enumerate(self.passages) if passage.asked}
        self._titles = {name: self._first[name] for name in known if name in self._first}
        self._names = {
            name
            for passage in self.passages
            for name in re.findall(r"(?<![\w/.-])(?:--[a-z][\w-]*|/[a-z]+|rwkv-gpu [a-z]+)", passage.text)
        }

    def find(self, question: str, before: str = "") -> Found:
        """What answers a question: a refusal, a result, or a quotation; nothing where it is small talk.

        `before` is the question before it, which a short one may go on with.
        """
        fixed = decline(question) or greeting(question) or sums.answer(question) or rates.answer(question)
        if fixed:
            return Found(answer=fixed, sure=True)
        if problems.calculation(question):
            return Found(answer=sums.BEYOND, sure=True)
        if problems.problem(question):
            return Found(answer=sums.BEYOND, sure=True) if problems.beyond(question) else Found()
        if self.guess(question).get(SUM, 0.0) >= (CALCULATES if re.search(r"\d", question) else SURELY):
            return Found(answer=sums.BEYOND, sure=True)
        question = reports.plain(question)
        request = reports.requested(question)
        found = self._requested(request) if request else self._quoted(question, before)
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
            stems = [stem for stem in self.search.read(longest, self.everyday) if stem[0] != "~"]
            if len(longest) > 2 and stems and not any(self.search.knows(s) or s in self.everyday for s in stems):
                return str(word)
        return ""

    def _quoted(self, question: str, before: str) -> Found:
        """The passages that answer a question about the program."""
        if len(question.split()) > LONG:
            return Found()
        named = _named(question)
        for name in named - self._names:
            return Found(answer=self._absent(name), sure=True)
        named |= self._called.intersection(_plain_name(word.strip("`'\"?!.,;:()")) for word in question.split())
        shown: tuple[int, ...] = ()
        asked = self._read(question)
        if before and self._goes_on(question, asked):
            asked, shown = self._together(asked, before)
        found = self.search.found(asked)
        guess = self.guess(f"{question} {before}" if shown else question)
        reported = reports.symptoms(question)
        certainty = self._certainty(question, asked, found) + (SYMPTOM if reported else 0.0)
        ranked = self._with_names(self.ranked(found.ranked, guess, shown), named, question)
        ranked = self._with_reported(ranked, reported)
        if not ranked or (certainty < MAYBE and max(found.ranked, default=(0.0, 0))[0] < STRONG):
            return Found()
        score, best = ranked[0]
        fair = score >= FAIR
        sure = certainty >= (SURE if fair else CERTAIN)
        sure |= score >= STRONG and not named.isdisjoint(self.passages[best].asked)
        if score < WEAK:
            return Found(answer=NOTHING, sure=True) if sure else Found()
        if certainty < SURE and score < PROMISING:
            return Found()
        known = 1.0 if named.intersection(self.passages[best].asked) else max(guess.values(), default=1.0)
        quoted = self._best(ranked, NEAR if known >= KNOWN else WIDE, MOST)
        said = self._said(quoted, known)
        return Found(tuple(self.passages[n].text for n in quoted), (FROM if fair or not sure else NEAREST) + said, sure)

    def _together(self, asked: dict[str, float], before: str) -> tuple[dict[str, float], tuple[int, ...]]:
        """The words of a question and of the one before it, if that was about the program, and what was quoted then."""
        first = self.search.read(before, self.everyday)
        found = self.search.found(first)
        if self._certainty(before, first, found) < SURE:
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
        near = self.ranked(self.search.ranked(self.search.read(plain, self.everyday)), self.guess(plain))
        more = f" {NEAREST}{self.passages[near[0][1]].text}" if near and near[0][0] >= CLEAR else ""
        return f"{ABSENT}`{name}` in this version: neither the docs nor --help have it.{more}"

    def guess(self, question: str) -> dict[str, float]:
        """What the retriever takes a question for: names with their probabilities."""
        return self.retriever.guess(question) if self.retriever else {}

    def ranked(
        self, found: list[tuple[float, int]], guess: Mapping[str, float], shown: Collection[int] = ()
    ) -> list[tuple[float, int]]:
        """What the search found and what the retriever guesses, by the sum of their scores; less what was `shown`."""
        scores = {number: score for score, number in found}
        for name, share in guess.items():
            if share >= LEAST and name in self._titles:
                scores.setdefault(self._titles[name], 0.0)
        both = (
            (score + GUESS * guess.get(self._name(number), 0.0) - AGAIN * (number in shown), number)
            for number, score in scores.items()
        )
        return sorted(both, key=lambda one: (-one[0], one[1]))

    def _name(self, number: int) -> str:
        """What the retriever calls a passage."""
        asked = self.passages[number].asked
        return asked[0] if asked and asked[0] in self._titles else ELSEWHERE

    def _read(self, question: str) -> dict[str, float]:
        """The words of a question. Where it has several sentences, those around the one that asks count half."""
        sentences = [part for part in _SENTENCE.split(question) if len(part.split()) > 2]
        if len(sentences) < 2:
            return self.search.read(question, self.everyday)
        asks = [part for part in sentences if part.endswith("?") or _QUESTION.match(part)] or sentences
        around = " ".join(part for part in sentences if part != asks[-1])
        return dict.fromkeys(self.search.read(around, self.everyday), AROUND) | self.search.read(
            asks[-1], self.everyday
        )

    def best(self, question: str, near: float = 0.75, most: int = MOST) -> tuple[str, ...]:
        """The passages that fit a question best, whatever it is about."""
        return self._texts(self.search.ranked(self.search.read(question, self.everyday)), near, most)

    def _texts(self, ranked: list[tuple[float, int]], near: float, most: int) -> tuple[str, ...]:
        return tuple(self.passages[number].text for number in self._best(ranked, near, most))

    def _best(self, ranked: list[tuple[float, int]], near: float, most: int) -> tuple[int, ...]:
        """The passages that are quoted: those with nearly the best score, and no more than can be read at a glance."""
        near_best = [number for score, number in ranked[:most] if score >= near * ranked[0][0]]
        lengths = itertools.accumulate(len(self.passages[number].text) for number in near_best)
        return tuple(n for n, length in zip(near_best, lengths, strict=True) if n == near_best[0] or length <= GLANCE)

    def _goes_on(self, question: str, asked: Mapping[str, float]) -> bool:
        """Whether a question may be one together with the question before it: and from Python?"""
        content = [word for word in asked if word[0] != "~"]
        if len(content) > 3 or any(word[0] in "-/" for word in content):
            return False
        return bool(_MEANS.search(question)) or (bool(content) and bool(_GOES_ON.match(question)))

    def _with_names(self, ranked: list[tuple[float, int]], named: set[str], question: str) -> list[tuple[float, int]]:
        """Passages that explain what is named come first, as strong answers: where little else is asked."""
        beside = set(words(question)).difference(*(words(name) for name in named)) if named else set()
        more = GUESS + STRONG if len(beside) <= BESIDE else NAMED
        scored = [(score + more * bool(named.intersection(self.passages[n].asked)), n) for score, n in ranked]
        return sorted(scored, key=lambda found: (-found[0], found[1]))

    def _with_reported(self, ranked: list[tuple[float, int]], reported: Mapping[str, float]) -> list[tuple[float, int]]:
        """The entries that help with what is reported come before others that are not certain."""
        scores = {number: score for score, number in ranked}
        for heading, share in reported.items():
            number = self._first[heading]
            scores[number] = scores.get(number, 0.0) + REPORTED * share
        return sorted(((score, number) for number, score in scores.items()), key=lambda one: (-one[0], one[1]))

    def _certainty(self, question: str, asked: Mapping[str, float], found: Ranking) -> float:
        """How sure it is that a question is about the program, as log odds."""
        signs = self.signs(question, asked, found)
        if not signs:
            return -math.inf
        return sum(weight * sign for weight, sign in zip(CERTAINTY, signs, strict=True))

    def signs(self, question: str, asked: Mapping[str, float], found: Ranking) -> list[float]:
        """What speaks for a question about the program, or against it; `training.certainty` finds the weights."""
        content = [word for word in asked if word[0] != "~"]
        if not found.ranked or not content:
            return []
        evidence = [self._evidence(word) for word in content]
        forms = [
            bool(_YOU.search(question)),
            bool(_I.match(question)),
            bool(_IT.search(question)),
            bool(_THING.search(question)),
        ]
        score = found.ranked[0][0]
        guessed = self.guess(question).get(SMALL_TALK, 0.5)
        against = math.log((1 - guessed + SHARE) / (guessed + SHARE))
        return [
            sum(evidence),
            max(evidence),
            score,
            max(0.0, score - 1),
            len(content),
            *forms,
            found.small_talk,
            against,
            1.0,
        ]

    def _evidence(self, word: str) -> float:
        """How much a word speaks for a question about the program, and against small talk."""
        if not self.search.knows(word) and word not in self.everyday:
            return UNKNOWN
        here = 0.3 * self.search.share(word) + 0.15 * self.search.knows(word) / len(self.passages)
        return max(-3.0, min(3.0, math.log((here + RARE) / (self.everyday.get(word, 0.0) + RARE))))


# The weights of `signs`; the last is the constant.
CERTAINTY = (0.42, 0.69, -0.59, 2.07, 0.29, -1.07, -1.23, 2.37, 2.07, -2.56, 0.38, -1.96)


@functools.cache
def load(architectures: Collection[str] = (), path: Path = INDEX) -> Help:
    """The help of this version, where these architectures are supported."""
    search, everyday = read(architectures, path)
    return Help(search, everyday, trained.load())


def read(architectures: Collection[str] = (), path: Path = INDEX) -> tuple[Search, dict[str, float]]:
    """From the index: lines of everyday words, of synonyms, of small talk; then passages and families of models."""
    everyday, synonyms, small_talk, *lines = path.read_text(encoding="utf-8").splitlines()
    counts = (part.split(":") for part in everyday.split())
    passages = [_passage(line.split("\t"), architectures) for line in lines]
    search = Search(passages, _groups(synonyms), small_talk.split("|"))
    return search, {word: int(count) / 1e6 for word, count in counts}


def _groups(line: str) -> dict[str, frozenset[str]]:
    """The words that a word may stand for, from groups that are separated by tabs."""
    found: dict[str, frozenset[str]] = {}
    for group in line.split("\t"):
        alike = frozenset(group.split())
        for word in alike:
            found[word] = found.get(word, frozenset()) | alike
    return found


def _passage(cells: list[str], architectures: Collection[str]) -> Passage:
    """A passage of the docs, or one about a family of models: `model`, its names, its architectures."""
    if cells[0] == "model":
        return _family(cells[1].split(", "), cells[2].split(), architectures)
    weight, asked, also, text = cells
    known = ", ".join(f"`{name}`" for name in WELL_KNOWN if name in architectures)
    text = text.replace(ARCHITECTURES, f"{len(architectures)} architectures are supported, among them {known}")
    return Passage(float(weight), tuple(asked.split("|")), frozenset(also.split()), text)


def _family(names: list[str], needs: list[str], architectures: Collection[str]) -> Passage:
    """What there is to say about a family of models, by the architectures that there are."""
    there = [f"`{need}`" for need in needs if need in architectures]
    missing = [f"`{need}`" for need in needs if need not in architectures]
    if not needs:
        text = f"No, it does not run {names[0]}: only language models in GGUF files that generate text are supported."
    elif not missing:
        text = f"Yes, it runs {names[0]}: GGUF files of the architecture {' or '.join(there)} are supported. {GET}"
    elif needs == [UNNAMED]:
        text = f"No, {names[0]} is not among the supported models: docs/models.md lists them."
    elif not there:
        text = (
            f"No, it does not run {names[0]}: the architecture {' or '.join(missing)} is not supported in this version."
        )
    else:
        text = (
            f"{names[0]}: the architectures {', '.join(there)} are supported, {', '.join(missing)} not in this version."
        )
    forms = ("{}", "does {} work", "can I run {}", "is {} supported", "{} support")
    asked = tuple(form.format(name) for name in names for form in forms)
    also = frozenset(words("model models run load architecture compatible"))
    return Passage(1.0, asked, also, text, frozenset(words(" ".join(names))))
