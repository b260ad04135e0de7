"""Counts the words of small talk into everyday.txt, and writes a sample of its questions into small_talk.txt.

python -m training.everyday

The search for passages tells questions about the program from small talk by them.
"""

import random
from collections import Counter
from pathlib import Path

from rwkv_gpu.builtin.words import words

from . import apart
from .conversation import WEIGHTS, conversation

PATH = Path(__file__).with_name("everyday.txt")
SAMPLE = Path(__file__).with_name("small_talk.txt")
TALKS = 12_000
SAMPLED = 1500
LEAST = 5  # questions that have a word


def count() -> tuple[Counter[str], int]:
    """How many questions have a word, and how many there are. Those about the program are left out."""
    found, total = Counter[str](), 0
    kinds = {kind: weight for kind, weight in WEIGHTS.items() if kind != "help"}
    for seed in range(TALKS):
        for question, _ in conversation(random.Random(seed), kinds, but=("program",)):
            found.update(set(words(question.partition("\n> ")[0])))
            total += 1
    return found, total


def sample() -> list[str]:
    """Questions of small talk, each with other words than those before it."""
    kinds = {kind: weight for kind, weight in WEIGHTS.items() if kind != "help"}
    found: dict[frozenset[str], str] = {}
    for seed in range(TALKS, 2 * TALKS):
        for question, _ in conversation(random.Random(seed), kinds, but=("program",)):
            plain = " ".join(question.partition("\n> ")[0].replace("|", " ").split())
            if len(plain) < 100 and words(plain) and not apart.near(plain):
                found.setdefault(frozenset(words(plain)), plain)
        if len(found) > 4 * SAMPLED:
            break
    return sorted(random.Random(0).sample(sorted(found.values()), SAMPLED))


def main() -> None:
    found, total = count()
    lines = ["# Words of small talk, by their stems, and how many of a million questions have them."]
    for word, times in sorted(found.items()):
        if times >= LEAST and word.isascii() and word.isalpha():
            lines.append(f"{word} {round(times / total * 1e6)}")
    SAMPLE.write_text("\n".join(sample()) + "\n", encoding="utf-8")
    PATH.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
