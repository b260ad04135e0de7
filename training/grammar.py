"""Templates: {one|another}, [perhaps], <slot>, <a slot> with its article, <cap slot>; and sentences' capitals."""

import functools
import random
import re
from collections.abc import Callable

Slots = Callable[[str], str]
Part = str | tuple["str", object]

_MARKS = re.compile(r"[{}\[\]|<>]")
_SENTENCE = re.compile(r"(^|[.!?] |\n|: \")([a-z])")
# Words that begin with a vowel's letter and not with its sound, and the other way round.
_CONSONANT = ("uni", "use", "eu", "one", "ukulele")
_VOWEL = ("hour", "honest")


class Choice:
    """One of several sequences; an empty one stands for [perhaps]."""

    def __init__(self, options: list[list["Node"]]) -> None:
        self.options = options


class Slot:
    """A value by name, and what is done to it."""

    def __init__(self, name: str) -> None:
        how, _, rest = name.partition(" ")
        self.name, self.how = (rest, how) if rest else (name, "")


Node = str | Choice | Slot


@functools.cache
def parse(text: str) -> list[Node]:
    """The nodes of a template."""
    nodes, at = _sequence(text, 0, "")
    assert at == len(text), f"{text!r} does not close at {at}"
    return nodes


def _sequence(text: str, at: int, until: str) -> tuple[list[Node], int]:
    nodes: list[Node] = []
    while at < len(text):
        mark = _MARKS.search(text, at)
        if mark is None:
            nodes.append(text[at:])
            return nodes, len(text)
        if mark.start() > at:
            nodes.append(text[at : mark.start()])
        at = mark.start()
        if text[at] in until:
            return nodes, at
        if text[at] == "<":
            end = text.index(">", at)
            nodes.append(Slot(text[at + 1 : end]))
            at = end + 1
            continue
        assert text[at] in "{[", f"{text!r}: {text[at]!r} at {at} opens nothing"
        options, closing = [], "}" if text[at] == "{" else "]"
        while text[at] != closing:
            option, at = _sequence(text, at + 1, "|" + closing)
            assert at < len(text), f"{text!r}: no {closing}"
            options.append(option)
        if closing == "]":
            options = options * 2 + [[]] * (2 * len(options))
        nodes.append(Choice(options))
        at += 1
    assert not until, f"{text!r} ends too soon"
    return nodes, at


def names(text: str) -> set[str]:
    """The slots that a template may ask for."""

    def walk(nodes: list[Node]) -> set[str]:
        found = {node.name for node in nodes if isinstance(node, Slot)}
        return found.union(*(walk(o) for node in nodes if isinstance(node, Choice) for o in node.options))

    return walk(parse(text))


def expand(text: str, rng: random.Random, slots: Slots) -> str:
    """One of the texts of a template."""
    out: list[str] = []
    _expand(parse(text), rng, slots, out)
    return "".join(out)


def _expand(nodes: list[Node], rng: random.Random, slots: Slots, out: list[str]) -> None:
    for node in nodes:
        if isinstance(node, str):
            out.append(node)
        elif isinstance(node, Slot):
            out.append(_shaped(slots(node.name), node.how))
        else:
            _expand(node.options[int(rng.random() * len(node.options))], rng, slots, out)


def _shaped(value: str, how: str) -> str:
    if how == "a":
        return f"{article(value)} {value}"
    if how == "cap":
        return value[:1].upper() + value[1:]
    assert not how, how
    return value


def article(word: str) -> str:
    """a or an"""
    low = word.lower()
    return "an" if (low[0] in "aeiou" or low.startswith(_VOWEL)) and not low.startswith(_CONSONANT) else "a"


def sentences(text: str) -> str:
    """With a capital at the start of each sentence; rwkv-gpu keeps its small letters."""

    def capital(match: re.Match[str]) -> str:
        name = text.startswith("rwkv-gpu", match.start(2))
        return match[0] if name else match[1] + match[2].upper()

    return _SENTENCE.sub(capital, text)
