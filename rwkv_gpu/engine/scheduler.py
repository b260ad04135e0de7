"""Chooses the rows of a step: decoding sequences first, then as much of the prompts as fits."""

from collections.abc import Sequence
from typing import NamedTuple

from .sequence import TokenSequence


class ScheduledChunk(NamedTuple):
    """The next tokens of one sequence in a step."""

    slot: int
    start: int
    end: int  # tokens of the sequence that have been fed after this step
    samples: int  # number of its last rows that are sampled: 0 inside a prompt, else 1 + drafted tokens
    sequence: TokenSequence
    unverified: int = 0  # drafted tokens before it that may turn out to be wrong

    @property
    def keeps(self) -> bool:
        """True if a state is written after each row, because drafted tokens may be rejected."""
        return self.samples > 1


def schedule(sequences: Sequence[TokenSequence], rows: int) -> list[ScheduledChunk]:
    """Returns chunks of at most `rows` rows in total. Each ends at the boundaries of its sequence.

    Decode rows come first, then prompts. If there are several prompts, the oldest gets half of the rows. The others
    share the rest, shortest first. So short prompts do not wait for a long one, and a long one does not starve.
    """
    chunks: list[ScheduledChunk] = []
    decoding: list[TokenSequence] = []
    prompts: list[TokenSequence] = []
    for sequence in sequences:
        (decoding if sequence.fed >= sequence.read_end else prompts).append(sequence)
    least = prompts[0].images.least(prompts[0].fed) if prompts else 0
    for sequence in decoding:
        rows -= _take(chunks, sequence, rows - least)
    if prompts:
        oldest, *others = prompts
        others.sort(key=lambda prompt: prompt.to_feed)
        left = rows - sum(prompt.to_feed for prompt in others)
        rows -= _take(chunks, oldest, max(least, min(rows, max((rows + 1) // 2, left))))
        for sequence in others:
            rows -= _take(chunks, sequence, rows)
    return chunks


def _take(chunks: list[ScheduledChunk], sequence: TokenSequence, rows: int) -> int:
    """Appends the next chunk of a sequence, of at most `rows` rows. Returns its number of rows."""
    start = sequence.fed
    end = start + min(sequence.to_feed, rows)
    if end <= start:
        return 0
    images = sequence.images
    if sequence.boundaries:
        end = min([end, *(one for one in sequence.boundaries if one > start and not images.divides(one))])
    if (images.spans or images.prompt) and (end := images.end_of(start, end)) == start:
        return 0
    known = len(sequence.ids)
    samples = 1 + min(len(sequence.draft), end - max(known, start + 1)) if end >= known else 0
    chunks.append(ScheduledChunk(sequence.slot, start, end, samples, sequence, sequence.unverified))
    return end - start
