"""Distributes the layers of a model over devices by memory and speed. Pure functions.

A layer has a size and a time on each device. Devices get consecutive layers, in the order in which they are named.
"""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Load:
    """The layers of a model, as seen by one device."""

    room: float  # bytes available for them
    sizes: Sequence[int]  # bytes of each layer on this device
    seconds: Sequence[float]  # seconds of each layer for one token on this device


def filled(loads: Sequence[Load]) -> list[int]:
    """The number of layers of each device if each takes as many as fit. Some layers remain if memory is short."""
    counts, at, layers = [], 0, len(loads[0].sizes)
    for load in loads:
        room, first = load.room, at
        while at < layers and load.sizes[at] <= room:
            room -= load.sizes[at]
            at += 1
        counts.append(at - first)
    return counts


def balanced(loads: Sequence[Load]) -> list[int] | None:
    """The number of layers of each device, at least one, that makes the slowest part fastest; None if they do not fit.

    If several splits have equally fast slowest parts, the one with the least total time wins.
    """
    layers = len(loads[0].sizes)
    # best[end]: (time of the slowest part, total time, counts) of the first `end` layers on the devices so far
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
