"""Which rows a step has: first those of sequences that decode, then as much of the prompts as there is room for."""

from collections.abc import Sequence
from typing import NamedTuple

from .sequence import TokenSequence


class ScheduledChunk(NamedTuple):
    """The next tokens of one sequence in a step."""

    slot: int
    start: int
    end: int  # tokens that the sequence will have been fed
    samples: bool  # whether nothing that is known is left, so that the next token can be drawn
    sequence: TokenSequence


def schedule(sequences: Sequence[TokenSequence], rows: int) -> list[ScheduledChunk]:
    """Chunks of at most so many rows, in the order in which the requests came; each ends at its boundaries."""
    chunks = []
    decoding: list[TokenSequence] = []
    prompts: list[TokenSequence] = []
    for sequence in sequences:
        (decoding if sequence.fed >= sequence.prompt else prompts).append(sequence)
    for sequence in decoding + prompts:
        start = sequence.fed
        end = start + min(sequence.to_feed, rows)
        if end > start:
            if sequence.boundaries:
                end = min([end, *(boundary for boundary in sequence.boundaries if boundary > start)])
            chunks.append(ScheduledChunk(sequence.slot, start, end, end >= len(sequence.ids), sequence))
            rows -= end - start
    return chunks
