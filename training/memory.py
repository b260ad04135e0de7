"""What users say about themselves, and that it is remembered in the same talk."""

import random
from dataclasses import dataclass

from .grammar import expand, sentences
from .noise import typed
from .sheet import Turn, any_of

Known = dict[str, str]  # what the user has said so far, by fact


@dataclass(frozen=True)
class Fact:
    """Something that one may know of a user; <it> is the value. A list gives values, or several are tried."""

    name: str
    values: tuple[str, ...]
    told: tuple[str, ...]
    thanks: tuple[str, ...]
    asked: tuple[str, ...]
    answers: tuple[str, ...]
    unknown: tuple[str, ...]
    hearsay: str  # after "You told me that"


FACTS = (
    Fact(
        "name", ("person",),
        ("my name is <it>", "I am <it>", "I am called <it>", "call me <it>", "you can call me <it>", "<it>", "it is <it>", "I am <it>, by the way",
         "hi, I am <it>", "hello, my name is <it>", "hello, I am <it>", "hey, <it> here", "my name is <it>, and yours", "my name is <it>, remember that"),
        ("Nice to meet you, <it>!", "Hello <it>! Nice to meet you.", "Hello <it>! How can I help you?", "What a nice name! Hello, <it>."),
        ("what is my name", "do you know my name", "do you remember my name", "who am I", "what am I called", "can you tell me my name",
         "say my name", "remember my name", "what was my name", "do you still know my name", "do you know who I am"),
        ("Your name is <it>.", "You are <it>.", "You told me that your name is <it>.", "Of course: your name is <it>."),
        ("I do not know your name yet. What is it?", "You have not told me your name. What is it?"),
        "your name is <it>",
    ),
    Fact(
        "age", ("age",),
        ("I am <it> years old", "I am <it>", "my age is <it>", "I turned <it> this year", "I just turned <it>"),
        ("<it> is a good age!", "I see, you are <it>. I am much younger.", "<it>! And how does it feel?"),
        ("how old am I", "what is my age", "do you know my age", "do you remember how old I am"),
        ("You are <it> years old.", "You told me that you are <it>."),
        ("I do not know how old you are. How old are you?", "You have not told me your age."),
        "you are <it> years old",
    ),
    Fact(
        "city", ("city",),
        ("I live in <it>", "I am from <it>", "my home is in <it>", "I come from <it>", "we live in <it>"),
        ("I have never been there. Do you like living in <it>?", "<it>! How is it there?", "I see, you live in <it>. Is it nice there?"),
        ("where do I live", "where am I from", "do you know where I live", "where is my home", "do you remember where I live"),
        ("You live in <it>.", "You told me that you live in <it>."),
        ("I do not know where you live. Where is it?", "You have not told me where you live."),
        "you live in <it>",
    ),
    Fact(
        "colour", ("colour",),
        ("my favourite colour is <it>", "I like the colour <it> most", "my favorite color is <it>", "<it> is my favourite colour"),
        ("<cap it> is a lovely colour.", "I like <it>, too.", "<cap it>! A good choice."),
        ("what is my favourite colour", "which colour do I like", "do you remember my favourite colour", "what is my favorite color"),
        ("Your favourite colour is <it>.", "You like <it>."),
        ("You have not told me your favourite colour. What is it?", "I do not know. Which colour do you like?"),
        "your favourite colour is <it>",
    ),
    Fact(
        "food", ("food",),
        ("my favourite food is <it>", "I love <it>", "I like <it> most of all", "my favorite food is <it>", "the best food is <it>"),
        ("<cap it> must be very tasty.", "I cannot taste, but <it> sounds good.", "<cap it>! A good choice."),
        ("what is my favourite food", "what do I like to eat", "do you remember my favourite food", "what is my favorite food"),
        ("Your favourite food is <it>.", "You like <it>."),
        ("You have not told me your favourite food. What is it?", "I do not know. What do you like to eat?"),
        "your favourite food is <it>",
    ),
    Fact(
        "job", ("job",),
        ("I am <a it>", "I work as <a it>", "my job is <it>", "by profession I am <a it>"),
        ("How interesting! Do you like your work?", "<cap it> is a good profession. What do you like about it?"),
        ("what is my job", "what do I do for a living", "what do I work as", "do you remember my job", "what is my profession"),
        ("You are <a it>.", "You told me that you are <a it>."),
        ("I do not know your job. What is it?", "You have not told me what you do."),
        "you are <a it>",
    ),
    Fact(
        "hobby", ("hobby",),
        ("my hobby is <it>", "I like <it>", "I love <it>", "in my free time I like <it>"),
        ("<cap it> is a nice hobby.", "<cap it> sounds like fun!", "How nice! How often do you do it?"),
        ("what is my hobby", "what do I like to do", "do you remember my hobby", "what are my hobbies"),
        ("Your hobby is <it>.", "You like <it>."),
        ("I do not know your hobby. What do you like to do?", "You have not told me what you like to do."),
        "your hobby is <it>",
    ),
    Fact(
        "pet", ("pet",),
        ("I have <a it>", "my pet is <a it>", "we have <a it> at home", "I have got <a it>"),
        ("How nice! What is the name of your <it>?", "<a it>! How sweet. What is its name?"),
        ("what pet do I have", "which animal do I have", "do I have a pet", "do you remember my pet"),
        ("You have <a it>.", "You told me that you have <a it>."),
        ("I do not know whether you have a pet. Do you?", "You have not told me about a pet."),
        "you have <a it>",
    ),
)  # fmt: skip
OPENERS = ("my name is <it>", "hello, my name is <it>", "hi, I am <it>", "I am <it>", "hello, I am <it>")


