"""Upper bounds on the size of an operation's result, computed beforehand, for operations that can amplify their input.

Operations that take far longer than their size suggests are charged here, too. Each function takes the operation's own
arguments, the text first. A bound must never be too small.
"""

import json
import re
import sys
from collections.abc import Callable, Mapping, Sized
from typing import Any

from rwkv_gpu.text.budget import STEP, Budget, Exceeded

_NUMBER = re.compile(r"\d+")
_STAR = re.compile(r"%[^a-zA-Z%]*\*")  # a width given as an argument: %*d
_NESTED = re.compile(r"\{[^{}]*\{")  # the same for str.format: {:{}}
DIGITS = 9  # maximum digits of a width; longer numbers are refused without being read
_EMPTY = sys.getsizeof("")


def letters(value: object) -> int:
    """Size of a text's characters in bytes, without overhead."""
    return sys.getsizeof(str(value)) - _EMPTY


def formatted(text: str, fields: int, values: object, budget: Budget) -> int:
    """Size of a formatted text: each field as wide as the largest number in the text, or as all values."""
    widths = _NUMBER.findall(text)
    if any(len(width) > DIGITS for width in widths):
        raise Exceeded("formats with a width of too many digits")
    widest = max(map(int, widths), default=0)
    return 4 * (sys.getsizeof(text) + fields * (widest + budget.weigh(values)[0]))


def percent(budget: Budget, text: Any, *values: Any, **named: Any) -> int:
    """text % values"""
    text = str(text)
    if _STAR.search(text):
        raise Exceeded("formats with a width that is an argument")
    return formatted(text, text.count("%"), [list(values), named], budget)


def braces(budget: Budget, text: str, *values: Any, **named: Any) -> int:
    """text.format(...)"""
    if _NESTED.search(text.replace("{{", "")):
        raise Exceeded("formats with a width that is an argument")
    return formatted(text, text.count("{"), [list(values), named], budget)


def replaced(_: Budget, text: Any, old: Any = "", new: Any = "", count: Any = None) -> int:  # noqa: ARG001
    """text.replace(old, new)"""
    text, old = str(text), str(old)
    return sys.getsizeof(text) + (text.count(old) if old else len(text) + 1) * letters(new)


def joined(budget: Budget, items: Any, d: Any = "", attribute: Any = None) -> int:  # noqa: ARG001
    """d.join(items)"""
    count = len(items) if isinstance(items, Sized) else 0
    return budget.weigh(items)[0] + count * letters(d)


def widened(_: Budget, value: Any, *given: Any, **named: Any) -> int:
    """Limits by the largest number in the arguments: center, zfill, batch, slice."""
    entries = 1 if isinstance(value, str) else STEP
    widest = max((number for number in (*given, *named.values()) if isinstance(number, int)), default=80)
    return sys.getsizeof(value) + 4 * entries * widest


def indented(_: Budget, text: Any, width: Any = 4, first: Any = False, blank: Any = False) -> int:  # noqa: ARG001
    """The size of a text whose every line gets a prefix: `width` spaces, or a text."""
    text = str(text)
    more = width if isinstance(width, int) else sys.getsizeof(width)
    return sys.getsizeof(text) + 4 * (len(text.splitlines()) + 1) * more


def searched(budget: Budget, text: Any, *given: Any, **named: Any) -> int:
    """Limits reverse searches and strips, in which Python may compare every character with every searched one."""
    sought = max((len(value) for value in (*given, *named.values()) if isinstance(value, str)), default=0)
    budget.spend(len(str(text)) * sought // 8)
    return 0


def tabbed(_: Budget, text: str, tabsize: Any = 8) -> int:
    """text.expandtabs(tabsize)"""
    return sys.getsizeof(text) + 4 * text.count("\t") * (tabsize if isinstance(tabsize, int) else 0)


def rounded(_: Budget, value: Any, precision: Any = 0, method: Any = None) -> int:  # noqa: ARG001
    """Limits the precision, as 10^precision is computed as an integer."""
    if isinstance(precision, int) and abs(precision) > 100:
        raise Exceeded("rounds to more than 100 digits")
    return 0


def summed(_: Budget, items: Any, attribute: Any = None, start: Any = 0) -> int:  # noqa: ARG001
    """Limits the sum of lists, which takes quadratic time."""
    if not isinstance(start, int | float):
        raise Exceeded("sums values that are not numbers")
    return 0


def dumped(
    budget: Budget, value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, **_: Any
) -> int:
    """The size of JSON if every entry has its own line, indented by its depth, and every character takes six bytes."""
    weight, depth = budget.weigh(value)
    around = sum(map(letters, separators or ()))
    if indent is not None:
        around += depth * (indent if isinstance(indent, int) else letters(indent))
    return weight * (6 if ensure_ascii else 1) + (weight // 8) * around


Size = Callable[..., int]
FILTERS: Mapping[str, Size] = {
    **dict.fromkeys(("batch", "center", "slice"), widened),
    "format": percent,
    "indent": indented,
    "join": joined,
    "replace": replaced,
    "round": rounded,
    "sum": summed,
    "tojson": dumped,
    "trim": searched,
}
METHODS: Mapping[str, Size] = {
    **dict.fromkeys(("center", "ljust", "rjust", "zfill"), widened),
    **dict.fromkeys(("lstrip", "rfind", "rindex", "rpartition", "rsplit", "rstrip", "strip"), searched),
    "expandtabs": tabbed,
    "format": braces,
    "replace": replaced,
    "join": lambda budget, separator, items=(): joined(budget, items, separator),
}


def product(budget: Budget, left: Any, right: Any) -> int:
    """The size of a sequence times a number; integers have another limit."""
    if isinstance(left, int) and isinstance(right, int):
        return 0
    if isinstance(left, int):
        left, right = right, left
    size = letters(left) if isinstance(left, str) else budget.weigh(left)[0]
    return size * max(0, right) if isinstance(right, int) else 0


def power(_: Budget, left: Any, right: Any) -> int:
    """The bits of the result of a power."""
    if isinstance(left, int) and isinstance(right, int) and abs(right) * max(1, left.bit_length()) > STEP * STEP:
        raise Exceeded("raises to too high a power")
    return 0


OPERATORS: Mapping[str, Size] = {
    "+": lambda budget, left, right: budget.weigh(left)[0] + budget.weigh(right)[0],
    "*": product,
    "**": power,
    "%": lambda budget, left, right: percent(budget, left, right) if isinstance(left, str) else 0,
}


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """JSON as Hugging Face's templates expect it: without HTML or Unicode escapes."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)
