"""Counts the words of small talk, by which a question about the program is told from it, into everyday.txt.

python -m training.everyday
"""

import random
from collections import Counter
from pathlib import Path

from rwkv_gpu.builtin.help import words

from .conversation import WEIGHTS, conversation

PATH = Path(__file__).with_name("everyday.txt")
TALKS = 12_000
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


def main() -> None:
    found, total = count()
    lines = ["# Words of small talk, by their stems, and how many of a million questions have them."]
    for word, times in sorted(found.items()):
        if times >= LEAST and word.isascii() and word.isalpha():
            lines.append(f"{word} {round(times / total * 1e6)}")
    PATH.write_text("\n".join(lines) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
