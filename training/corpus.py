"""Shards of training text: rows of tokens, what each is worth, and where documents begin. Made by many processes.

Every document begins at a multiple of CHUNK tokens. What the assistant says counts fully, what users say a little.
"""

import random
from collections.abc import Iterator
from dataclasses import dataclass
from multiprocessing import Pool

import numpy as np

from . import vocabulary
from .conversation import document

CHUNK = 16
LENGTH = 1024  # tokens of a row
ROWS = 256  # of a shard
WORTH = {"assistant": 1.0, "user": 0.1, "system": 0.1}
HELD_OUT = 1_000_000  # a shard that is never trained on


@dataclass(frozen=True)
class Shard:
    """Rows of documents."""

    ids: np.ndarray  # [rows, LENGTH + 1] uint16; the last is only predicted
    worth: np.ndarray  # [rows, LENGTH] float32, of each token's successor
    first: np.ndarray  # [rows, LENGTH / CHUNK] float32, 1 where a document begins


def encoded(seed: int, words: vocabulary.Vocabulary) -> tuple[list[int], list[float]]:
    """A document's ids, and the worth of each."""
    ids: list[int] = []
    worth: list[float] = []
    for text, speaker in document(seed):
        piece = words.encode(text)
        ids += piece
        worth += [WORTH[speaker]] * len(piece)
    return [*ids, vocabulary.END], [*worth, 1.0 if speaker == "assistant" and text[-1] != "\n" else 0.1]


def make(number: int) -> Shard:
    """Shard `number`, from the seeds that are its own."""
    words = _words()
    ids = np.zeros((ROWS, LENGTH + 1), np.uint16)
    worth = np.zeros((ROWS, LENGTH + 1), np.float32)
    first = np.zeros((ROWS, LENGTH // CHUNK), np.float32)
    seed, at = number * 1_000_000, 0
    for row in range(ROWS):
        at = 0
        while LENGTH - at >= 4 * CHUNK:
            tokens, worths = encoded(seed, words)
            seed += 1
            size = min(len(tokens), LENGTH + 1 - at)
            ids[row, at : at + size] = tokens[:size]
            worth[row, at + 1 : at + size] = worths[1:size]
            first[row, at // CHUNK] = 1
            at += -(-size // CHUNK) * CHUNK
    return Shard(ids, worth[:, 1:], first)


_loaded: list[vocabulary.Vocabulary] = []


def _words() -> vocabulary.Vocabulary:
    if not _loaded:
        _loaded.append(vocabulary.load())
    return _loaded[0]


def shards(count: int, workers: int) -> Iterator[Shard]:
    """The first `count` shards, in order."""
    with Pool(workers) as pool:
        yield from pool.imap(make, range(count))


def batches(count: int, epochs: int, rows: int, workers: int) -> Iterator[Shard]:
    """Batches of `rows` rows: fresh shards first, then again all of them in another order."""
    kept = []
    for shard in shards(count, workers):
        kept.append(shard)
        yield from pieces(shard, rows)
    for epoch in range(1, epochs):
        order = list(range(count))
        random.Random(epoch).shuffle(order)
        for number in order:
            yield from pieces(kept[number], rows)


def pieces(shard: Shard, rows: int) -> Iterator[Shard]:
    """A shard in batches of so many rows."""
    for at in range(0, ROWS, rows):
        yield Shard(shard.ids[at : at + rows], shard.worth[at : at + rows], shard.first[at : at + rows])
