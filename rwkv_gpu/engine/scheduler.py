"""Which rows a step has: those of sequences that decode first, then as much of the prompts as there is room for."""

from collections.abc import Sequence
from typing import NamedTuple

from .sequence import Running


class Share(NamedTuple):
    """The next tokens of one sequence in a step."""

    running: Running
    start: int
    end: int  # tokens that the sequence will have been fed
    last: bool  # whether nothing that is known is left, so that the next token can be drawn


def schedule(runnings: Sequence[Running], rows: int) -> list[Share]:
    """Shares of at most so many rows, in the order in which the requests came; each ends at its borders."""
    shares = []
    for running in sorted(runnings, key=lambda running: not running.decodes):  # stable
        start = running.fed
        end = start + min(running.to_feed, rows)
        if end > start:
            if running.borders:
                end = min([end, *(border for border in running.borders if border > start)])
            shares.append(Share(running, start, end, end >= len(running.ids)))
            rows -= end - start
    return shares
