"""How many tokens to draft for each sequence of a step: as long as they pay for their rows."""

from collections.abc import Callable, Sequence


def best_widths(
    chances: Sequence[tuple[float, int]], rows: int, most: int, seconds: Callable[[int], float], rate: float
) -> list[int]:
    """Tokens for each of some drafts, given the chance of their tokens and their length.

    A step has `rows` rows without drafts, and `most` at most. The n-th token of a draft is of use with the n-th power
    of the chance. What a step takes could have given `rate` tokens a second: best is what exceeds that by most.
    """
    tokens = [(chance**n, -i) for i, (chance, length) in enumerate(chances) for n in range(1, length + 1)]
    tokens.sort(reverse=True)  # likeliest first: so a draft's tokens come in their order
    gained, best, count = 0.0, -rate * seconds(rows), 0
    for number, (chance, _) in enumerate(tokens[: max(0, most - rows)], 1):
        gained += chance
        value = gained - rate * seconds(rows + number)
        if value > best:
            best, count = value, number
    widths = [0] * len(chances)
    for _, i in tokens[:count]:
        widths[-i] += 1
    return widths
