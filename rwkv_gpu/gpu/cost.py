"""The part of a dispatch's cost that depends on the lengths of its sequences."""

from collections.abc import Sequence
from dataclasses import dataclass

Span = tuple[int, int]  # first position of a sequence in a step, and its number of rows


@dataclass(frozen=True)
class ContextCost:
    """Costs that depend on the sequences of a step."""

    sequence_bytes: int = 0  # per sequence: its state, read and written
    position_bytes: int = 0  # per position that any of its rows sees
    pair_flops: int = 0  # per pair of a row and a position that it sees
    window: int = 0  # positions that a row sees; 0: all up to its own position

    def cost(self, spans: Sequence[Span]) -> tuple[int, int]:
        """Bytes and flops of a step with these sequences."""
        nbytes = flops = 0
        for start, count in spans:
            far = self.window or start + count
            nbytes += self.sequence_bytes + self.position_bytes * min(start + count, far + count - 1)
            flops += self.pair_flops * sum(min(start + row + 1, far) for row in range(count))
        return nbytes, flops

    def __add__(self, other: "ContextCost") -> "ContextCost":
        """The sum of two costs, at most one of which has a window."""
        return ContextCost(
            self.sequence_bytes + other.sequence_bytes,
            self.position_bytes + other.position_bytes,
            self.pair_flops + other.pair_flops,
            self.window or other.window,
        )


NO_CONTEXT_COST = ContextCost()
