"""Assigns memory slots to intermediates from their lifetimes. Works with numbers only."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Lifetime:
    """The lifetime of a value of `nbytes`: written at step `first`, read for the last time at step `last`.

    `overlapping`: it is written by a step that can overlap the one before, but could not if it reused memory.
    """

    nbytes: int
    first: int
    last: int
    overlapping: bool = False


@dataclass(frozen=True)
class Assignment:
    """The slot of each value, and the size of each slot."""

    slots: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The total size of all slots."""
        return sum(self.sizes)


def separate_slots(lives: Sequence[Lifetime]) -> Assignment:
    """Assigns a separate slot to each value, so that no step waits for an earlier user of its memory."""
    return Assignment(tuple(range(len(lives))), tuple(life.nbytes for life in lives))


def assign(lives: Sequence[Lifetime], most: int = 0) -> Assignment:
    """Assigns slots such that no two values that are alive at the same step share one.

    Greedy in order of birth: the smallest free slot that is large enough, else the largest free one, grown. Overlapping
    values get exclusive slots, if these take at most `most` bytes in total.
    """
    own = sum(life.nbytes for life in lives if life.overlapping) <= most
    slots = [0] * len(lives)
    sizes: list[int] = []
    busy: dict[int, int] = {}  # by slot: the last step of its current value
    for index in sorted(range(len(lives)), key=lambda i: lives[i].first):
        life = lives[index]
        # A step reads and writes at the same time, so a slot is free only after the last step of its value.
        lone = own and life.overlapping
        free = [] if lone else [slot for slot in range(len(sizes)) if busy[slot] < life.first]
        roomy = [slot for slot in free if sizes[slot] >= life.nbytes]
        if roomy:
            slot = min(roomy, key=sizes.__getitem__)
        elif free:
            slot = max(free, key=sizes.__getitem__)
            sizes[slot] = life.nbytes
        else:
            slot = len(sizes)
            sizes.append(life.nbytes)
        busy[slot] = sys.maxsize if lone else life.last
        slots[index] = slot
    return Assignment(tuple(slots), tuple(sizes))
