"""Parses tool arguments in notations other than JSON."""

import ast
import json
import re
from typing import Any

LONGEST = 1 << 16  # characters of calls that are parsed as Python
_CONSTANTS = {"true": True, "false": False, "null": None}
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
    quoted = _GEMMA.sub(lambda found: json.dumps(found[2] if found[1] is None else found[1]), text)
    try:
        return json.loads(quoted)
    except (ValueError, RecursionError):
        return None
