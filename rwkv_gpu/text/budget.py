"""Limits on rendering a template: sizes of values, work and time. Handles plain Python values, not templates."""

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass

STEP = 64  # bytes charged for a step, and for a list entry


class Exceeded(Exception):
    """A template exceeds its limits."""


@dataclass(frozen=True)
class Limits:
    """Limits of a template. Each byte of its input raises the limits of size and work."""

    value: int = 1 << 20  # bytes of one value, and of the whole output; plus 4 per byte of input
    work: int = 1 << 26  # total bytes created, where a step counts as 64; plus 64 per byte of input
    seconds: float = 5.0
    source: int = 1 << 16  # characters of the template source
    depth: int = 64  # levels of nested values, and of calls
    bits: int = 4096  # bits of an integer


class Budget:
    """The remaining limits while one template runs.

    Every value is weighed when it is created, so none can exceed the limit. Nesting cannot avoid this: the weight of a
    list includes each occurrence of its entries.
    """

    def __init__(self, limits: Limits, given: object = None) -> None:
        self._limits = limits
        # Id: weight, depth, and the value, which keeps the id valid
        self._known: dict[int, tuple[int, int, object]] = {}
        self._largest = sys.maxsize
        self.left = sys.maxsize
        self._end = time.monotonic() + limits.seconds
        weight, _ = self.weigh(given)
        self._largest = limits.value + 4 * weight
        self.left = limits.work + 64 * weight
        self.calls = 0

    def spend(self, amount: int = STEP) -> None:
        """Charges bytes of work, and checks the time."""
        self.left -= amount
        if self.left < 0:
            raise Exceeded("does more work than a prompt can need")
        if time.monotonic() > self._end:
            raise Exceeded(f"runs for longer than {self._limits.seconds:g} seconds")

    def allow(self, size: int) -> None:
        """Refuses a value of `size` bytes if that is too large."""
        if size > self._largest:
            raise Exceeded(f"makes a value of more than {self._largest:,} bytes")

    def made(self, value: object) -> None:
        """Charges a newly created value."""
        weight, _ = self.weigh(value)
        entries = len(value) if isinstance(value, list | tuple | Mapping) else 0
        self.spend(STEP * (1 + entries) if entries else weight)

    def grown(self) -> None:
        """Forgets known weights: a list has grown, and with it all values that contain it."""
        self._known.clear()

    def weigh(self, value: object) -> tuple[int, int]:
        """The size of a value in bytes, as text or in memory, and its nesting depth."""
        if type(value) is str:  # the most common case
            weight = sys.getsizeof(value)
            if weight > self._largest:
                self.allow(weight)
            return weight, 0
        if isinstance(value, str):
            weight, depth = sys.getsizeof(value), 0
        elif isinstance(value, int):
            if value.bit_length() > self._limits.bits:
                raise Exceeded(f"makes an integer of more than {self._limits.bits} bits")
            weight, depth = sys.getsizeof(value), 0
        elif isinstance(value, list | tuple | dict):
            weight, depth = self._weigh_entries(value)
        else:
            weight, depth = STEP, 0
        self.allow(weight)
        return weight, depth

    def _weigh_entries(self, value: "list[object] | tuple[object, ...] | dict[object, object]") -> tuple[int, int]:
        known = self._known.get(id(value))
        if known is not None:
            return known[0], known[1]
        entries = [*value.keys(), *value.values()] if isinstance(value, dict) else value
        weight, depth = STEP, 0
        for entry in entries:
            more, deeper = self.weigh(entry)
            weight += more + 8
            depth = max(depth, deeper)
            self.allow(weight)
        if depth >= self._limits.depth:
            raise Exceeded(f"nests values more than {self._limits.depth} deep")
        self._known[id(value)] = (weight, depth + 1, value)
        return weight, depth + 1
