"""Which rows a step has: first those of sequences that decode, then as much of the prompts as there is room for."""

from collections.abc import Sequence
from typing import NamedTuple

from .sequence import TokenSequence


class ScheduledChunk(NamedTuple):
    """The next tokens of one sequence in a step."""

    slot: int
    start: int
    end: int  # tokens that the sequence will have been fed
    samples: int  # of its last rows are sampled: none of a prompt's middle, one, or one more than tokens are drafted
    sequence: TokenSequence

    @property
    def keeps(self) -> bool:
        """Whether a state is written after each of its rows: not all drafted tokens may be right."""
        return self.samples > 1


def schedule(sequences: Sequence[TokenSequence], rows: int) -> list[ScheduledChunk]:
    """Chunks of at most so many rows; each ends at its boundaries.

    Tokens of answers come first, then prompts. Of several prompts the oldest gets half of the rows, and the others get
    the rest, the shortest first: so a short prompt does not wait for a long one, and a long one is not starved.
    """
    chunks: list[ScheduledChunk] = []
    decoding: list[TokenSequence] = []
    prompts: list[TokenSequence] = []
    for sequence in sequences:
        (decoding if sequence.fed >= sequence.read_end else prompts).append(sequence)
    for sequence in decoding:
        rows -= _take(chunks, sequence, rows)
    if prompts:
        oldest, *others = prompts
        others.sort(key=lambda prompt: prompt.to_feed)
        left = rows - sum(prompt.to_feed for prompt in others)
        rows -= _take(chunks, oldest, min(rows, max((rows + 1) // 2, left)))
        for sequence in others:
            rows -= _take(chunks, sequence, rows)
    return chunks


def _take(chunks: list[ScheduledChunk], sequence: TokenSequence, rows: int) -> int:
    """Adds what a sequence feeds of so many rows; gives how many it took."""
    start = sequence.fed
    end = start + min(sequence.to_feed, rows)
    if end <= start:
        return 0
    if sequence.boundaries:
        end = min([end, *(boundary for boundary in sequence.boundaries if boundary > start)])
    known = len(sequence.ids)
    samples = 1 + min(len(sequence.draft), end - known) if end >= known else 0
    chunks.append(ScheduledChunk(sequence.slot, start, end, samples, sequence))
    return end - start
