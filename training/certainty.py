"""Finds the weights of the signs of a question about the program: `CERTAINTY` in rwkv_gpu/builtin/certainty.py.

    python -m training.certainty

A logistic regression. Half of the known questions make the search, the other half are asked, with those of
tests/help_questions.txt.
"""

import random
from dataclasses import replace

import numpy as np

from rwkv_gpu.builtin.help import Help
from rwkv_gpu.builtin.index import read
from rwkv_gpu.builtin.retriever import quantised
from rwkv_gpu.builtin.search import Search

from . import apart, evaluate, retriever
from .conversation import WEIGHTS, conversation

TALKS = 1500
JUDGED = 3  # how often a question of tests/help_questions.txt counts
STEPS, RATE, DECAY = 4000, 0.3, 1e-3
EPOCHS = 10  # of the retriever


def halves() -> tuple[Help, list[str]]:
    """A search and a retriever with every second question that each passage answers, and the other questions."""
    whole, everyday = read()
    kept = [replace(passage, asked=passage.asked[::2]) for passage in whole.passages]
    asked = [question for passage in whole.passages if passage.weight == 1.0 for question in passage.asked[1::2]]
    learnt = retriever.examples()
    others = set(asked) | {text for n, text in enumerate(whole.small_talk) if n % 2}
    weights = retriever.train(learnt, [one for one in learnt.known if one.text not in others], EPOCHS)
    trained = quantised(learnt.names, *weights)
    return Help(Search(kept, whole.synonyms, whole.small_talk), everyday, trained), asked


def small_talk() -> set[str]:
    """Questions of conversations that are not about the program."""
    kinds = {kind: weight for kind, weight in WEIGHTS.items() if kind != "help"}
    found = set()
    for seed in range(TALKS):
        for question, _ in conversation(random.Random(seed), kinds, but=("program",)):
            found.add(question.partition("\n> ")[0])
    return {question for question in found if not apart.near(question)}


def signs_of(half: Help, question: str) -> list[float]:
    asked = half.search.read(question, half.everyday)
    return half.signs(question, asked, half.search.found(asked))


def main() -> None:
    half, about = halves()
    talk = sorted(small_talk())
    random.Random(0).shuffle(talk)
    talk = talk[: 2 * len(about)]
    for one in (one for asked in evaluate.helped() for one in asked[:1]):
        (about if one.section.startswith("product") else talk).extend([one.question] * JUDGED)
    groups = ((1, about), (0, talk))
    rows = [(signs_of(half, one), label) for label, group in groups for one in group]
    rows = [(signs, label) for signs, label in rows if signs]
    x, y = np.array([signs for signs, _ in rows], float), np.array([label for _, label in rows], float)
    size = np.abs(x).mean(0)
    x /= size
    weights = np.zeros(x.shape[1])
    share = np.where(y == 1, len(y) / y.sum(), len(y) / (len(y) - y.sum())) / 2  # both kinds count the same
    for _ in range(STEPS):
        p = 1 / (1 + np.exp(-x @ weights))
        weights -= RATE * (x.T @ (share * (p - y)) / len(y) + DECAY * weights)
    p = x @ weights
    print(f"{len(about)} about the program, {len(talk)} not; right at 0: {np.mean((p > 0) == (y == 1)):.3f}")
    for label, group in ((1, "about the program"), (0, "small talk")):
        print(
            group, "above 0:", np.mean(p[y == label] > 0).round(3), "above 0.5:", np.mean(p[y == label] > 0.5).round(3)
        )
    print("CERTAINTY =", tuple(float(weight) for weight in (weights / size).round(2)))


if __name__ == "__main__":
    main()
