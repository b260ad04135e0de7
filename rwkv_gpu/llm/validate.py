"""Argument checks: return a value of the right kind, or raise BadInput that names the argument."""

import difflib
import os
from collections.abc import Callable, Iterable, Mapping
from numbers import Integral
from pathlib import Path
from types import MappingProxyType
from typing import Any, TypeVar

from ..engine.sampling_params import Span
from ..errors import BadInput

C = TypeVar("C")
CHUNK = Span(1, 1 << 16, whole=True, optional=True)
WINDOW = Span(2, 1 << 40, whole=True, optional=True)
DIMENSIONS = Span(1, 1 << 20, whole=True, optional=True)


def token_ids(name: str, value: Any) -> list[int]:
    """Checks a list of whole numbers; the vocabulary is checked later."""
    ids = several(name, value, "token ids")
    if set(map(type, ids)) <= {int}:  # the fast path for a chat of a million tokens
        return ids
    for token in ids:
        if isinstance(token, bool) or not isinstance(token, Integral):
            raise BadInput(f"{name} holds {token!r}; token ids must be whole numbers")
    return [int(token) for token in ids]


def several(name: str, value: Any, what: str) -> list[Any]:
    """The items of a list; a text or a mapping does not count as one."""
    if isinstance(value, str | bytes | bytearray | Mapping) or not isinstance(value, Iterable):
        raise BadInput(f"{name} is {shown(value)}; it must be a list of {what}")
    return list(value)


def text(name: str, value: Any) -> str | bytes:
    """Checks a text, or its bytes."""
    if not isinstance(value, str | bytes):
        raise BadInput(f"{name} is {shown(value)}; it must be a text")
    return value


def number(name: str, value: int | None, span: Span) -> int | None:
    """Checks a number within a span."""
    if value not in span:
        raise BadInput(f"{name} is {value!r}; it must be {span}")
    return value


def truth(name: str, value: Any) -> bool | None:
    """Checks for True, False or None."""
    if not (value is None or isinstance(value, bool)):
        raise BadInput(f"{name} is {value!r}; it must be True, False or None")
    return value


def plain(name: str, value: Any) -> None:
    """Refuses values other than None, booleans and numbers."""
    if not (value is None or isinstance(value, int | float)):
        raise BadInput(f"{name} is {shown(value)}; it must be a number, True or False")


def one_of(name: str, value: C | None, *known: C) -> C | None:
    """Checks for one of some values, or None."""
    if value is not None and not any(type(value) is type(one) and value == one for one in known):
        raise BadInput(f"{name} is {value!r}; it must be {' or '.join(map(repr, known))} or None")
    return value


def called(name: str, value: Callable[..., object] | None) -> None:
    """Refuses values that are not callable."""
    if not (value is None or callable(value)):
        raise BadInput(f"{name} is {value!r}; it must be a function of two numbers: done, and all")


def path(name: str, value: Any) -> Path:
    """Checks a path."""
    if not isinstance(value, str | os.PathLike):
        raise BadInput(f"{name} is {shown(value)}; it must be the name of a file")
    return Path(value)


def optional_path(name: str, value: Any) -> Path | None:
    """Checks a path or None."""
    return None if value is None else path(name, value)


def shown(value: Any) -> str:
    """A value for an error message; only its type if it is long."""
    return repr(value) if value is None or isinstance(value, int | float) else f"a {type(value).__name__}"


def unknown_name(
    name: str, what: str, known: Iterable[str], documented: str, instead: Mapping[str, str] = MappingProxyType({})
) -> str:
    """The error about an unknown name. It states what to use, the most similar name, or where names are documented."""
    near = difflib.get_close_matches(name.lower(), list(known), 1, 0.7)
    remedy = instead.get(name) or (f"did you mean {near[0]}?" if near else f"{documented} lists the names")
    article = "an" if what.startswith("option") else "a"
    return f"{name} is not {article} {what}; {remedy}"
