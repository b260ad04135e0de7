"""Questions about rwkv-gpu with passages of the documentation that were found for them, as a chat with the built-in model has it."""

import functools
import random
import re
from pathlib import Path

from rwkv_gpu.builtin import help as passages

from . import apart
from .grammar import expand
from .noise import typed
from .sheet import Turn, made_up

FORMS = Path(__file__).with_name("help_forms.txt")
ABOUT = (
    "what does {} do", "what is {}", "what is {} for", "explain {}", "how do I use {}", "{}", "when do I need {}", "tell me about {}",
    "what does {} mean", "I do not understand {}", "is there a way to use {}", "can you explain {}", "help with {}", "what about {}",
    "describe {}", "what happens with {}",
)  # fmt: skip
MISSING = (
    "what does {} do", "how do I use {}", "explain {}", "what is {} for", "why does {} not work", "is there {}", "does it have {}",
    "can I use {}", "tell me about {}", "how does {} work",
)  # fmt: skip
_NAME = re.compile(r"(--?[a-z]|/[a-z]|rwkv-gpu [a-z]+$|[a-z]+_[a-z_]+$)")
LEFT_OUT = 0.12  # share of questions whose answer was not found
SHUFFLED = 0.25  # share of questions whose passages stand in any order
CHANGED = 0.2  # share of passages with a word that there is not, so that they are read and not remembered
DECOYS = 0.07  # share of other turns that have passages beside them, which are of no use


@functools.cache
def forms() -> list[tuple[str, list[str]]]:
    """Answers, and templates of the questions that they answer."""
    texts = {row.text: row for row in passages.load().passages}
    answers = dict(headings())
    found: list[tuple[str, list[str]]] = []
    for block in re.split(r"^= ", FORMS.read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]:
        title, *lines = block.strip().splitlines()
        found.append((answers[title], [title.rstrip("?"), *(line[2:] for line in lines)]))
    assert all(text in texts for text, _ in found)
    return found


def headings() -> list[tuple[str, str]]:
    """The headings of docs/questions.md, and the passages that stand under them."""
    page = Path(__file__).resolve().parent.parent / "docs" / "questions.md"
    texts = [passage.text for passage in passages.load().passages]
    entries = re.findall(r"^### (.+)\n(?:<!-- .* -->\n)?(.+)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return [(title, next(text for text in texts if text.startswith(answer))) for title, answer in entries]


@functools.cache
def named() -> list[tuple[str, str]]:
    """What has a name of its own, such as a command or an option, and what is said of it."""
    found = []
    for row in passages.load().passages:
        head = row.text.partition(": ")[0].partition(" of ")[0]
        names = [name.split(" [")[0] for name in re.findall(r"`([^`]+)`", head) if _NAME.match(name)]
        found += [(name, row.text) for name in names if ": " in row.text]
    return found


def scene(rng: random.Random) -> list[Turn]:
    """A question with what was found for it, and its answer."""
    while True:
        kind = rng.random()
        if kind < 0.1:
            question, gold = _missing(rng), ""
        elif kind < 0.32:
            name, gold = rng.choice(named())
            question = rng.choice(ABOUT).format(
                rng.choice((name, name, f"`{name}`", f"the option {name}" if name[0] == "-" else name))
            )
        else:
            gold, templates = rng.choice(forms())
            question = expand(rng.choice(templates), rng, {}.__getitem__)
        question = typed(question, rng)
        if not apart.near(question):
            break
    quoted = _quoted(question, gold, rng)
    if gold not in quoted:
        return [(passages.with_passages(question, quoted), passages.NOTHING)]
    if rng.random() < CHANGED:
        changed = _changed(gold, rng)
        quoted = [changed if text == gold else text for text in quoted]
        gold = changed
    return [(passages.with_passages(question, quoted), passages.FROM + gold)]


def _missing(rng: random.Random) -> str:
    word = made_up(rng)
    name = rng.choice(
        (
            f"--{word}",
            f"the option --{word}",
            f"/{word}",
            f"rwkv-gpu {word}",
            f"the command {word}",
            f"a command {word}",
        )
    )
    return rng.choice(MISSING).format(name)


def _quoted(question: str, gold: str, rng: random.Random) -> list[str]:
    """Passages for a question: what is found, and nearly always the right one."""
    found = list(passages.load().best(question, rng.choice((0.5, 0.7, 0.86))))
    count = rng.choice((1, 1, 2, 2, 3))
    while len(found) < count:
        found.append(rng.choice(passages.load().passages).text)
    found = list(dict.fromkeys(found))
    if not gold or rng.random() < LEFT_OUT:
        texts = [text for text in found if text != gold]
        if gold:
            texts = [rng.choice(passages.load().passages).text for _ in range(count)]
            texts = [text for text in texts if text != gold]
        return texts[:count]
    if gold not in found[:count]:
        found.insert(rng.randrange(count), gold)
    found = found[:count]
    if rng.random() < SHUFFLED:
        rng.shuffle(found)
    return found


def _changed(text: str, rng: random.Random) -> str:
    words = re.findall(r"[a-z]{4,}", text)
    return text.replace(rng.choice(words), made_up(rng)) if words else text


def with_decoys(turn: Turn, rng: random.Random) -> Turn:
    """Another turn, perhaps with passages that say nothing about it."""
    if rng.random() >= DECOYS or "\n" in turn[0]:
        return turn
    found = list(passages.load().best(turn[0], 0.5)) or [rng.choice(passages.load().passages).text]
    return passages.with_passages(turn[0], found[: rng.choice((1, 1, 2, 3))]), turn[1]
