"""The words of a question by their stems, as the search for passages compares them."""

import functools
import re

_WORD = re.compile(r"//?[a-z?]+\b|-{0,2}[a-z0-9](?:[\w.+-]*[a-z0-9+])?")
_FUNCTION_WORDS = frozenset(
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
_EXTENSION = re.compile(
    r"(?<=\w)\.(safetensors|gguf|pdf|txt|json|jsonl|csv|docx?|xlsx?|md|py|bin|pth|jpg|png|mp3|wav)$"
)
_ENDINGS = ("isations", "isation", "ations", "ation", "ings", "ing", "ers", "ies", "ed", "es", "er", "s", "e", "y")


def words(text: str) -> list[str]:
    """The stems of content words; compounds as a whole and in parts."""
    return [term for term in terms(text) if term[0] != "~"]


def terms(text: str) -> list[str]:
    """The stems of all words, in order. Function words, numbers and single letters begin with `~`."""
    plain = text.lower().replace("'", "").replace("_", "-")
    return [term for word in _WORD.findall(plain) for term in _terms(word)]


@functools.cache
def _terms(word: str) -> tuple[str, ...]:
    """A word has one stem, a compound its own and those of its parts. Few words make up all questions of the index."""
    found: list[str] = []
    if word.startswith("rwkv-gpu"):
        found.append("rwkv-gpu")
        word = word.removeprefix("rwkv-gpu").strip(".-")
        if not word:
            return tuple(found)
    if word[0] in "-/":
        found.append(word)
    word = _EXTENSION.sub(r"-\1", word)
    parts = [part for part in re.split(r"[-/]+", word) if part]
    if len(parts) > 1:
        found.append("".join(parts))
    for part in parts:
        plain = part in _FUNCTION_WORDS or len(part) == 1 or part.isdigit()
        found.append(f"~{part}" if plain else stem(part))
    return tuple(found)


def stem(word: str) -> str:
    """A word without its ending, roughly: quantise, quantised and quantization are one."""
    word = word.replace("iz", "is").strip(".+")
    for ending in _ENDINGS:
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)]
            break
    return word[:-1] if len(word) > 3 and word[-1] == word[-2] else word
