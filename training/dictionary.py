"""Questions for words: the common ones of WordNet are explained, the rare ones are honestly not known."""

import functools
import random

from .grammar import article
from .noise import typed
from .sheet import TALK, Turn, any_of, made_up

_WHAT = ("what is {a}", "what does {w} mean", "what is the meaning of {w}", "define {w}", "explain {w}", "what does the word {w} mean",
         "do you know what {a} is", "what is {w}", "explain the word {w}", "can you tell me what {a} is", "tell me what {w} means", "meaning of {w}",
         "do you know the word {w}", "what exactly is {a}", "{w}", "what is meant by {w}")  # fmt: skip
_ABOUT = (
    "tell me about {w}",
    "what do you know about {w}",
    "how does {a} work",
    "have you heard of {w}",
    "I want to know about {w}",
)
_NO = ("I do not know what {a} is. I am a very small model.", "I do not know the word {w}. What does it mean?", "I am sorry, I do not know {w}.",
       "I am sorry, I have never heard of {w}.")  # fmt: skip
_WHO = (
    "who is {n}",
    "who was {n}",
    "do you know {n}",
    "tell me about {n}",
    "what did {n} do",
    "when was {n} born",
    "how old is {n}",
    "is {n} famous",
    "what do you think of {n}",
)
_NOBODY = (
    "I do not know {n}. I am a very small model and know only few names.",
    "I am sorry, I do not know who {n} is.",
    "I do not know {n}. Who is that?",
)


@functools.cache
def common() -> list[tuple[str, bool, str]]:
    """Words, whether they take an article, and their meanings."""
    lines = (line.split("\t") for line in (TALK / "nouns.tsv").read_text(encoding="ascii").splitlines())
    return [(word, bool(counted), meaning) for word, counted, meaning in lines]


@functools.cache
def rare() -> list[str]:
    """Words that are not known."""
    return (TALK / "rare.lst").read_text(encoding="ascii").split()


def unknown(rng: random.Random) -> str:
    """A word that is not known: rare, or made up."""
    return made_up(rng) if rng.random() < 0.35 else rng.choice(rare())


def _asked(templates: tuple[str, ...], word: str, rng: random.Random) -> str:
    return typed(rng.choice(templates).format(w=word, a=f"{article(word)} {word}"), rng)


def explained(word: str, counted: bool, meaning: str) -> str:
    """The sentence that a word is answered with."""
    if counted and meaning.startswith(("a ", "an ", "any ")):
        return f"{article(word).capitalize()} {word} is {meaning}."
    return f"The word {word} means {meaning}."


def words(rng: random.Random) -> list[Turn]:
    """What a word means, or that it is not known; perhaps another word after it."""
    turns = []
    while True:
        if rng.random() < 0.55:
            word, counted, meaning = rng.choice(common())
            turns.append((_asked(_WHAT, word, rng), explained(word, counted, meaning)))
        elif rng.random() < 0.75:
            word = unknown(rng)
            no = rng.choice(_NO).format(w=word, a=f"{article(word)} {word}")
            turns.append((_asked(_WHAT + _ABOUT, word, rng), no))
            if no.endswith("?") and rng.random() < 0.6:
                turns += _taught(word, rng)
        else:
            turns.append(_nobody(rng))
        if rng.random() < 0.7:
            return turns


def _taught(word: str, rng: random.Random) -> list[Turn]:
    """The user explains the word; later it is known."""
    thing = any_of(rng.choice(("animal", "thing", "food", "drink", "sport", "job", "pet")), rng)
    means = rng.choice(
        (
            f"a kind of {thing}",
            f"something like {article(thing)} {thing}",
            f"another word for {thing}",
            f"a small {thing}",
        )
    )
    said = rng.choice(("it is {}", "it means {}", "{}", "that is {}", f"{article(word)} {word} is {{}}")).format(means)
    turns = [
        (typed(said, rng), rng.choice(("Thank you! Now I know.", "I see. Thank you for telling me.", "Ah, thank you!")))
    ]
    if rng.random() < 0.5:
        asked = rng.choice(("so what is {a}", "what is {a}", "do you know now what {a} is", "what does {w} mean"))
        turns.append((_asked((asked,), word, rng), f"You told me that it is {means}."))
    return turns


def _nobody(rng: random.Random) -> Turn:
    family = any_of("surname", rng) if rng.random() < 0.7 else made_up(rng).capitalize()
    name = f"{any_of('person', rng)} {family}"
    return typed(rng.choice(_WHO).format(n=name), rng, exact=rng.random() < 0.5), rng.choice(_NOBODY).format(n=name)