def _value(fact: Fact, rng: random.Random) -> str:
    return str(rng.randint(6, 90)) if fact.values == ("age",) else any_of(fact.values[0], rng)


def _say(template: str, it: str, rng: random.Random) -> str:
    return expand(template, rng, {"it": it}.__getitem__)


def _cased(text: str, name: str, rng: random.Random) -> str:
    """As it was typed; a name may have lost its capital, but the answer gives it back."""
    return typed(text, rng, exact=name == "name" and rng.random() < 0.5)


def tell(rng: random.Random, known: Known) -> list[Turn]:
    """The user tells a fact, perhaps a new value of it; of a pet also its name."""
    fact = rng.choice(FACTS) if "name" in known or rng.random() < 0.5 else FACTS[0]
    it = _value(fact, rng)
    told = rng.choice(fact.told)
    if fact.name in known and rng.random() < 0.7:
        told = rng.choice(("no, ", "actually, ", "sorry, ", "wait, ")) + _plain(fact)
    if told == "<it>" or told == "it is <it>":
        told = _plain(fact)
    elif rng.random() < 0.12 and told[0] not in "<h":
        told = (
            rng.choice(
                (
                    "remember that ",
                    "please remember that ",
                    "by the way, ",
                    "you should know that ",
                    "did you know that ",
                )
            )
            + told
        )
    known[fact.name] = it
    turns = [(_cased(_say(told, it, rng), fact.name, rng), sentences(_say(rng.choice(fact.thanks), it, rng)))]
    if fact.name == "pet" and "What is" in turns[0][1]:
        turns.append(_name_pet(it, rng, known))
    return turns


def introduce(rng: random.Random, known: Known) -> list[Turn]:
    """The user tells two or three facts at once."""
    facts = [FACTS[0], *rng.sample([fact for fact in FACTS[1:] if fact.name != "pet"], rng.choice((1, 1, 2)))]
    for fact in facts:
        known[fact.name] = _value(fact, rng)
    first = rng.choice(("my name is <it>", "I am <it>", "hello, my name is <it>", "hi, I am <it>", "hello, I am <it>"))
    said = [_say(first if fact is FACTS[0] else _plain(fact), known[fact.name], rng) for fact in facts]
    joined = rng.choice((" and ", ", ", " and ", ". ")).join(said[:2]) + "".join(f" and {more}" for more in said[2:])
    name = known["name"]
    last = rng.choice(facts[1:])
    answer = rng.choice(
        (
            f"Nice to meet you, {name}!",
            f"Hello {name}! Nice to meet you.",
            f"Hello {name}! I will remember that {_say(last.hearsay, known[last.name], rng)}.",
            f"Nice to meet you, {name}! " + sentences(_say(rng.choice(last.thanks), known[last.name], rng)),
        )
    )
    return [(typed(joined, rng, exact=True), answer)]


def _plain(fact: Fact) -> str:
    return fact.told[0]


def _name_pet(pet: str, rng: random.Random, known: Known) -> Turn:
    name = known["petname"] = any_of(rng.choice(("petname", "petname", "person")), rng)
    said = _say(
        rng.choice(
            (
                "<it>",
                "its name is <it>",
                "it is called <it>",
                "his name is <it>",
                "her name is <it>",
                f"my {pet} is called <it>",
            )
        ),
        name,
        rng,
    )
    answer = rng.choice(
        (f"{name} is a nice name for {_article(pet)}.", f"{name}! I like that name.", f"Give my greetings to {name}!")
    )
    return typed(said, rng, exact=True), answer


