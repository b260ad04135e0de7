"""Truncation of the distribution before the draw. Each function takes logits and returns the kept indices, ascending.

The logits are in any order, none is NaN and one is above -inf. If tokens tie, the first of them are kept.
"""

from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

Logits = npt.NDArray[np.floating[Any]]  # [n]
Numbers = TypeVar("Numbers", bound=npt.NDArray[np.floating[Any]])
Places = npt.NDArray[np.intp]

SORTED_AT_ONCE = 1024  # maximum number of tokens that are sorted at once
GROUP = 32  # logits of a group, whose maximum is found first


def softmax(logits: Numbers) -> Numbers:
    """p_i = exp(x_i) / sum(exp(x)), of a vector or of each row"""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    p: Numbers = weights / weights.sum(axis=-1, keepdims=True, dtype=np.float64).astype(weights.dtype)
    return p


def top_k(logits: Logits, k: int) -> Places:
    """Keeps the k largest."""
    n = len(logits)
    if k >= n:
        return np.arange(n)
    if k * GROUP * GROUP <= n:  # the k largest logits reach the k-th largest group maximum, and few others do
        greatest = logits[: n // GROUP * GROUP].reshape(GROUP, -1).max(axis=0)
        few = np.flatnonzero(logits >= np.partition(greatest, len(greatest) - k)[len(greatest) - k])
        if len(few) < n:
            return few[top_k(logits[few], k)]
    least = np.partition(logits, n - k)[n - k]
    above = np.flatnonzero(logits > least)
    ties = np.flatnonzero(logits == least)[: k - len(above)]
    return np.sort(np.concatenate([above, ties]))


def top_p(logits: Logits, p: float) -> Places:
    """Keeps the smallest set of most likely tokens whose total probability is at least p."""
    if p >= 1:
        return np.arange(len(logits))
    weights = np.exp(logits - logits.max())
    total = float(weights.sum(dtype=np.float64))
    # All tokens below this have less than 1 - p together, so none of them is needed.
    likely = np.sort(weights[weights >= (1 - p) * total / len(weights)])[::-1]
    mass = np.cumsum(likely, dtype=np.float64)
    return top_k(logits, int(np.searchsorted(mass, p * total)) + 1)  # up to the first that reaches the mass


def min_p(logits: Logits, p: float) -> Places:
    """Keeps tokens at least p times as likely as the most likely one."""
    if p <= 0:
        return np.arange(len(logits))
    return np.flatnonzero(logits >= logits.max() + np.log(p))


def typical(logits: Logits, mass: float) -> Places:
    """Keeps the smallest set with the given mass of tokens whose surprise is nearest to the entropy.

    H = -sum(p log p), nearest first by |-log p - H|
    """
    if mass >= 1:
        return np.arange(len(logits))
    possible = np.flatnonzero(logits > -np.inf)
    p = softmax(logits[possible].astype(np.float64))
    surprise = -np.log(np.maximum(p, np.finfo(np.float64).tiny))
    distance = np.abs(surprise - np.sum(p * surprise))
    last = _last_of(distance, p, mass)
    nearer = distance < distance[last]
    nearer[: last + 1] |= distance[: last + 1] == distance[last]
    kept: Places = possible[nearer]
    return kept


def _last_of(distance: Logits, p: Logits, mass: float) -> int:
    """Selects by distance until the mass is reached, ties in order. Discards halves until few tokens need sorting."""
    places = np.arange(len(p))
    while len(places) > SORTED_AT_ONCE:
        here = distance[places]
        near = here <= np.partition(here, len(here) // 2)[len(here) // 2]
        inside = float(p[places[near]].sum())
        if near.all():
            break
        if inside >= mass:
            places = places[near]
        else:
            places, mass = places[~near], mass - inside
    order = places[np.argsort(distance[places], kind="stable")]
    return int(order[min(int(np.searchsorted(np.cumsum(p[order]), mass)), len(order) - 1)])


def xtc(logits: Logits, threshold: float) -> Places:
    """Removes likely tokens: of those with at least the given probability, only the least likely stays."""
    p = softmax(logits)
    likely = np.flatnonzero(p >= threshold)
    if len(likely) < 2:
        return np.arange(len(logits))
    stays = likely[len(likely) - 1 - int(np.argmin(p[likely][::-1]))]  # the last of ties, as the first ones go
    kept = p < threshold
    kept[stays] = True
    return np.flatnonzero(kept)


def surprising(logits: Logits, bits: float) -> Places:
    """Keeps tokens with at most the given surprise -log2 p, and at least the most likely one."""
    kept = np.flatnonzero(-np.log2(np.maximum(softmax(logits), np.finfo(logits.dtype).tiny)) <= bits)
    return kept if len(kept) else np.array([logits.argmax()])
