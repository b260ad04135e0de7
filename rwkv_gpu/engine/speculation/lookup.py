"""Prompt lookup: drafts the tokens that followed the longest earlier match of the end of the text."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ..sequence import TokenSequence
from .acceptance import kind_of
from .proposer import Offer, Proposer

SHORTEST = 2  # minimum tokens of a match
LONGEST = 32  # maximum tokens compared; longer matches count as this long
RECENT = 16  # number of latest positions examined per pair


class NgramIndex:
    """The positions of every pair of adjacent tokens in a growing text."""

    def __init__(self, cut: int = 0) -> None:
        self.cut = cut  # tokens cut from the middle of the text when it was indexed
        self._places: dict[tuple[int, int], list[int]] = {}  # position of the second token of each pair
        self._indexed = 1  # number of tokens indexed

    def extend(self, ids: Sequence[int]) -> None:
        """Indexes the pairs of new tokens. A text only grows."""
        for place in range(self._indexed, len(ids)):
            places = self._places.setdefault((ids[place - 1], ids[place]), [])
            places.append(place)
            if len(places) > 2 * RECENT:
                del places[:-RECENT]
        self._indexed = max(self._indexed, len(ids))

    def find(self, ids: Sequence[int], most: int) -> tuple[list[int], int]:
        """Returns up to `most` tokens that may follow, and the match length; no tokens if the last pair is new."""
        self.extend(ids)
        if len(ids) <= SHORTEST:
            return [], 0
        last = len(ids) - 1
        places = self._places[ids[-2], ids[-1]]
        earlier = [place for place in places[-RECENT - 1 :] if place < last]
        if not earlier:
            return [], 0
        run, place = max((_run(ids, place), place) for place in earlier)
        period = last - place  # a match that reaches the end of the text continues periodically
        return [ids[place + 1 + i % period] for i in range(most)], run


def _run(ids: Sequence[int], place: int) -> int:
    """Number of tokens ending at `place` that equal the end of the text."""
    length = SHORTEST
    while length < LONGEST and length <= place and ids[place - length] == ids[-1 - length]:
        length += 1
    return length


class PromptLookup(Proposer):
    """Drafts from an n-gram index of each sequence, without model steps."""

    free = True

    def __init__(self) -> None:
        self._indices: WeakKeyDictionary[TokenSequence, NgramIndex] = WeakKeyDictionary()

    def begin(self, sequence: TokenSequence) -> None:
        self._indices[sequence] = index = NgramIndex(sequence.cut)
        index.extend(sequence.ids)

    def offer(self, sequence: TokenSequence, most: int) -> Offer | None:
        if self._indices[sequence].cut != sequence.cut:
            self.begin(sequence)
        tokens, run = self._indices[sequence].find(sequence.ids, most)
        return Offer(kind_of(run), tokens) if tokens else None
