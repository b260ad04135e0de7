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
    def last(self) -> bool:
        """Whether nothing that is known is left, so that the next token can be chosen."""
        return self.start + self.count >= len(self.running.ids)


def schedule(runnings: Sequence[Running], rows: int) -> list[Share]:
    """Shares of at most so many rows, in the order in which the requests came."""
    shares = []
    for running in sorted(runnings, key=lambda running: not running.decodes):  # stable
        count = min(running.to_feed, rows)
        if count:
            shares.append(Share(running, running.fed, count))
            rows -= count
    return shares
