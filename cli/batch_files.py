"""The files of a batch: input lines, and results, to which later runs append."""

import contextlib
import json
import os
import stat
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from rwkv_gpu.errors import BadInput
from rwkv_gpu.replace_file import put_in_place

from .texts import lines_of, read_text

Line = dict[str, Any]
BEGINNING = b'{"id": '  # start of every result


def read_lines(path: str) -> list[tuple[str, str]]:
    """The id (as JSON) and text of each line that is not empty."""
    lines: dict[str, str] = {}
    for number, text in enumerate(lines_of(read_text(path).removeprefix("\ufeff")), 1):
        if not text.strip():
            continue
        try:
            name = parsed_line(text).get("id", number)
        except BadInput:
            name = number
        key = json.dumps(name)
        if key in lines:
            raise BadInput(f"{path}: line {number} has the id {key} of an earlier line; ids must differ")
        lines[key] = text
    return list(lines.items())


def parsed_line(text: str) -> Line:
    """A line as a dict; for a line of OpenAI's batches, its body."""
    try:
        line = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise BadInput(f"not valid JSON: {error}") from None
    if isinstance(line, dict) and isinstance(line.get("body"), dict):
        ids = {"id": line["custom_id"]} if "custom_id" in line else {}
        line = {**line["body"], **ids}
    if not isinstance(line, dict):
        raise BadInput('a line must be {"prompt": "..."} or {"messages": [...]}')
    return line


@dataclass(frozen=True)
class Output:
    """The file to which results are appended, and the ids that are already answered in it."""

    file: IO[str]
    answered: frozenset[str] = frozenset()

    @classmethod
    @contextlib.contextmanager
    def open(cls, path: str, ids: Sequence[str]) -> Iterator["Output"]:
        """Opens a file, a pipe or standard output.

        Results of `ids` with an error are removed: these lines are tried again.
        """
        if path == "-":
            if sys.stdout is None:
                raise BadInput("standard output is closed; name a file for the results")
            yield cls(sys.stdout)
            return
        try:
            answered = answered_in(Path(path), frozenset(ids)) if os.path.isfile(path) else frozenset()
            with open(path, "a" if seekable(path) else "w", encoding="utf-8", newline="\n") as file:
                yield cls(file, answered)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise BadInput(f"cannot write {path}: {error.strerror}") from None


def seekable(path: str) -> bool:
    """True if a path is, or would be, a regular file, not a pipe or device."""
    return not os.path.exists(path) or stat.S_ISREG(os.stat(path).st_mode)


def answered_in(path: Path, ids: frozenset[str]) -> frozenset[str]:
    """The answered ids. Removes an incomplete last line, and errors of `ids`."""
    data = path.read_bytes()
    whole, newline, rest = data.rpartition(b"\n")
    if rest and not BEGINNING.startswith(rest[: len(BEGINNING)]):
        raise BadInput(f"{path} does not contain results of a batch; give another file, or one that does not exist yet")
    kept, answered = [], set()
    for number, line in enumerate(whole.split(b"\n") if newline else [], 1):
        result = _result(path, number, line)
        name = json.dumps(result["id"])
        if "error" not in result:
            answered.add(name)
        elif name in ids:
            continue
        kept.append(line + b"\n")
    if len(b"".join(kept)) != len(data):
        replace(path, b"".join(kept))
    return frozenset(answered)


def replace(path: Path, data: bytes) -> None:
    """Replaces a file atomically."""
    path = path.resolve()
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        os.chmod(name, stat.S_IMODE(path.stat().st_mode))
        put_in_place(name, path)
    except BaseException:
        os.unlink(name)
        raise


def _result(path: Path, number: int, line: bytes) -> Line:
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        result = json.loads(line)
        if isinstance(result, dict) and "id" in result and ("text" in result or "error" in result):
            return result
    raise BadInput(
        f"{path}: line {number} is not a result of a batch; give another file, or one that does not exist yet"
    )
