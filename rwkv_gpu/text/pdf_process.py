"""Reads a PDF in a separate process, so that a hostile file can exhaust only that process's memory and time."""

import json
import os
import subprocess
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing import spawn
from pathlib import Path

import rwkv_gpu
from rwkv_gpu.errors import BadInput
from rwkv_gpu.text.pdf import Document, find_pypdf

PROGRAM = """
import sys
sys.path += sys.argv[2:4]
from rwkv_gpu.text.pdf import main
main(sys.argv[1], *map(int, sys.argv[4:]))
"""


@dataclass(frozen=True)
class Limits:
    """Limits for one file."""

    memory: int = 1 << 30  # bytes of the process
    seconds: float = 30.0
    pages: int = 2000
    characters: int = 4 << 20


class PdfProcess:
    """The process that reads one file. `stop` ends it from another thread."""

    def __init__(self, name: str, limits: Limits) -> None:
        self._name, self._limits = name, limits
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._stopped = False

    def read(self, content: bytes) -> Document:
        """Returns the document. Raises BadInput if it cannot be read within the limits."""
        process = self._start()
        try:
            written, _ = process.communicate(content, self._limits.seconds)
        except subprocess.TimeoutExpired:
            seconds = f"{self._limits.seconds:g} seconds"
            raise BadInput(f"{self._name}: reading it took more than {seconds}; save it as text") from None
        finally:
            process.kill()
            process.wait()
            for pipe in (process.stdin, process.stdout):
                with suppress(OSError):
                    pipe and pipe.close()
        if process.returncode:
            megabytes = self._limits.memory >> 20
            raise BadInput(f"{self._name}: reading it failed, or took more than {megabytes:,} MiB; save it as text")
        found = json.loads(written)
        if "error" in found:
            raise BadInput(found["error"])
        return Document(found["pages"], found["total"])

    def stop(self) -> None:
        """Ends the process, if it runs; `read` fails."""
        with self._lock:
            self._stopped = True
            if self._process is not None:
                self._process.kill()

    def _start(self) -> "subprocess.Popen[bytes]":
        folders = (str(Path(module.__file__ or "").parent.parent) for module in (rwkv_gpu, find_pypdf()))
        numbers = (str(number) for number in (self._limits.memory, self._limits.pages, self._limits.characters))
        program = [os.fsdecode(spawn.get_executable()), "-I", "-c", PROGRAM, self._name, *folders, *numbers]
        flags = getattr(subprocess, "CREATE_NO_WINDOW", 0) if sys.platform == "win32" else 0
        pipe, nowhere = subprocess.PIPE, subprocess.DEVNULL
        with self._lock:
            if self._stopped:
                raise BadInput(f"{self._name}: reading it was cancelled")
            self._process = subprocess.Popen(program, stdin=pipe, stdout=pipe, stderr=nowhere, creationflags=flags)
        return self._process