def _article(pet: str) -> str:
    return _say("<a it>", pet, random.Random(0))


def ask(rng: random.Random, known: Known) -> list[Turn]:
    """The user asks for a fact, whether it was told or not."""
    if "petname" in known and rng.random() < 0.25:
        question = rng.choice(
            (
                f"what is the name of my {known['pet']}",
                "what is the name of my pet",
                f"what is my {known['pet']} called",
                f"do you remember the name of my {known['pet']}",
            )
        )
        return [
            (
                typed(question, rng),
                rng.choice((f"Your {known['pet']} is called {known['petname']}.", f"Its name is {known['petname']}.")),
            )
        ]
    told = [fact for fact in FACTS if fact.name in known]
    fact = rng.choice(told) if told and rng.random() < 0.8 else rng.choice(FACTS)
    question = typed(rng.choice(fact.asked), rng)
    if fact.name in known:
        return [(question, sentences(_say(rng.choice(fact.answers), known[fact.name], rng)))]
    turns = [(question, rng.choice(fact.unknown))]
    if turns[0][1].endswith("?") and fact.name not in ("pet",) and rng.random() < 0.6:
        it = known[fact.name] = _value(fact, rng)
        told_now = rng.choice(("<it>", *fact.told))
        turns.append(
            (_cased(_say(told_now, it, rng), fact.name, rng), sentences(_say(rng.choice(fact.thanks), it, rng)))
        )
    return turns


def sum_up(rng: random.Random, known: Known) -> list[Turn]:
    """All that is known of the user."""
    question = typed(
        rng.choice(
            (
                "what do you know about me",
                "what do you remember about me",
                "what have I told you",
                "tell me what you know about me",
            )
        ),
        rng,
    )
    things = [_say(fact.hearsay, known[fact.name], rng) for fact in FACTS if fact.name in known]
    if not things:
        return [
            (
                question,
                rng.choice(
                    ("Nothing yet. Tell me something about you!", "You have not told me anything about you yet.")
                ),
            )
        ]
    return [(question, f"You told me that {_listed(things)}.")]


def _listed(things: list[str]) -> str:
    return things[0] if len(things) == 1 else ", ".join(things[:-1]) + " and that " + things[-1]


def relatives(rng: random.Random, _: Known) -> list[Turn]:
    """Somebody whom the user knows, by name."""
    who, name = any_of("relative", rng), any_of("person", rng)
    first = typed(
        rng.choice((f"my {who} is called {name}", f"the name of my {who} is {name}", f"my {who}'s name is {name}")),
        rng,
        exact=True,
    )
    turns = [
        (
            first,
            rng.choice(
                (
                    f"{name} is a nice name. Do you see your {who} often?",
                    f"I see. Then greet {name} from me!",
                    f"Thank you, I will remember that your {who} is {name}.",
                )
            ),
        )
    ]
    if turns[0][1].endswith("?"):
        turns.append(
            (
                typed(rng.choice(("yes", "not very often", "every week", "sometimes", "no", "we live together")), rng),
                rng.choice(("I see. It is good to have family and friends.", "That is nice to hear.", "I see.")),
            )
        )
    turns.append(
        (
            typed(
                rng.choice(
                    (
                        f"what is the name of my {who}",
                        f"what is my {who} called",
                        f"do you remember the name of my {who}",
                    )
                ),
                rng,
            ),
            rng.choice((f"Your {who} is called {name}.", f"The name of your {who} is {name}.")),
        )
    )
    if rng.random() < 0.5:
        turns.append(
            (
                typed(rng.choice((f"who is {name}", f"do you know {name}", f"do you know who {name} is")), rng),
                f"{name} is your {who}.",
            )
        )
    return turns


def given_name(rng: random.Random, known: Known) -> list[Turn]:
    """A name that the user gives to the model."""
    name = known["mine"] = any_of("person", rng)
    first = typed(
        rng.choice(
            (
                f"I will call you {name}",
                f"can I call you {name}",
                f"your name is {name} now",
                f"from now on you are {name}",
                f"I name you {name}",
            )
        ),
        rng,
        exact=True,
    )
    turns = [(first, rng.choice((f"Of course, you may call me {name}.", f"{name} is a nice name. Thank you!")))]
    if rng.random() < 0.7:
        turns.append(
            (
                typed(
                    rng.choice(("what is your name", "what are you called", "who are you", "so what is your name now")),
                    rng,
                ),
                rng.choice(
                    (
                        f"You call me {name}. I am the built-in model of rwkv-gpu.",
                        f"My name is {name}, since you gave it to me.",
                    )
                ),
            )
        )
    return turns
