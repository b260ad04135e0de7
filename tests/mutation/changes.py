"""Small changes to the code: the position of each, and its replacement.

A change is a swapped comparison, a bound one too large, `max` for `min`, `or` for `and`, a lost `not`, two swapped
arguments, or a statement left out.
"""

import ast
import hashlib
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
EQUIVALENT = Path(__file__).with_name("equivalent.txt")
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min"}
ORDERLESS = (
    "suppress",
    "minimum",
    "maximum",
    "array_equal",
    "shared",
    "_common",
)  # functions of which arguments may be swapped


@dataclass(frozen=True)
class Change:
    """A part of a file, and its replacement."""

    path: Path
    line: int
    last: int  # line
    start: int  # in bytes of the file
    stop: int
    before: str
    after: str
    number: int  # number among the changes of its file with these texts
    scope: tuple[str, ...]  # names of the function and its classes; empty for code that runs on import

    def applied(self, data: bytes) -> bytes:
        """Returns the file with the change."""
        return data[: self.start] + self.after.encode() + data[self.stop :]

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: {self.name}"

    @property
    def name(self) -> str:
        """The texts before and after. Unlike a line number, this stays the same when lines of the file move."""
        return f"{' '.join(self.before.split())[:100]}  ->  {' '.join(self.after.split())[:100]}"

    def order(self, seed: int) -> bytes:
        """A sort key for the choice of changes, which stays the same when other lines of the file change."""
        return hashlib.sha256(f"{seed} {self.path} {self.number} {self.name}".encode()).digest()


def changes(path: Path) -> Iterator[Change]:
    """Returns all changes of a file, which is named relative to the root."""
    data = (ROOT / path).read_bytes()
    tree = ast.parse(data)
    lines = [0]
    for line in data.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    seen: Counter[tuple[str, str]] = Counter()
    scopes = dict(_scopes(tree, ()))
    for node, scope in scopes.items():
        changed = mutated(node)
        if changed is not None and isinstance(node, ast.expr | ast.stmt):
            assert node.end_lineno is not None and node.end_col_offset is not None
            start, stop = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
            before = data[start:stop].decode()
            seen[before, changed] += 1
            number = seen[before, changed]
            yield Change(path, node.lineno, node.end_lineno, start, stop, before, changed, number, scope)


def _scopes(node: ast.AST, names: tuple[str, ...], inside: bool = False) -> Iterator[tuple[ast.AST, tuple[str, ...]]]:
    """Yields all nodes below one except asserts, each with the outermost function that contains it."""
    for field, value in ast.iter_fields(node):
        for child in value if isinstance(value, list) else [value]:
            if not isinstance(child, ast.AST) or isinstance(child, ast.Assert):
                continue
            if inside or not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                below, now = names, inside
            else:
                below, now = (*names, node.name), not isinstance(node, ast.ClassDef) and field == "body"
            yield child, (below if now else ())
            yield from _scopes(child, below, now)


def chosen(paths: Iterable[Path], count: int, seed: int) -> list[Change]:
    """Chooses changes of files, without those that are known to have no effect."""
    every = sorted((change for path in paths for change in changes(path)), key=lambda change: change.order(seed))
    known = {line.partition("  # ")[0] for line in EQUIVALENT.read_text().splitlines()}
    return [change for change in every[:count] if f"{change.path}: {change.name}" not in known]


def mutated(node: ast.AST) -> str | None:
    """Returns the text of a changed node; None if it is not changed."""
    match node:
        case ast.Compare(left=left, ops=[op], comparators=[right]) if type(op) in COMPARISONS:
            return f"({ast.unparse(ast.Compare(left, [COMPARISONS[type(op)]()], [right]))})"
        case ast.BoolOp(op=op, values=values):
            return f"({ast.unparse(ast.BoolOp(ast.Or() if isinstance(op, ast.And) else ast.And(), values))})"
        case ast.UnaryOp(op=ast.Not(), operand=operand):
            return f"({ast.unparse(operand)})"
        case ast.BinOp(left=left, op=ast.Add() | ast.Sub(), right=ast.Constant(value=int(value))) if value == 1:
            return f"({ast.unparse(left)})"
        case ast.Call(func=ast.Name(id="min" | "max" as name), args=args):
            return ast.unparse(ast.Call(ast.Name(EXTREMES[name]), args, node.keywords))
        case ast.Call(func=function, args=[first, second, *others]) if not isinstance(first, ast.Starred):
            if ast.dump(first) == ast.dump(second) or ast.unparse(function).endswith(ORDERLESS):
                return None  # their order makes no difference
            return ast.unparse(ast.Call(function, [second, first, *others], node.keywords))
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return "pass"
    return None
