"""Guesses what a question asks for, from its words and their letters: an entry of the documentation, or a sum.

A linear network, trained by `python -m training.retriever` on the questions that the search knows. Pieces of a question
(words, pairs, letters) are hashed to rows of a table; their sum is compared with a vector for each entry.
It also recognises misspelt words and wordings that share no word with the entry.
"""

import functools
import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np
import numpy.typing as npt

from .words import terms

Floats = npt.NDArray[np.float32]
WEIGHTS = Path(__file__).with_name("retriever.npz")
ROWS = 3 << 12  # of the table, which pieces are hashed to
SHARP = 15.0  # what a cosine is multiplied by, before the softmax
LETTERS = (3, 4, 5)  # how many are a piece
# What a question may be about besides the entries of docs/questions.md.
ELSEWHERE, SMALL_TALK, SUM = "(elsewhere)", "(small talk)", "(sum)"
_WORD = re.compile(r"[a-z0-9']+")


@dataclass(frozen=True)
class Retriever:
    """The trained weights, in 8 bits."""

    names: tuple[str, ...]  # headings of docs/questions.md, then ELSEWHERE, SMALL_TALK, SUM; N
    table: npt.NDArray[np.int8]  # [ROWS, D]
    answers: npt.NDArray[np.int8]  # [N, D]

    @functools.cached_property
    def _directions(self) -> Floats:
        return _unit(self.answers.astype(np.float32))

    def guess(self, question: str) -> dict[str, float]:
        """The probability of each name."""
        rows = np.fromiter(pieces(question), np.int64)
        asked = _unit(self.table[rows].sum(0, dtype=np.float32))
        scores = SHARP * self._directions @ asked
        shares = np.exp(scores - scores.max())
        return dict(zip(self.names, (shares / shares.sum()).tolist(), strict=True))


def pieces(question: str) -> Iterator[int]:
    """The rows of the table for a question: its words, pairs of neighbours, and parts of words."""
    yield _row("")
    found = terms(question)
    for word in found:
        yield _row(word)
    for first, second in pairwise(found):
        yield _row(f"{first} {second}")
    for word in _WORD.findall(question.lower()):
        yield from _letters(word)


@functools.lru_cache(maxsize=4096)
def _letters(word: str) -> tuple[int, ...]:
    whole = f"<{word}>"
    return tuple(_row(f"#{whole[at : at + n]}") for n in LETTERS for at in range(len(whole) - n + 1))


def _row(piece: str) -> int:
    return zlib.crc32(piece.encode()) % ROWS


def quantised(names: Sequence[str], table: Floats, answers: Floats) -> Retriever:
    """Weights in 8 bits. Lengths do not matter, as only directions are compared."""
    largest = float(np.quantile(np.abs(table), 0.9999))
    whole = np.clip(np.rint(table / largest * 127), -127, 127).astype(np.int8)
    return Retriever(tuple(names), whole, np.rint(_unit(answers) * 127).astype(np.int8))


def save(path: Path, weights: Retriever) -> None:
    """Writes the weights."""
    names = np.frombuffer("\n".join(weights.names).encode(), np.uint8)
    np.savez(path, names=names, table=weights.table, answers=weights.answers)


def load(path: Path = WEIGHTS) -> Retriever:
    """Reads the weights that `save` wrote."""
    with np.load(path) as stored:
        return Retriever(tuple(stored["names"].tobytes().decode().split("\n")), stored["table"], stored["answers"])


def _unit(rows: Floats) -> Floats:
    length: Floats = np.linalg.norm(rows, axis=-1, keepdims=True).clip(1e-9)
    return rows / length
