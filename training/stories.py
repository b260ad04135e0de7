"""Little stories: a hero with a name and a place, a wish, a trouble, a helper and an end; and questions about them."""

import functools
import json
import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from .grammar import article, expand, sentences
from .noise import typed
from .sheet import TALK, Turn, any_of

_WANT = (
    "tell me a story", "tell a story", "can you tell me a story", "I want to hear a story", "please tell me a story", "a story please", "story",
    "tell me a short story", "do you know a story", "tell me a little story", "I would like a story", "make up a story", "write a story",
    "write me a short story", "tell me a bedtime story", "tell me a fairy tale", "tell us a story", "story time",
)  # fmt: skip
_ABOUT = (
    "tell me a story about {}", "a story about {}", "can you tell me a story about {}", "write a story about {}", "I want a story about {}",
    "tell me a short story about {}", "make up a story about {}", "please tell me a story about {}", "do you know a story about {}", "story about {}",
    "tell a little story about {}", "write me a short story about {}", "one about {} please", "I would like to hear a story about {}",
)  # fmt: skip
_ANOTHER = (
    "another one",
    "tell me another story",
    "another story please",
    "one more",
    "another",
    "again",
    "more stories",
    "a different one",
    "now another one",
    "tell me one more",
)
_LEADS = ("", "", "", "", "Gladly! ", "Of course. ", "Here is a story: ")
_PRAISE = (
    "nice",
    "that was nice",
    "I like it",
    "beautiful",
    "thank you",
    "a nice story",
    "that was a good story",
    "great story",
    "lovely",
    "cute",
    "good story",
)


@dataclass(frozen=True)
class Story:
    """A text and what can be asked about it."""

    text: str
    name: str
    hero: str
    where: str
    friend: str
    wish: str
    plot: int


@functools.cache
def parts() -> dict[str, Any]:
    """What stories are made of."""
    return json.loads((TALK / "story_parts.json").read_text(encoding="utf-8"))


def story(rng: random.Random, hero: str | None = None, name: str | None = None, but: Sequence[Story] = ()) -> Story:
    """A new one; the hero and the name may be given, and stories that it must not resemble."""
    known = {row[0]: row for row in parts()["heroes"]}
    kinds = [row for row in parts()["heroes"] if row[0] not in {told.hero for told in but}]
    kind, subject, obj = known.get(hero or "") or ([hero, "it", "it"] if hero else rng.choice(kinds))
    names = parts()["names"]["she" if subject == "she" else "he"]
    name = name or rng.choice([one for one in names if one not in {told.name for told in but}])
    number = rng.choice([i for i in range(len(parts()["plots"])) if i not in {told.plot for told in but}])
    plot = parts()["plots"][number]
    where = rng.choice([place for place in parts()["places"] if place not in {told.where for told in but}])
    friend = rng.choice([other for other in parts()["friends"] if not other.endswith(kind)])
    slots = {
        "name": name, "pro": subject, "Pro": subject.capitalize(), "obj": obj, "poss": {"he": "his", "she": "hers", "it": "its own"}[subject],
        "thing": rng.choice(parts()["things"]), "friend": friend,
    }  # fmt: skip
    trait = rng.choice(parts()["traits"])
    opening = rng.choice((
        f"Once upon a time there was {article(trait)} {trait} {kind} named {name}, who lived {where}.",
        f"There was once {article(trait)} {trait} {kind} named {name}. {subject.capitalize()} lived {where}.",
        f"{where[:1].upper() + where[1:]} lived {article(trait)} {trait} {kind}. {'Its' if subject == 'it' else 'His' if subject == 'he' else 'Her'} name was {name}.",
        f"{name} was {article(trait)} {trait} {kind} who lived {where}.",
    ))  # fmt: skip
    body = [plot["wish"], *(rng.choice(plot[step]) for step in ("steps", "trouble", "help", "end"))]
    if rng.random() < 0.5 and not plot["wish"].startswith("There"):
        moment = rng.choice(parts()["moments"])
        body[0] = f"{moment[:1].upper() + moment[1:]} everything changed. " + body[0] if rng.random() < 0.3 else body[0]
    text = " ".join(
        [opening, *(expand(sentence, rng, slots.__getitem__) for sentence in body), rng.choice(parts()["closings"])]
    )
    return Story(
        sentences(text.strip()), name, kind, where, friend, expand(plot["what"], rng, slots.__getitem__), number
    )


def _asking(told: Story, rng: random.Random) -> Turn:
    kinds = (
        (("what was the name of the hero", f"what was the {told.hero} called", "who was the story about", f"what was the name of the {told.hero}", "what was the hero's name"),
         (f"The {told.hero} was called {told.name}.", f"It was about {told.name}, the {told.hero}.")),
        ((f"where did {told.name} live", f"where did the {told.hero} live", "where did the hero live", "where was that"), (f"{told.name} lived {told.where}.",)),
        ((f"who helped {told.name}", "who was the helper", f"who helped the {told.hero}", f"who did {told.name} meet"), (f"{article(told.friend).capitalize()} {told.friend} helped {told.name}.",)),
        ((f"what did {told.name} want", f"what did the {told.hero} want", "what was the story about", "what was it about"), (f"{told.name} wanted to {told.wish}.",)),
        (("what happened then", "what happened next", "and then", "go on", "and after that"), ("That was the end of the story. Shall I tell you another one?", f"Then {told.name} went home and slept well. That is all that I know.")),
        (("what is the moral", "what does the story teach", "what do we learn from it"), ("That it is good to have a friend.", "That one should not give up.")),
        (_PRAISE, ("I am glad that you like it!", "Thank you! Shall I tell you another one?", "I am glad. Stories are what I do best.")),
        (("is that a true story", "did that really happen", "is that true"), ("No, I made it up.", "No, it is only a story.")),
    )  # fmt: skip
    asks, answers = rng.choice(kinds)
    return typed(rng.choice(asks), rng), rng.choice(answers)


def stories(rng: random.Random, before: list[Story]) -> list[Turn]:
    """A story that was asked for, questions about it, and perhaps others; none resembles those before it."""
    told, ask = _wanted(rng, before)
    turns = [(ask, rng.choice(_LEADS) + told.text)]
    before.append(told)
    while rng.random() < 0.5:
        turns.append(_asking(told, rng))
    while rng.random() < 0.25 and len(before) < 5:
        told = story(rng, but=before)
        before.append(told)
        turns.append((typed(rng.choice(_ANOTHER), rng), told.text))
        if rng.random() < 0.5:
            turns.append(_asking(told, rng))
    return turns


def _wanted(rng: random.Random, before: list[Story]) -> tuple[Story, str]:
    if rng.random() < 0.45 or len(before) > 5:
        return story(rng, but=before), typed(rng.choice(_WANT), rng)
    hero = (
        rng.choice(parts()["heroes"])[0]
        if rng.random() < 0.7
        else any_of(rng.choice(("animal", "thing", "job", "pet")), rng)
    )
    if rng.random() < 0.3:
        name = any_of("person", rng)
        phrase = rng.choice(("{} named {}", "{} called {}", "{} with the name {}")).format(
            f"{article(hero)} {hero}", name
        )
        return story(rng, hero, name, before), typed(rng.choice(_ABOUT).format(phrase), rng, exact=True)
    return story(rng, hero, but=before), typed(rng.choice(_ABOUT).format(f"{article(hero)} {hero}"), rng)
