"""Prompt lookup: drafts what followed the longest earlier run of tokens that equals the end of the text."""

from collections.abc import Sequence
from weakref import WeakKeyDictionary

from ..sequence import TokenSequence
from .acceptance import kind_of
from .proposer import Offer, Proposer

SHORTEST = 2  # tokens that must agree
LONGEST = 32  # tokens that are compared: a longer run counts as this long
RECENT = 16  # places of a pair that are looked at, the latest


class NgramIndex:
    """The places of every pair of neighbouring tokens in a text that grows."""

    def __init__(self, cut: int = 0) -> None:
        self.cut = cut  # tokens that the text had lost in its middle when it was indexed
        self._places: dict[tuple[int, int], list[int]] = {}  # of the second token of each pair
        self._indexed = 1  # tokens that were first in a pair, or are indexed

    def extend(self, ids: Sequence[int]) -> None:
        """Adds the pairs of new tokens. A text only grows."""
        for place in range(self._indexed, len(ids)):
            places = self._places.setdefault((ids[place - 1], ids[place]), [])
            places.append(place)
            if len(places) > 2 * RECENT:
                del places[:-RECENT]
        self._indexed = max(self._indexed, len(ids))

    def find(self, ids: Sequence[int], most: int) -> tuple[list[int], int]:
        """Up to so many tokens that may follow, and how long a run they followed; none after two new neighbours."""
        self.extend(ids)
        if len(ids) <= SHORTEST:
            return [], 0
        last = len(ids) - 1
        places = self._places[ids[-2], ids[-1]]
        earlier = [place for place in places[-RECENT - 1 :] if place < last]
        if not earlier:
            return [], 0
        run, place = max((_run(ids, place), place) for place in earlier)
        period = last - place  # where the run reaches the end of the text, it goes on with itself
        return [ids[place + 1 + i % period] for i in range(most)], run


def _run(ids: Sequence[int], place: int) -> int:
    """How many tokens up to that place equal the end of the text."""
    length = SHORTEST
    while length < LONGEST and length <= place and ids[place - length] == ids[-1 - length]:
        length += 1
    return length


class PromptLookup(Proposer):
    """Drafts by an index of each sequence, without steps."""

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
