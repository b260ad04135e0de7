"""How people type: with and without capitals, commas, apostrophes and question marks, in haste."""

import random
import re

_SHORT = {
    "what is": "what's", "I am": "I'm", "do not": "don't", "does not": "doesn't", "you are": "you're", "is not": "isn't",
    "cannot": "can't", "did not": "didn't", "it is": "it's", "who is": "who's", "where is": "where's", "I will": "I'll",
    "I have": "I've", "let us": "let's", "that is": "that's", "are not": "aren't", "would not": "wouldn't",
}  # fmt: skip
_HASTE = {"you": "u", "please": "pls", "are": "r", "thanks": "thx", "because": "cuz", "your": "ur", "people": "ppl"}
_DROPPED = {
    "a",
    "an",
    "the",
    "is",
    "are",
    "do",
    "does",
    "of",
    "to",
    "can",
    "you",
    "i",
    "me",
}  # by who types in telegrams
_SHORT_RE = re.compile(r"\b(" + "|".join(_SHORT) + r")\b")
_HASTE_RE = re.compile(r"\b(" + "|".join(_HASTE) + r")\b")
_ASKING = re.compile(
    r"(?:and |so |but |ok(?:ay)?,? |hey,? |well,? |then )?(what|who|where|when|why|how|which|whose|is|are|am|do|does|did|can|could"
    r"|will|would|should|may|have|has|was|were|any)\b",
    re.I,
)
_BEFORE = ("hey, ", "ok, ", "so ", "quick question: ", "tell me, ", "well, ", "and ", "hmm, ", "oh, ", "I have a question: ",
           "one question: ", "alright, ", "say, ", "please tell me, ", "now, ", "ok now ", "hello, ", "hi, ", "cool, ")  # fmt: skip
_ORDER = re.compile(
    r"(tell|give|write|make|name|count|explain|describe|say|show|list|introduce|help|suggest|let|sing|recite)\b", re.I
)
_AFTER = (" please", ", please", " pls", " then", " now", " :)", " btw", " by the way")


def asks(text: str) -> bool:
    """Whether it looks like a question."""
    return bool(_ASKING.match(text))


def typed(text: str, rng: random.Random, *, exact: bool = False) -> str:
    """What a user may type for a text that ends in no mark; `exact` leaves the words as they are."""
    question = asks(text)
    roll = rng.random
    if (question or _ORDER.match(text)) and not exact:
        if roll() < 0.12:
            text = rng.choice(_BEFORE) + text
        if roll() < 0.06:
            text += rng.choice(_AFTER)
    text = text[:1].upper() + text[1:]
    if not exact:
        if roll() < 0.4:
            text = _SHORT_RE.sub(lambda m: _SHORT[m[0]], text)
        if roll() < 0.05:
            text = _HASTE_RE.sub(lambda m: _HASTE[m[0]], text)
        if roll() < 0.06 and text.count(" ") > 2:
            text = " ".join(word for word in text.split(" ") if word.lower() not in _DROPPED or roll() < 0.3) or text
        if roll() < 0.07 and len(text) > 8:
            text = mistyped(text, rng)
    if text[-1] not in ".!?":
        text += _ending(question, roll())
    style = roll()
    if style < 0.33:
        text = text.lower()
    elif style < 0.35:
        text = text.upper()
    if roll() < 0.15:
        text = text.replace("'", "")
    if roll() < 0.15:
        text = text.replace(",", "")
    return text


def _ending(question: bool, roll: float) -> str:
    if question:
        return "?" if roll < 0.62 else "" if roll < 0.95 else "??" if roll < 0.98 else " ?"
    return "" if roll < 0.5 else "." if roll < 0.86 else "!" if roll < 0.97 else "..."


def mistyped(text: str, rng: random.Random) -> str:
    """One letter left out, doubled, or changed with its neighbour."""
    at = rng.randrange(1, len(text) - 2)
    if not text[at : at + 2].isalpha():
        return text
    kind = rng.randrange(3)
    if kind == 0:
        return text[:at] + text[at + 1 :]
    if kind == 1:
        return text[:at] + text[at] + text[at:]
    return text[:at] + text[at + 1] + text[at] + text[at + 2 :]
