"""Whole conversations: scenes one after the other, with what the user told kept in mind. Deterministic by seed."""

import random

from . import arithmetic, dictionary, echo, memory, stories
from .grammar import sentences
from .noise import typed
from .sheet import Turn, any_of, sheets

# How often a scene is of which kind.
WEIGHTS = {
    "sheet": 50.0,
    "story": 6.0,
    "numbers": 11.0,
    "word": 9.0,
    "tell": 8.0,
    "ask": 5.0,
    "sum_up": 1.0,
    "introduce": 2.0,
    "relatives": 2.0,
    "given_name": 1.0,
    "echo": 4.0,
}
PLAIN = 0.04  # share of documents that are stories without a chat
LENGTHS = (1, 1, 2, 2, 3, 4, 5, 6, 8, 12)  # scenes of a conversation
SPOKEN = list[tuple[str, str]]  # text, and who says it


def conversation(rng: random.Random) -> list[Turn]:
    """The turns of one chat."""
    turns: list[Turn] = []
    known: memory.Known = {}
    told: list[stories.Story] = []
    sheet = None
    for _ in range(rng.choice(LENGTHS)):
        kind = rng.choices(list(WEIGHTS), list(WEIGHTS.values()))[0]
        if kind == "sheet":
            if sheet is None or rng.random() < 0.6:
                sheet = rng.choices(sheets(), [one.weight for one in sheets()])[0]
            turns += sheet.scene(rng)
        elif kind == "echo":
            turns += echo.echo(rng, turns)
        elif kind == "story":
            turns += stories.stories(rng, told)
        elif kind in ("numbers", "word"):
            turns += {"word": dictionary.words, "numbers": arithmetic.numbers}[kind](rng)
        else:
            turns += getattr(memory, kind)(rng, known)
        if "hall I tell you" in turns[-1][1] and rng.random() < 0.6:
            turns += offered(rng, told)
    return turns


def offered(rng: random.Random, told: list[stories.Story]) -> list[Turn]:
    """The user takes the story that was offered, or does not."""
    if rng.random() < 0.25:
        no = rng.choice(("no", "no thanks", "not now", "no, thank you", "maybe later", "rather not"))
        return [
            (
                typed(no, rng),
                rng.choice(
                    ("All right. What would you like instead?", "That is fine. Just tell me what you would like.")
                ),
            )
        ]
    yes = rng.choice(
        (
            "yes",
            "yes please",
            "yes, please",
            "ok",
            "sure",
            "of course",
            "please",
            "yes, tell me one",
            "gladly",
            "go ahead",
            "why not",
            "please do",
            "yeah",
        )
    )
    told.append(stories.story(rng, but=told[-5:]))
    return [(typed(yes, rng), told[-1].text)]


def system(rng: random.Random) -> tuple[str, list[Turn]]:
    """What the system says, and turns that need it."""
    name = any_of("person", rng)
    kind = rng.randrange(4)
    if kind == 0:
        told = rng.choice((f"Your name is {name}.", f"You are {name}.", f"You are called {name}."))
        asks = ("what is your name", "who are you", "what are you called", "introduce yourself")
        answers = (f"My name is {name}.", f"I am {name}, the built-in model of rwkv-gpu.")
    elif kind == 1:
        told = rng.choice((f"The user is called {name}.", f"The name of the user is {name}.", f"You talk with {name}."))
        asks = ("what is my name", "who am I", "do you know my name", "hello", "hi")
        answers = (f"Your name is {name}.",)
    else:
        told = rng.choice(
            (
                "You are a helpful assistant.",
                "You are a friendly assistant.",
                "Answer briefly.",
                "You are a small model.",
                "Be kind.",
                "You are the built-in model of rwkv-gpu.",
            )
        )
        return told, []
    ask = rng.choice(asks)
    if ask in ("hello", "hi"):
        answers = (f"Hello {name}! How can I help you?", f"Hello {name}! Nice to meet you.")
    return told, [(typed(ask, rng), sentences(rng.choice(answers)))]


def document(seed: int) -> SPOKEN:
    """The pieces of a text with who says them: system, user or assistant; a story alone is the assistant's."""
    rng = random.Random(seed)
    if rng.random() < PLAIN:
        return [(stories.story(rng).text, "assistant")]
    pieces: SPOKEN = []
    turns: list[Turn] = []
    if rng.random() < 0.06:
        told, turns = system(rng)
        pieces.append((f"System: {told}\n\n", "system"))
    turns += conversation(rng)
    for user, answer in turns:
        pieces += [(f"User: {user}\n\nAssistant:", "user"), (f" {answer}\n\n", "assistant")]
    return pieces
