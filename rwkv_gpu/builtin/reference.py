"""What `--help` says of a command or an option: its default, its bounds, and how two of them differ."""

import functools
import math
import re
from collections.abc import Collection

from .naming import asks_default, compared, named_options
from .search import Search
from .words import words

OPTION = 0.8  # the weight of passages on options
LIKE = 1.0  # how near the description of an option is to a question at least
AMOUNTS = frozenset(("most", "least", "all", "default"))
EVERYWHERE = frozenset(("run", "chat", "list", "rm"))  # commands whose names say little in a question
MOST = 2  # passages on options that have the same name


class Reference:
    """The passages of `--help`, by the names of commands and options."""

    def __init__(self, search: Search) -> None:
        self._search = search
        self._passages = search.passages

    def asked(self, question: str) -> tuple[int, ...]:
        """The passages on options whose default or bounds are asked for."""
        default = asks_default(question)
        numbers = dict.fromkeys(n for name in named_options(question, self._options) for n in self._options[name])
        meant = [n for n in numbers if self._fits(n, question) and (not default or self._has_default(n))]
        if not meant and default:
            meant = self._described(question)
        return tuple(meant[:MOST])

    def compared(self, question: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
        """The commands and options that a question compares, and the passages on them; nothing where it is one."""
        first = {name: numbers[0] for name, numbers in self._options.items()} | self._commands
        names = compared(question, first)
        found = tuple(dict.fromkeys(first[name] for name in names))
        return (names, found) if len(found) > 1 else ((), ())

    def of_commands(self, question: str) -> set[int]:
        """The passages on the commands that a question names, in any form of the word: tokenise, the tokenizer."""
        asked = set(words(question))
        return {number for stem, numbers in self._mentions.items() if stem in asked for number in numbers}

    @functools.cached_property
    def _mentions(self) -> dict[str, set[int]]:
        named = {name: [stem for stem in words(name) if name not in EVERYWHERE] for name in self._commands}
        texts = [f"{passage.text} " for passage in self._passages]
        return {
            stem: {number for number, text in enumerate(texts) if f"rwkv-gpu {name}" in text or f"`{name}`" in text}
            for name, stems in named.items()
            for stem in stems
        }

    @functools.cached_property
    def _options(self) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for number, passage in enumerate(self._passages):
            for name in passage.asked:
                if passage.weight == OPTION and name[0] == "-":
                    found.setdefault(name, []).append(number)
        return found

    @functools.cached_property
    def _commands(self) -> dict[str, int]:
        form = re.compile(r"what does rwkv-gpu (\S+) do")
        firsts = ((number, passage.asked[0]) for number, passage in enumerate(self._passages) if passage.asked)
        return {match[1]: number for number, asked in firsts if (match := form.fullmatch(asked))}

    def _fits(self, number: int, question: str) -> bool:
        """Whether the command that has an option is the one in the question; the server's need none."""
        of = re.search(r"` of `rwkv-gpu (\w+)`", self._passages[number].text)
        return not of or of[1] == "serve" or not set(words(of[1])).isdisjoint(words(question))

    def _has_default(self, number: int) -> bool:
        return "efault" in self._passages[number].text

    def _described(self, question: str) -> list[int]:
        """The passage on an option of the command in a question, where its description is near the question."""
        asked = set(words(question)) - AMOUNTS
        commands = {stem for name in self._commands for stem in words(name) if stem in asked}
        best: list[int] = []
        most = LIKE
        for number in dict.fromkeys(n for each in self._options.values() for n in each):
            passage = self._passages[number]
            if self._has_default(number) and commands & passage.also and self._fits(number, question):
                told = set(words(re.split(r"\b[Dd]efault\b", passage.text.partition(": ")[2])[0]))
                score = self._weight(asked & told) / math.sqrt(self._weight(told))
                if score > most:
                    best, most = [number], score
        return best

    def _weight(self, found: Collection[str]) -> float:
        return sum(self._search.weight(word) for word in found)
