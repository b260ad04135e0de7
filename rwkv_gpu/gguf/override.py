"""Values that replace keys of a file's metadata, written as KEY=TYPE:VALUE."""

import math
from collections.abc import Callable, Mapping, Sequence

from ..errors import BadInput, printable

Override = int | float | bool | str
LONGEST_KEY, LONGEST_TEXT = 256, 127  # limits of a key and of a text value, as in llama.cpp
TRUTHS = {"true": True, "1": True, "false": False, "0": False}
TYPES: dict[str, Callable[[str], Override]] = {
    "int": int, "float": float, "bool": lambda text: TRUTHS[text], "str": str,
}  # fmt: skip


def overrides_of(given: Mapping[str, Override] | Sequence[str] | str | None) -> dict[str, Override]:
    """The values by key, from a mapping or from texts such as "phi3.attention.sliding_window=int:0"."""
    if isinstance(given, Mapping):
        return {_key(key): _checked(key, value) for key, value in given.items()}
    texts = [given] if isinstance(given, str) else given or ()
    if not isinstance(texts, Sequence) or not all(isinstance(text, str) for text in texts):
        raise BadInput(
            f"override_kv is {printable(repr(given), 60)}; it must map keys to values, or list KEY=TYPE:VALUE"
        )
    return dict(_parsed(text) for text in texts)


def _parsed(text: str) -> tuple[str, Override]:
    """The key and value of KEY=TYPE:VALUE."""
    key, _, typed = text.partition("=")
    kind, colon, value = typed.partition(":")
    try:
        if not colon:
            raise ValueError
        read = TYPES[kind](value)
    except (ValueError, KeyError):
        raise BadInput(
            f"override-kv: '{printable(text, 80)}' is not KEY=TYPE:VALUE; TYPE is int, float, bool or str, "
            "as in phi3.attention.sliding_window=int:0"
        ) from None
    return _key(key), _checked(key, read)


def _key(key: object) -> str:
    if not isinstance(key, str) or not 0 < len(key) <= LONGEST_KEY:
        raise BadInput(f"override_kv has the key {printable(repr(key), 60)}; it must be the name of a metadata key")
    return key


def _checked(key: str, value: object) -> Override:
    if isinstance(value, str) and len(value) <= LONGEST_TEXT:
        return value
    if isinstance(value, float) and math.isfinite(value):
        return value
    if isinstance(value, int) and -(1 << 63) <= value < 1 << 63:  # bool is one, too
        return value
    raise BadInput(
        f"override_kv: '{printable(str(key), 80)}' is {printable(repr(value), 60)}; "
        f"it must be a finite number, a truth value, or a text of at most {LONGEST_TEXT} characters"
    )
