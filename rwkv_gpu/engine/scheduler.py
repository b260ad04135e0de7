"""Which rows a step has: those of sequences that decode first, then as much of the prompts as there is room for."""

from collections.abc import Sequence
from typing import NamedTuple

from .sequence import TokenSequence


class ScheduledChunk(NamedTuple):
    """The next tokens of one sequence in a step."""

    sequence: TokenSequence
    start: int
    end: int  # tokens that the sequence will have been fed
    last: bool  # whether nothing that is known is left, so that the next token can be drawn


def schedule(sequences: Sequence[TokenSequence], rows: int) -> list[ScheduledChunk]:
    """Shares of at most so many rows, in the order in which the requests came; each ends at its boundaries."""
    chunks = []
    for sequence in sorted(sequences, key=lambda sequence: not sequence.decodes):  # stable
        start = sequence.fed
        end = start + min(sequence.to_feed, rows)
        if end > start:
            if sequence.boundaries:
                end = min([end, *(boundary for boundary in sequence.boundaries if boundary > start)])
            chunks.append(ScheduledChunk(sequence, start, end, end >= len(sequence.ids)))
            rows -= end - start
    return chunks
