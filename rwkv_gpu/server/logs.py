"""Log lines of the server: a sentence and its fields, as text or JSON."""

import json
import logging
import shutil
import textwrap
from datetime import UTC, datetime
from typing import TextIO

from ..errors import printable

LONGEST_TRACEBACK = 1 << 16  # characters
SERVER = "rwkv_gpu.server"
LOGGERS = SERVER, "rwkv_gpu.access", "rwkv_gpu.states"


class TextLines(logging.Formatter):
    """2026-01-31 12:00:00 INFO request status=200 seconds=0.1

    On a terminal, long lines break between words.
    """

    def __init__(self, *, terminal: bool = False) -> None:
        super().__init__()
        self._terminal = terminal

    def format(self, record: logging.LogRecord) -> str:
        """Formats one line; unexpected errors add their traceback."""
        fields = " ".join(f"{name}={_plain(value)}" for name, value in _fields(record).items())
        line = f"{_time(record):%Y-%m-%d %H:%M:%S} {record.levelname} {printable(record.getMessage())} {fields}"
        if self._terminal:
            columns = shutil.get_terminal_size().columns
            # Long words, such as paths, stay whole and can be copied.
            line = textwrap.fill(line, columns, subsequent_indent="  ", break_long_words=False, break_on_hyphens=False)
        traceback = f"\n{self.formatException(record.exc_info)}" if record.exc_info else ""
        return line.rstrip() + printable(traceback, LONGEST_TRACEBACK, keep="\n")


class JsonLines(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        """Formats one line; a traceback is a field."""
        line: dict[str, object] = {
            "time": _time(record).isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
        }
        line |= {"message": record.getMessage(), **_fields(record)}
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return json.dumps(line, ensure_ascii=True, default=str)


def start_logs(form: str, stream: TextIO) -> None:
    """Starts writing log lines to a stream."""
    handler = logging.StreamHandler(stream)
    handler.setFormatter(JsonLines() if form == "json" else TextLines(terminal=stream.isatty()))
    for name in LOGGERS:
        logger = logging.getLogger(name)
        logger.handlers[:] = [handler]
        logger.setLevel(logging.INFO)
        logger.propagate = False


def _fields(record: logging.LogRecord) -> dict[str, object]:
    found: dict[str, object] = getattr(record, "fields", {})
    return found


def _time(record: logging.LogRecord) -> datetime:
    return datetime.fromtimestamp(record.created, UTC)


def _plain(value: object) -> str:
    """Quotes a value so that it stays one word on one line: clients must not be able to forge log lines."""
    text = printable(str(value))
    return text if text and text.isprintable() and not set(text) & set(' "=') else json.dumps(text)
