"""Parses tool arguments in notations other than JSON."""

import ast
import json
import re
import sys
from dataclasses import dataclass, field
from typing import Any

from rwkv_gpu.text.thinking import begun

NAMESPACE = "]<]minimax[>["  # precedes each mark of MiniMax-M3
DEEPEST = 64  # elements inside each other
LONGEST = 1 << 16  # characters of calls that are parsed as Python
_LARGEST = sys.float_info.max
_INFINITE = {"Infinity": _LARGEST, "-Infinity": -_LARGEST}
# Reads JSON that is to be written again. JSON has no infinite numbers, and no NaN.
DECODER = json.JSONDecoder(
    strict=False, parse_float=lambda text: min(max(float(text), -_LARGEST), _LARGEST), parse_constant=_INFINITE.get
)
_CONSTANTS = {"true": True, "false": False, "null": None}
_QUOTE = '<|"|>'  # around a text in Gemma 4's notation
_GEMMA = re.compile(r'<\|"\|>(.*?)<\|"\|>|([A-Za-z_][\w.-]*)(?=\s*:)', re.DOTALL)


def python_calls(text: str) -> list[tuple[str, dict[str, Any]]]:
    """Names and arguments of the calls in [name(key='value', other=2), ...]; empty for anything else."""
    if len(text) > LONGEST:
        return []
    try:
        body = ast.parse(text.strip(), mode="eval").body
        calls = body.elts if isinstance(body, ast.List) else [body]
        return [_python_call(call) for call in calls]
    except (SyntaxError, TypeError, ValueError, RecursionError, MemoryError):
        return []


def _python_call(node: ast.expr) -> tuple[str, dict[str, Any]]:
    if not isinstance(node, ast.Call) or node.args or not isinstance(node.func, ast.Name | ast.Attribute):
        raise ValueError
    return ast.unparse(node.func), {key.arg: _python_value(key.value) for key in node.keywords if key.arg}


def _python_value(node: ast.expr) -> Any:
    """A literal; true, false and null count as Python's."""
    if isinstance(node, ast.Name) and node.id in _CONSTANTS:
        return _CONSTANTS[node.id]
    if isinstance(node, ast.List | ast.Tuple):
        return [_python_value(one) for one in node.elts]
    if isinstance(node, ast.Dict) and all(isinstance(key, ast.Constant) for key in node.keys):
        keys = [str(ast.literal_eval(key)) for key in node.keys if key]
        return dict(zip(keys, map(_python_value, node.values), strict=True))
    value = ast.literal_eval(node)
    json.dumps(value, allow_nan=False)  # raises for values that JSON lacks
    return value


def gemma_values(text: str) -> Any:
    """Converts {key:<|"|>text<|"|>,other:2} to JSON; None for anything else."""
    try:
        return DECODER.decode(_quoted(text))
    except (ValueError, RecursionError):
        return None


def gemma_prefix(text: str) -> str:
    """Converts the beginning of {key:<|"|>text<|"|>,other:2} to the beginning of JSON."""
    text = text[: len(text) - begun(text, _QUOTE)]
    before, _, last = text.rpartition(_QUOTE)
    return _quoted(before) + json.dumps(last)[:-1] if text.count(_QUOTE) % 2 else _quoted(text)


def _quoted(text: str) -> str:
    return _GEMMA.sub(lambda found: json.dumps(found[2] if found[1] is None else found[1]), text)


@dataclass
class Element:
    """An element of MiniMax-M3's markup: text, or further elements."""

    mark: str
    text: str = ""
    inside: list["Element"] = field(default_factory=list)

    def value(self, schema: Any) -> Any:
        """The element as a list of its items, an object of its members, or text converted by the schema."""
        schema = schema if isinstance(schema, dict) else {}
        if self.inside and all(one.mark == "item" for one in self.inside):
            return [one.value(schema.get("items")) for one in self.inside]
        if self.inside or (schema.get("type") == "object" and not self.text.strip()):
            known = schema.get("properties")
            return {
                one.mark: one.value(known.get(one.mark) if isinstance(known, dict) else None) for one in self.inside
            }
        return typed(self.text, schema)


def minimax_elements(text: str) -> list[Element]:
    """The outer elements of a text in which each mark follows a namespace token; complete ones if it is malformed."""
    found: list[Element] = []
    open_: list[Element] = []
    for part in text.split(NAMESPACE)[1:]:
        mark = re.match(r"<(/?)([^<>]+)>", part)
        if mark is None or len(open_) >= DEEPEST:
            return found
        if not mark[1]:
            open_.append(Element(mark[2], part[mark.end() :]))
        elif not open_ or open_[-1].mark.split()[0] != mark[2]:
            return found
        else:
            last = open_.pop()
            (open_[-1].inside if open_ else found).append(last)
    return found


def typed(text: str, schema: Any) -> Any:
    """A text as the schema of its parameter wants it: a string, or JSON."""
    if isinstance(schema, dict) and schema.get("type") == "string":
        return text
    try:
        return DECODER.decode(text)
    except (ValueError, RecursionError):
        return text
