"""How many tokens to draft for each sequence of a step: as long as they pay for their rows and for being drafted."""

from collections.abc import Callable, Sequence
from typing import NamedTuple


class Candidate(NamedTuple):
    """A draft that a sequence may have."""

    chance: float  # that a token is right, given that all before it are
    most: int  # tokens
    step: float = 0.0  # seconds of the draft model for each; all sequences share its steps


def best_widths(
    candidates: Sequence[Candidate], rows: int, most: int, seconds: Callable[[int], float], rate: float, without: float
) -> list[int]:
    """Tokens for each of some drafts.

    A step has `rows` rows without drafts, and `most` at most. The n-th token of a draft is of use with the n-th power
    of the chance. What a step takes could have given `rate` tokens a second: best is what exceeds that by most. A step
    in which nobody has a draft takes `without`.
    """
    tokens = [(one.chance**n, -i, -n) for i, one in enumerate(candidates) for n in range(1, one.most + 1)]
    tokens.sort(reverse=True)  # likeliest first: so a draft's tokens come in their order
    gained, drafting, best, count = 0.0, 0.0, -rate * without, 0
    for number, (chance, i, n) in enumerate(tokens[: max(0, most - rows)], 1):
        gained += chance
        drafting = max(drafting, -n * candidates[-i].step)
        value = gained - rate * (seconds(rows + number) + drafting)
        if value > best:
            best, count = value, number
    widths = [0] * len(candidates)
    for _, i, _ in tokens[:count]:
        widths[-i] += 1
    return widths
