"""Scores and embeddings of texts: logits, log probabilities, perplexity, embeddings.

Each is a generator for the driver. It yields after every model step, so that other requests run too, and returns a
result.
"""

import math
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import numpy as np

from ..engine.engine import Engine
from ..errors import BadInput, BadNumbers
from .pooling import Doubles, Floats, Pool, Pooling

Results = TypeVar("Results", Floats, Doubles)
ROWS = 64  # rows of a step if all logits are read, since logits are large


def logits(engine: Engine, ids: Sequence[int], chunk_size: int | None = None) -> Generator[None, None, Floats]:
    """Logits of every position. [T, V]"""
    return (yield from _joined(engine.evaluate(ids, chunk_size=min(chunk_size or ROWS, ROWS))))


def logprobs(
    engine: Engine, ids: Sequence[int], progress: Callable[[int], None] = lambda _: None
) -> Generator[None, None, Doubles]:
    """Log probability of each token given its prefix, except the first. [T - 1] `progress` gets the number done."""
    found = np.zeros(max(0, len(ids) - 1))
    at = 0
    for piece in engine.evaluate(ids, chunk_size=ROWS):
        # The token after the last row is unknown, and a waiting sequence has no rows.
        rows = min(len(piece), len(found) - at)
        found[at : at + rows] = of_next(piece[:rows], ids[at + 1 : at + 1 + rows])
        at += rows
        progress(at)
        yield
    return found


@dataclass(frozen=True)
class Score:
    """The log probability of a token given its prefix, and the most likely tokens at that position with theirs."""

    logprob: float
    top: tuple[tuple[int, float], ...]


def scores(engine: Engine, ids: Sequence[int], top: int) -> Generator[None, None, list[Score]]:
    """Scores of all tokens except the first. [T - 1]"""
    found: list[Score] = []
    for piece in engine.evaluate(ids, chunk_size=ROWS):
        rows = min(len(piece), len(ids) - 1 - len(found))  # the token after the last row is unknown
        x = piece[:rows].astype(np.float64)
        following = ids[len(found) + 1 : len(found) + 1 + rows]
        for row, logprob in zip(x, of_next(piece[:rows], following) if rows else (), strict=True):
            best = np.argpartition(-row, min(top, len(row) - 1))[:top] if top else np.zeros(0, int)
            best = best[np.argsort(-row[best], kind="stable")]
            total = row.max() + math.log(np.exp(row - row.max()).sum())
            found.append(Score(float(logprob), tuple((int(token), float(row[token] - total)) for token in best)))
        yield
    return found


def of_next(piece: Floats, following: Sequence[int]) -> Doubles:
    """Log probability of the token that follows each row: log softmax(logits). [T]"""
    x = piece.astype(np.float64)
    most = x.max(axis=1)
    totals = most + np.log(np.exp(x - most[:, None]).sum(axis=1))
    found: Doubles = x[np.arange(len(x)), list(following)] - totals
    return found


def perplexity(
    engine: Engine,
    ids: Sequence[int],
    window: int | None,
    progress: Callable[[int, int], None] | None = None,
) -> Generator[None, None, float]:
    """Perplexity: exp of the mean of -log p over all tokens except the first.

    A text longer than a window is read in windows that overlap by half. So every token after the first half window has
    at least half a window of context.
    """
    total, start, scored = 0.0, 0, 1
    while scored < len(ids):
        stop = len(ids) if window is None else min(len(ids), start + window)
        found = yield from logprobs(engine, ids[start:stop], partial(_advance, progress, start, len(ids)))
        total += float(np.sum(found[scored - start - 1 :]))
        scored = stop
        start = stop - (window or 0) // 2
    try:
        return math.exp(-total / (len(ids) - 1))
    except OverflowError:
        raise BadNumbers.of("probabilities of the text") from None


def _advance(progress: Callable[[int, int], None] | None, start: int, total: int, done: int) -> None:
    if progress is None:
        return
    try:
        progress(min(start + done + 1, total), total)
    except Exception:
        raise
    except BaseException as error:  # would end the engine's thread
        raise BadInput(f"the progress callback raised {type(error).__name__}") from error


def embeddings(
    engine: Engine, texts: Sequence[Sequence[int]], pooling: Pooling, dimensions: int | None = None
) -> Generator[None, None, Floats]:
    """Embeds each text: pools its final hidden states to a unit vector. [N, D]

    With `dimensions`, uses only that many leading components.
    """
    pools = yield from _pooled(engine, texts, pooling)
    return _finite(np.array([pool.vector(dimensions) for pool in pools], np.float32), "embeddings")


def ranks(engine: Engine, texts: Sequence[Sequence[int]], pooling: Pooling) -> Generator[None, None, Doubles]:
    """Scores how well each document answers its query; a text contains both. [N]"""
    pools = yield from _pooled(engine, texts, pooling)
    return _finite(np.array([pool.score() for pool in pools]), "scores of documents")


def rows(engine: Engine, ids: Sequence[int]) -> Generator[None, None, Floats]:
    """The final hidden state of each token. [T, D]"""
    return (yield from _joined(piece for _, piece in engine.hidden([ids])))


def _joined(pieces: Iterable[Floats]) -> Generator[None, None, Floats]:
    """All rows of the pieces that the steps of a text give."""
    found = []
    for piece in pieces:
        found += [piece] if len(piece) else []
        yield
    return np.concatenate(found)


def _finite(results: Results, what: str) -> Results:
    if not np.isfinite(results).all():
        raise BadNumbers.of(what)
    return results


def _pooled(engine: Engine, texts: Sequence[Sequence[int]], pooling: Pooling) -> Generator[None, None, list[Pool]]:
    pools = [pooling.begun() for _ in texts]
    for number, rows in engine.hidden(texts):
        pools[number].take(rows)
        yield
    return pools
