"""Turns about the talk itself: say it again, what did I say, say this after me."""

import random

from .dictionary import common, unknown
from .noise import typed
from .sheet import Turn, any_of

_AGAIN = (
    "can you repeat that",
    "say that again",
    "repeat that please",
    "what did you just say",
    "please say it again",
    "again please",
    "can you say that again",
    "repeat your last answer",
    "what was your last answer",
    "one more time",
)
_MINE = (
    "what did I just say",
    "what did I just ask",
    "what was my last question",
    "repeat what I said",
    "what did I say",
    "what did I ask you",
)
_FIRST = (
    "what was my first question",
    "what did I ask first",
    "what did I say first",
    "how did our talk begin",
    "what was the first thing I said",
)
_SAY = (
    "say {}",
    "repeat after me: {}",
    "please say {}",
    "say the word {}",
    "repeat: {}",
    "can you say {}",
    "write {}",
    "just say {}",
)


def _word(rng: random.Random) -> str:
    kind = rng.choice(("thing", "animal", "made", "person", "food", "colour", "city", "any", "any"))
    return rng.choice((unknown(rng), rng.choice(common())[0])) if kind == "any" else any_of(kind, rng)


def echo(rng: random.Random, turns: list[Turn]) -> list[Turn]:
    """One turn that needs what was said before, or what is said in it."""
    kind = rng.random()
    if turns and kind < 0.3:
        last = turns[-1][1]
        return [(typed(rng.choice(_AGAIN), rng), rng.choice((last, f"I said: {last}", last)))]
    if turns and kind < 0.55:
        return [(typed(rng.choice(_MINE), rng), f"You said: {turns[-1][0]}")]
    if turns and kind < 0.65:
        return [(typed(rng.choice(_FIRST), rng), f"You said: {turns[0][0]}")]
    words = [
        any_of(rng.choice(("thing", "animal", "made", "person", "food", "colour", "city")), rng)
        for _ in range(rng.choice((1, 1, 2, 3)))
    ]
    text = " ".join(words)
    if kind < 0.75:
        items = [any_of("thing", rng) for _ in range(3)]
        said = f"remember these words: {items[0]}, {items[1]}, {items[2]}"
        asked = rng.choice(
            (
                "which words did I tell you",
                "what were the words",
                "can you say the words",
                "what words should you remember",
            )
        )
        return [
            (typed(said, rng), "All right, I will remember them."),
            (typed(asked, rng), f"The words were {items[0]}, {items[1]} and {items[2]}."),
        ]
    question = rng.choice(_SAY).format(text)
    said = typed(question, rng, exact=True).removesuffix(".").removesuffix("...").removesuffix("!").removesuffix("?")
    shown = said[-len(text) :]
    return [(said, shown[:1].upper() + shown[1:] + ".")]
