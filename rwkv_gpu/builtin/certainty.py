"""How sure it is that a question is about the program: signs for it and against it, and their weights."""

import math
import re
from collections.abc import Mapping

from .search import Ranking, Search

UNKNOWN = -1.5  # what a word says for the program that neither the documentation nor small talk has
RARE = 1e-4  # how often a word is met at least, in small talk and in questions about the program
SHARE = 0.01  # what is added to probabilities, so that none is certain
# The weights of `signs`; the last is the constant. `python -m training.certainty` finds them.
CERTAINTY = (0.43, 0.67, -0.59, 2.25, 0.28, -1.19, -1.25, 2.39, 2.04, -2.61, 0.38, -2.03)

_YOU = re.compile(r"(?i)\b(you|your|u|ur|yourself)\b")
_IT = re.compile(r"(?i)\b(can|does|will|is|do i|could|would|should|how|where|why|make|let|tell)\b.*\b(it|this)\b \w")
_THING = re.compile(r"(?i)\w\.(txt|md|json|csv|pdf|docx?|py|gguf)\b|\d ?(gb|gigs?|tok)\b|\b(llms?|the model|rwkv)\b")
_I = re.compile(r"(?i)\W*(i|my|we|im|i'm)\b")


def certainty(found: list[float]) -> float:
    """The log odds of signs; without any, it is certain that a question is about something else."""
    return sum(weight * sign for weight, sign in zip(CERTAINTY, found, strict=True)) if found else -math.inf


def signs(
    question: str,
    asked: Mapping[str, float],
    found: Ranking,
    search: Search,
    everyday: Mapping[str, float],
    small_talk: float,
) -> list[float]:
    """What speaks for a question about the program, or against it. None where it has no words or finds nothing.

    `everyday` is the share of questions in small talk that have a word, `small_talk` the probability that this is one.
    """
    content = [word for word in asked if word[0] != "~"]
    if not found.ranked or not content:
        return []
    evidence = [_evidence(word, search, everyday) for word in content]
    forms = [
        bool(_YOU.search(question)),
        bool(_I.match(question)),
        bool(_IT.search(question)),
        bool(_THING.search(question)),
    ]
    score = found.ranked[0][0]
    against = math.log((1 - small_talk + SHARE) / (small_talk + SHARE))
    return [
        sum(evidence),
        max(evidence),
        score,
        max(0.0, score - 1),
        len(content),
        *forms,
        found.small_talk,
        against,
        1.0,
    ]


def _evidence(word: str, search: Search, everyday: Mapping[str, float]) -> float:
    """How much a word speaks for a question about the program, and against small talk."""
    if not search.knows(word) and word not in everyday:
        return UNKNOWN
    here = 0.3 * search.share(word) + 0.15 * search.knows(word) / len(search.passages)
    return max(-3.0, min(3.0, math.log((here + RARE) / (everyday.get(word, 0.0) + RARE))))
