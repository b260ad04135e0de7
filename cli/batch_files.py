"""The files of a batch: input lines, and results, to which later runs append."""

import contextlib
import json
import os
import sys
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, BinaryIO

from rwkv_gpu.errors import BadInput
from rwkv_gpu.replace_file import replace_file
from rwkv_gpu.writer_lock import WriterLock

from .texts import lines_of, read_text, seekable

Line = dict[str, Any]
BEGINNING = b'{"id": '  # start of every result
MAX_LINE = 1 << 28  # bytes of a result


def read_lines(path: str) -> list[tuple[str, str]]:
    """The id (as JSON) and text of each line that is not empty."""
    texts = enumerate(lines_of(read_text(path).removeprefix("\ufeff")), 1)
    lines = [(number, _given_id(text), text) for number, text in texts if text.strip()]
    if not lines:
        raise BadInput(f"{'standard input' if path == '-' else path} has no lines to answer")
    given: set[str] = set()
    for number, name, _ in lines:
        if name is not None and name in given:
            raise BadInput(f"{path}: line {number} has the id {name} of an earlier line; ids must differ")
        given |= set() if name is None else {name}
    return [(name or _own_id(number, given), text) for number, name, text in lines]


def _given_id(text: str) -> str | None:
    """The id of a line, as JSON; None if it has none, or is wrong."""
    try:
        name = parsed_line(text).get("id")
    except BadInput:
        return None
    return None if name is None else json.dumps(name)


def _own_id(number: int, given: Set[str]) -> str:
    """The default id of a line, as JSON: its number, or a text with the number if another line has that id."""
    name, key = f"line {number}", json.dumps(number)
    while key in given:
        key, name = json.dumps(name), f"{name}'"
    return key


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
        """Opens a pipe, standard output, or a file. A file is locked, so that no other batch writes to it.

        Results of `ids` with an error are removed: these lines are tried again.
        """
        if path == "-":
            if sys.stdout is None:
                raise BadInput("standard output is closed; name a file for the results")
            yield cls(sys.stdout)
            return
        try:
            if not seekable(path):
                with open(path, "w", encoding="utf-8", newline="\n") as file:
                    yield cls(file)
                return
            with WriterLock(path) as lock:
                answered = answered_in(lock, frozenset(ids)) if os.path.isfile(path) else frozenset()
                with open(path, "a", encoding="utf-8", newline="\n") as file:
                    yield cls(file, answered)
        except OSError as error:
            if isinstance(error, BrokenPipeError):
                raise
            raise BadInput(f"{path}: cannot be written: {error.strerror}") from None


def answered_in(lock: WriterLock, ids: frozenset[str]) -> frozenset[str]:
    """The answered ids in a locked file. Removes an incomplete last line, and errors of `ids`."""
    path = lock.target
    answered, dropped = set[str](), set[int]()
    with open(path, "rb") as file:
        for number, line in enumerate(_pieces(file), 1):
            if not line.endswith(b"\n"):
                if len(line) == MAX_LINE or not BEGINNING.startswith(line[: len(BEGINNING)]):
                    raise BadInput(
                        f"{path} does not contain results of a batch; give another file, or one that does not exist yet"
                    )
                dropped.add(number)
                continue
            result = _result(path, number, line)
            name = json.dumps(result["id"])
            if "error" not in result:
                answered.add(name)
            elif name in ids:
                dropped.add(number)
    if dropped:

        def write(out: BinaryIO) -> None:
            with open(path, "rb") as file:
                out.writelines(line for number, line in enumerate(file, 1) if number not in dropped)

        replace_file(path, write=write, lock=lock, private=False)
    return frozenset(answered)


def _pieces(file: BinaryIO) -> Iterator[bytes]:
    """The lines of a file. Of one that cannot be a result, such as a model's first, only the beginning is read."""
    while start := file.read(1):
        yield start + file.readline(MAX_LINE - 1) if start == BEGINNING[:1] else start


def _result(path: Path, number: int, line: bytes) -> Line:
    with contextlib.suppress(ValueError, TypeError, RecursionError):
        result = json.loads(line)
        if isinstance(result, dict) and "id" in result and ("text" in result or "error" in result):
            return result
    raise BadInput(
        f"{path}: line {number} is not a result of a batch; give another file, or one that does not exist yet"
    )
