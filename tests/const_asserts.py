"""Evaluates the `const_assert`s of a shader as a compiler would, without a driver."""

import re

COMMENT = re.compile(r"//[^\n]*")
CONST = re.compile(r"^const (\w+)(?:: \w+)? = ([^;]+);", re.MULTILINE)
ASSERT = re.compile(r"^const_assert ([^;]+);", re.MULTILINE)
NAME = re.compile(r"[A-Za-z_]\w*")
FUNCTIONS = {
    "min": min,
    "max": max,
    "u32": int,
    "countOneBits": int.bit_count,
    "select": lambda no, yes, which: yes if which else no,
    "true": True,
    "false": False,
}


def broken_asserts(source: str) -> list[str]:
    """Returns the false assertions as source text."""
    text = COMMENT.sub("", source)
    written = dict(CONST.findall(text))
    known: dict[str, object] = dict(FUNCTIONS)
    return [assertion for assertion in ASSERT.findall(text) if not _value(assertion, written, known)]


def _value(expression: str, written: dict[str, str], known: dict[str, object]) -> object:
    """Evaluates an expression of constants. Each constant that it names is evaluated once."""
    python = re.sub(r"\b(0x[0-9a-f]+|\d+)[ui]\b", r"\1", expression)
    for wgsl, ours in (("&&", " and "), ("||", " or "), ("/", "//")):
        python = python.replace(wgsl, ours)
    python = re.sub(r"!(?!=)", " not ", python)
    for name in set(NAME.findall(python)) - {"and", "or", "not"}:
        if name not in known:
            known[name] = _value(written[name], written, known)
    return eval(python, {"__builtins__": {}}, known)
