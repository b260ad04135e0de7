"""Keeps the questions that the model is judged by out of what it is trained on."""

import functools
import re
from pathlib import Path

from rwkv_gpu.builtin.words import words

TESTS = Path(__file__).resolve().parent.parent / "tests"
QUESTIONS = tuple(TESTS / f"help_{name}.txt" for name in ("questions", "unseen", "fresh", "heldout"))
APART = ("product", "arithmetic", "unknown", "harmful")  # the sections that are; small talk is the same for all


def near(question: str) -> bool:
    """Whether it is one of those questions, or one in other order, spelling or marks."""
    plain = letters(question)
    asked, stems = judged()
    return plain in asked or (len(found := frozenset(words(question))) > 1 and found in stems)


def letters(text: str) -> str:
    return re.sub(r"[^a-z0-9+*/^%.-]+", "", text.lower()).strip(".")


@functools.cache
def judged() -> tuple[frozenset[str], frozenset[frozenset[str]]]:
    """The letters of each question, and the words of those about the program."""
    asked, stems, section = set(), set(), ""
    for line in (line for path in QUESTIONS for line in path.read_text(encoding="utf-8").splitlines()):
        if line.startswith("## "):
            section = re.sub("^(unseen|fresh|heldout) ", "", line[3:])
        elif " => " in line and section.split(" ")[0] in APART:
            question = line.partition(" => ")[0].removeprefix("+ ")
            asked.add(letters(question))
            if section.startswith("product"):
                stems.add(frozenset(words(question)))
    return frozenset(asked), frozenset(stems)
