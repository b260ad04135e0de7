"""Which intermediates may share memory: intervals of life in, slots out. Knows numbers only."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Life:
    """A value of `nbytes` that is written at step `born` and read for the last time at step `last`.

    What is `overlapping` is written by a step that need not wait for the one before: in memory that was used earlier it
    would have to.
    """

    nbytes: int
    born: int
    last: int
    overlapping: bool = False


@dataclass(frozen=True)
class Assignment:
    """Each value's slot, and each slot's size."""

    slots: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def nbytes(self) -> int:
        """The memory that all slots take together."""
        return sum(self.sizes)


def apart(lives: Sequence[Life]) -> Assignment:
    """A slot for each: nothing waits for what used its memory before."""
    return Assignment(tuple(range(len(lives))), tuple(life.nbytes for life in lives))


def assign(lives: Sequence[Life], most: int = 0) -> Assignment:
    """A slot for each value such that no two values that live at the same step share one.

    Greedy in order of birth: the tightest free slot that is large enough, else the largest free one, grown. Values that
    overlap have slots that nobody shares, if all of them take no more than `most` bytes.
    """
    own = sum(life.nbytes for life in lives if life.overlapping) <= most
    slots = [0] * len(lives)
    sizes: list[int] = []
    busy: dict[int, int] = {}  # slot -> the last step of its holder
    for index in sorted(range(len(lives)), key=lambda i: lives[i].born):
        life = lives[index]
        # A step reads and writes at once, so a slot is free only after the last step of its holder.
        lone = own and life.overlapping
        free = [] if lone else [slot for slot in range(len(sizes)) if busy[slot] < life.born]
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
