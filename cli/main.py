"""The console script: takes signals before anything is imported that takes time."""

import io
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from .signals import Signals


def main() -> None:
    """Runs the command that the arguments name."""
    open_standard_files()
    signals = Signals().start()
    write_any_text(os.environ, os.name == "nt")
    warnings.formatwarning = lambda message, *_, **__: f"rwkv-gpu: {message}\n"  # in one line, as errors are
    from .commands import cli

    try:
        cli(prog_name="rwkv-gpu", obj=signals)
    except SystemExit as end:
        sys.exit(flushed(end.code))


def open_standard_files() -> None:
    """Opens what was closed, as by `2>&-`: else the next file would get its number, and what is written to it."""
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest number that is free, which is this one


def write_any_text(environment: Mapping[str, str], windows: bool) -> None:
    """Has files and pipes take all characters: code pages such as cp1252 lack most, and writing these would raise.

    What is read is UTF-8 everywhere, so what is written to a file or a pipe on Windows is, too. An encoding that the
    environment names stays, and what it lacks becomes a question mark.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper) or stream.encoding.lower().replace("-", "") == "utf8":
            continue
        named = environment.get("PYTHONIOENCODING", "").partition(":")[0]
        stream.reconfigure(encoding="utf-8" if windows and not named else None, errors="replace")


def flushed(code: Any) -> Any:
    """Writes what is still buffered: a closed pipe or a full disk is an exit code, never a traceback."""
    from .commands import CLOSED_PIPE, WRITE_FAILED

    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            code = code or (CLOSED_PIPE if isinstance(error, BrokenPipeError) else WRITE_FAILED)
            if code == WRITE_FAILED and stream is sys.stdout and sys.stderr is not None:
                print(f"rwkv-gpu: cannot write standard output: {error.strerror}", file=sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # Python flushes once more at its end
    return code


if __name__ == "__main__":
    main()
