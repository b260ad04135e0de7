"""Which rows a step has: those of sequences that decode first, then as much of the prompts as there is room for."""

from collections.abc import Sequence
from dataclasses import dataclass

from .sequence import Running


@dataclass(frozen=True)
class Share:
    """The next tokens of one sequence in a step."""

    running: Running
    start: int
    count: int

    @property
    def end(self) -> int:
        """Tokens that the sequence will have been fed."""
        return self.start + self.count

    @property
    def last(self) -> bool:
        """Whether nothing that is known is left, so that the next token can be drawn."""
        return self.end >= len(self.running.ids)


def schedule(runnings: Sequence[Running], rows: int) -> list[Share]:
    """Shares of at most so many rows, in the order in which the requests came; each ends at its borders."""
    shares = []
    for running in sorted(runnings, key=lambda running: not running.decodes):  # stable
        count = min(running.to_feed, rows)
        if count:
            count = min([count, *(border - running.fed for border in running.borders if border > running.fed)])
            shares.append(Share(running, running.fed, count))
            rows -= count
    return shares
