"""Typed and range-checked access to metadata. A caller states what it expects and gets it, or a clear error."""

import builtins  # the methods int, float, str and bool hide those names in the annotations of the class body
import math
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

from rwkv_gpu.errors import BadFile, printable

from .cursor import Value, shown

T = TypeVar("T")
D = TypeVar("D")
REQUIRED: Any = object()  # the default of a key that must be there


class Fields:
    """The metadata of a file. Errors of its getters name the key, the value found and the value expected."""

    def __init__(self, path: builtins.str, metadata: Mapping[builtins.str, Value]) -> None:
        self._path = printable(path)
        self.metadata = metadata

    def int(
        self,
        key: builtins.str,
        low: builtins.int | None = None,
        high: builtins.int | None = None,
        default: D = REQUIRED,
    ) -> builtins.int | D:
        """An integer from low to high."""
        expected = "an integer" + _range(low, high)
        return self._get(key, default, expected, lambda v: v if type(v) is int and _within(v, low, high) else None)

    def float(
        self,
        key: builtins.str,
        low: builtins.float | None = None,
        high: builtins.float | None = None,
        default: D = REQUIRED,
    ) -> builtins.float | D:
        """A finite number from low to high."""
        expected = "a finite number" + _range(low, high)
        return self._get(key, default, expected, lambda v: _real(v, low, high))

    def str(self, key: builtins.str, default: D = REQUIRED) -> builtins.str | D:
        """A text."""
        return self._get(key, default, "a string", lambda v: v if isinstance(v, str) else None)

    def bool(self, key: builtins.str, default: D = REQUIRED) -> builtins.bool | D:
        """True or False."""
        return self._get(key, default, "a bool", lambda v: v if isinstance(v, bool) else None)

    def strings(self, key: builtins.str, default: D = REQUIRED) -> list[builtins.str] | D:
        """An array of texts."""
        return self._get(key, default, "an array of strings", _strings)

    def ints(self, key: builtins.str, default: D = REQUIRED) -> npt.NDArray[np.int64] | D:
        """An array of integers."""
        return self._get(key, default, "an array of integers below 2^63", _ints)

    def floats(self, key: builtins.str, default: D = REQUIRED) -> npt.NDArray[np.float64] | D:
        """An array of finite numbers."""
        return self._get(key, default, "an array of finite numbers", _floats)

    def _get(self, key: builtins.str, default: D, expected: builtins.str, accept: Callable[[Value], T | None]) -> T | D:
        if key not in self.metadata:
            if default is not REQUIRED:
                return default
            raise BadFile(f"{self._path}: metadata key {shown(key)}: is missing, expected {expected}")
        value = accept(self.metadata[key])
        if value is None:
            found = shown(self.metadata[key])
            raise BadFile(f"{self._path}: metadata key {shown(key)}: found {found}, expected {expected}")
        return value


def _real(value: Value, low: float | None, high: float | None) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return float(value) if math.isfinite(value) and _within(value, low, high) else None


def _strings(value: Value) -> list[str] | None:
    if isinstance(value, list) and (not value or isinstance(value[0], str)):
        return value  # all elements of an array have one type
    return None


def _ints(value: Value) -> npt.NDArray[np.int64] | None:
    if isinstance(value, np.ndarray) and value.dtype.kind in "iu" and int(value.max(initial=0)) < 1 << 63:
        return value.astype(np.int64)
    return None


def _floats(value: Value) -> npt.NDArray[np.float64] | None:
    if isinstance(value, np.ndarray) and value.dtype.kind == "f" and np.isfinite(value).all():
        return value.astype(np.float64)
    return None


def _within(value: float, low: float | None, high: float | None) -> bool:
    return (low is None or low <= value) and (high is None or value <= high)


def _range(low: float | None, high: float | None) -> str:
    if low == high:
        return "" if low is None else f" equal to {low}"
    if high is None:
        return f" of at least {low}"
    return f" of at most {high}" if low is None else f" from {low} to {high}"
