"""What a dispatch moves and computes by how far back its sequences reach, where rows alone do not tell."""

from collections.abc import Sequence
from dataclasses import dataclass

Span = tuple[int, int]  # the position that a sequence starts at in a step, and its rows


@dataclass(frozen=True)
class ContextCost:
    """Costs that follow the sequences of a step."""

    sequence_bytes: int = 0  # for each sequence: its state, read and written
    position_bytes: int = 0  # for each position that any of its rows sees
    pair_flops: int = 0  # for each row and each position that it sees
    window: int = 0  # positions that a row sees; 0 is all up to its own

    def cost(self, spans: Sequence[Span]) -> tuple[int, int]:
        """Bytes and flops of a step."""
        nbytes = flops = 0
        for start, count in spans:
            far = self.window or start + count
            nbytes += self.sequence_bytes + self.position_bytes * min(start + count, far + count - 1)
            flops += self.pair_flops * sum(min(start + row + 1, far) for row in range(count))
        return nbytes, flops

    def __add__(self, other: "ContextCost") -> "ContextCost":
        """Of both. One of them at most looks back over a window."""
        return ContextCost(
            self.sequence_bytes + other.sequence_bytes,
            self.position_bytes + other.position_bytes,
            self.pair_flops + other.pair_flops,
            self.window or other.window,
        )


NO_CONTEXT_COST = ContextCost()
