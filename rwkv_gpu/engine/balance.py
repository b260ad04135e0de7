"""How many layers of a model each of several devices gets, by its memory and its speed. Pure functions.

A layer has a size and a time on each device. Devices have consecutive layers, in the order in which they are named.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """What the layers of a model are to one device."""

    room: float  # bytes that they may take
    sizes: Sequence[int]  # bytes of each layer there
    seconds: Sequence[float]  # that a token takes in each layer there


def filled(loads: Sequence[Load]) -> list[int]:
    """Layers of each device if each takes all that it has room for; together fewer than all where too little fits."""
    counts, at, layers = [], 0, len(loads[0].sizes)
    for load in loads:
        room, first = load.room, at
        while at < layers and load.sizes[at] <= room:
            room -= load.sizes[at]
            at += 1
        counts.append(at - first)
    return counts


def balanced(loads: Sequence[Load]) -> list[int] | None:
    """Layers of each device, at least one, so that the slowest part takes the least time; None if they do not fit.

    Of splits that are as good, the one with the least time of all parts.
    """
    layers = len(loads[0].sizes)
    # best[end]: (time of the slowest part, time of all, counts) of the first `end` layers on the devices so far
    best: dict[int, tuple[float, float, list[int]]] = {0: (0.0, 0.0, [])}
    for load in loads:
        sizes = [0, *itertools.accumulate(load.sizes)]
        seconds = [0.0, *itertools.accumulate(load.seconds)]
        found: dict[int, tuple[float, float, list[int]]] = {}
        for start, (slowest, total, counts) in best.items():
            for end in range(start + 1, layers + 1):
                if sizes[end] - sizes[start] > load.room:
                    break
                took = seconds[end] - seconds[start]
                one = max(slowest, took), total + took, [*counts, end - start]
                if one[:2] < found.get(end, (math.inf, math.inf))[:2]:
                    found[end] = one
        best = found
    return best[layers][2] if layers in best else None
