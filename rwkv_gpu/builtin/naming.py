"""Options and commands that a question asks for by their names."""

import re
from collections.abc import Collection
from itertools import pairwise

_NAMED = re.compile(
    r"(?<!\S)`?(--[a-z][\w-]+|/[a-z]+)`?(?=[\s?!.,]|$)"
    r"|does `?(rwkv-gpu [a-z-]+)`? (?:do|mean)\b"
    r"|(?:explain|command|what is) `?(rwkv-gpu [a-z-]+)`?(?=\W*$| for\W*$)"
)
_PATH = re.compile(  # no command
    r"\b(?:under|below|at|in|on|to|path|prefix|folder|route|endpoint|location) `?/[a-z][\w./-]*"
)
SHORT_NAME = re.compile(r"-[a-z]{1,4}|--[a-z-]+|(?:ollama|num|repeat)-[a-z-]+")  # they need no other word to be meant
SHORTEST = 4  # characters of an option that may be named without its dashes: --kv is no word
_NOT = r"(?:do|did|does|is|are|was)(?:n ?'?t| not)"
_GIVE = r"(?:set|give|say|specify|pass|tell|use|choose)"
_DEFAULT = re.compile(
    r"(?i)\bdefaults?\b|\bby itself\b|\bout of the box\b|\bunless\b|\b(?:un(?:set|specified|given)|omitted)\b"
    r"|\bnothing (?:is )?(?:set|given|said)\b|\bwithout (?:setting|giving|specifying|passing|the option|an option|-)"
    rf"|\b(?:if|when) (?:i|you|we|it|one|nothing)\b.{{0,12}}\b(?:leave|omit|skip|{_NOT} {_GIVE}|{_GIVE} no(?:thing)?\b"
    r"|not (?:set|given|specified))"
)
_OTHER = re.compile(  # than the default: it is known, and how to change it is asked
    r"(?i)\b(?:instead of|(?:rather |other )?than|different from|change|override|replace) (?:the |its |this )?default"
)
_BOUND = re.compile(
    r"(?i)\b(?:max|maximum|min|minimum|largest|biggest|smallest|highest|lowest|at most|at least|upper|limits?"
    r"|range|bounds?|allowed|possible|choices|which values?|what values?)\b|\bhow (?:large|big|high|many)\b"
)
_COMPARES = re.compile(r"(?i)\b(?:differ\w*|distinction|distinguish|compare[sd]?|versus|vs|same (?:as|thing)|or)\b")
SIGNS = "`'\"?!.,;:()"  # that stand around a name


def named(question: str) -> set[str]:
    """The options and commands that are asked for by their names."""
    text = _PATH.sub(" ", question.lower())
    found = (next(part for part in match.groups() if part) for match in _NAMED.finditer(text))
    return {plain_name(name) for name in found}


def plain_name(name: str) -> str:
    """An option's name as the index has it: num_ctx is num-ctx."""
    return name.lower().partition("=")[0].replace("_", "-")


def asks_default(question: str) -> bool:
    """Whether a question is what an option is without being given: by default, if I leave it out, unless set."""
    return _DEFAULT.search(_OTHER.sub(" ", question)) is not None


def named_options(question: str, known: Collection[str]) -> tuple[str, ...]:
    """The options whose default or bounds a question is about, of those that are known.

    For a default they may be named in plain words, such as chunk size. A bound needs an option's name as it is typed.
    """
    default, bound = asks_default(question), _BOUND.search(question) is not None
    if not default and not bound:
        return ()
    text = f" {spelt_out(question)} " if default else ""
    typed = {spelt_out(word) for word in question.split() if word.startswith("-") or re.search(r"\w[-_]\w", word)}
    plains = {name: spelt_out(name) for name in known}
    found = {
        name: plain
        for name, plain in plains.items()
        if plain in typed or (len(name) > SHORTEST and f" {plain} " in text)
    }
    longest = {
        plain for plain in found.values() if not any(f" {plain} " in f" {p} " and p != plain for p in found.values())
    }
    return tuple(name for name, plain in found.items() if plain in longest)


def compared(question: str, known: Collection[str]) -> tuple[str, ...]:
    """The commands and options that a question compares with each other, of those that are known."""
    compares = _COMPARES.search(question)
    if not compares:
        return ()
    said = [word.strip(SIGNS).lower() for word in question.split()]
    found = tuple(dict.fromkeys(word for word in said if word in known))
    beside = any(f"{first} or {second}" in " ".join(said) for first, second in pairwise(found))
    return found if beside or compares[0].lower() != "or" else ()


def spelt_out(name: str) -> str:
    """An option's name as it is said: --top-k is top k."""
    return " ".join(re.findall(r"[a-z0-9]+", name.lower()))
