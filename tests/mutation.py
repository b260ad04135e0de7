"""Mutation testing: makes small changes to the code, one at a time, and lists those that no test notices.

    python -m tests.mutation [--count 300] [--seed 0] [--place engine]

A change is a swapped comparison, a bound one too large, `max` for `min`, `or` for `and`, a lost `not`, two swapped
arguments, or a statement left out. The tests of the place run on a copy of the code, with the first failure as its end.
"""

import argparse
import ast
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[1]
SECONDS = 600.0  # for the tests of one change; a change that makes them run longer counts as caught
# Files that are changed, and the tests that run for each.
PLACES = {
    "engine": ("rwkv_gpu/engine", ["tests/engine", "tests/llm/test_driver.py", "tests/llm/test_driver_faults.py"]),
    "text": ("rwkv_gpu/text", ["tests/text"]),
    "gguf": ("rwkv_gpu/gguf", ["tests/gguf"]),
    "passes": (
        "rwkv_gpu/ops/passes",
        [
            "tests/ops/test_passes.py",
            "tests/ops/test_rules.py",
            "tests/ops/test_merge.py",
            "tests/test_plan_digests.py",
        ],
    ),
    "llm": ("rwkv_gpu/llm", ["tests/llm"]),
}
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE, ast.LtE: ast.Lt, ast.Gt: ast.GtE, ast.GtE: ast.Gt, ast.Eq: ast.NotEq, ast.NotEq: ast.Eq,
    ast.In: ast.NotIn, ast.NotIn: ast.In, ast.Is: ast.IsNot, ast.IsNot: ast.Is,
}  # fmt: skip
EXTREMES = {"min": "max", "max": "min"}


@dataclass(frozen=True)
class Change:
    """A part of a file, and what takes its place."""

    path: Path
    line: int
    start: int  # in bytes of the file
    stop: int
    text: str

    def applied(self, data: bytes) -> bytes:
        """The file with the change."""
        return data[: self.start] + self.text.encode() + data[self.stop :]

    def __str__(self) -> str:
        before = " ".join((ROOT / self.path).read_bytes()[self.start : self.stop].decode().split())
        return f"{self.path}:{self.line}: {before[:70]}  ->  {' '.join(self.text.split())[:70]}"


def changes(path: Path) -> Iterator[Change]:
    """All changes of a file, which is named from the root."""
    data = (ROOT / path).read_bytes()
    tree = ast.parse(data)
    lines = [0]
    for line in data.splitlines(keepends=True):
        lines.append(lines[-1] + len(line))
    ignored = {id(inner) for node in ast.walk(tree) if isinstance(node, ast.Assert) for inner in ast.walk(node)}
    for node in ast.walk(tree):
        changed = None if id(node) in ignored else mutated(node)
        if changed is not None and isinstance(node, ast.expr | ast.stmt):
            assert node.end_lineno is not None and node.end_col_offset is not None
            start, stop = lines[node.lineno - 1] + node.col_offset, lines[node.end_lineno - 1] + node.end_col_offset
            yield Change(path, node.lineno, start, stop, changed)


def mutated(node: ast.AST) -> str | None:
    """The text of a changed node; None if it is not changed."""
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
            return ast.unparse(ast.Call(function, [second, first, *others], node.keywords))
        case ast.Expr(value=ast.Call()) | ast.AugAssign():
            return "pass"
    return None


def survives(change: Change, folder: Path, tests: list[str]) -> bool:
    """Whether all tests pass with a change in the copy of the code."""
    file = folder / change.path
    before = file.read_bytes()
    file.write_bytes(change.applied(before))
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-m", "not gpu", *tests]
    environment = {**os.environ, "PYTHONPATH": str(folder), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=folder, env=environment, capture_output=True, timeout=SECONDS, check=False)
    except subprocess.TimeoutExpired:
        return False
    finally:
        file.write_bytes(before)
    return done.returncode == 0


def copy_of(folder: Path) -> None:
    """Copies the code and its tests, with the command line where an installation has it."""
    for name in ("rwkv_gpu", "cli", "tests", "docs", "benchmarks"):
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md"):
        shutil.copy(ROOT / name, folder)
    (folder / "rwkv_gpu" / "cli").symlink_to(folder / "cli")
    (folder / "rwkv_gpu" / "profiles").symlink_to(ROOT / "profiles")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--place", choices=PLACES, action="append")
    parser.add_argument("--tests", nargs="+", help="tests to run in place of those of the place")
    parser.add_argument("--file", help="change files of this name only")
    options = parser.parse_args()
    places = options.place or list(PLACES)
    rng, found = random.Random(options.seed), []
    for place in places:
        folder, tests = PLACES[place]
        paths = sorted(path.relative_to(ROOT) for path in (ROOT / folder).rglob(options.file or "*.py"))
        every = [change for path in paths for change in changes(path)]
        share = options.count // len(places)
        found += [(change, options.tests or tests) for change in rng.sample(every, min(share, len(every)))]
    survivors = []
    with tempfile.TemporaryDirectory(prefix="rwkv-gpu-mutation-") as name:
        copy_of(Path(name))
        for number, (change, tests) in enumerate(found, 1):
            if survives(change, Path(name), tests):
                survivors.append(change)
                print(change, flush=True)
            elif sys.stderr.isatty():
                print(f"{number} of {len(found)}", end="\r", file=sys.stderr)
    caught = len(found) - len(survivors)
    print(f"{caught} of {len(found)} changes were caught ({caught / max(1, len(found)):.0%})")


if __name__ == "__main__":
    main()
