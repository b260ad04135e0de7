"""The console script: installs signal handlers before slow imports."""

import io
import os
import sys
import warnings
from collections.abc import Mapping
from typing import Any

from .signals import Signals


def main() -> None:
    """Runs the command named by the arguments."""
    open_standard_files()
    signals = Signals().start()
    write_any_text(os.environ, os.name == "nt")
    warnings.formatwarning = warning_line
    from .commands import cli

    try:
        cli(prog_name="rwkv-gpu", obj=signals)
    except SystemExit as end:
        sys.exit(flushed(end.code))


def warning_line(message: Warning | str, *_: object, **__: object) -> str:
    """A warning in one line, like errors."""
    from rwkv_gpu.errors import printable  # not needed by a command without warnings

    return f"rwkv-gpu: {printable(str(message))}\n"


def open_standard_files() -> None:
    """Reopens closed standard files (as by `2>&-`).

    Without this, the next file to be opened would get their number, and their output.
    """
    for number in range(3):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number, which is that of the closed file


def write_any_text(environment: Mapping[str, str], windows: bool) -> None:
    """Makes files and pipes accept all characters. Code pages such as cp1252 would raise errors for most of them.

    Output to a file or pipe is UTF-8 also on Windows, like all input. An encoding set in the environment is kept;
    characters that it lacks become question marks.
    """
    for stream in (sys.stdout, sys.stderr):
        if not isinstance(stream, io.TextIOWrapper) or stream.encoding.lower().replace("-", "") == "utf8":
            continue
        named = environment.get("PYTHONIOENCODING", "").partition(":")[0]
        stream.reconfigure(encoding="utf-8" if windows and not named else None, errors="replace")


def flushed(code: Any) -> Any:
    """Flushes output: a closed pipe or a full disk results in an exit code, never a traceback."""
    from .commands import CLOSED_PIPE, WRITE_FAILED

    for stream in (sys.stdout, sys.stderr):
        try:
            if stream is not None:
                stream.flush()
        except OSError as error:
            shown = bool(code)  # the command has ended with an error of its own
            code = code or (CLOSED_PIPE if isinstance(error, BrokenPipeError) else WRITE_FAILED)
            if code == WRITE_FAILED and not shown and stream is sys.stdout and sys.stderr is not None:
                print(f"rwkv-gpu: cannot write standard output: {error.strerror}", file=sys.stderr)
            os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())  # Python flushes again at exit
    return code


if __name__ == "__main__":
    main()
