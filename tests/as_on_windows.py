"""A pytest plugin that removes what Windows lacks, so that Linux shows which tests would fail there.

    python -m pytest -p tests.as_on_windows --device cpu TESTS

Modules and functions of POSIX are gone, as are its signals, folders of the system, tmux, and scripts as programs.
Tests that are for POSIX alone (`tests.process.posix`) are skipped.
"""

import importlib.abc
import multiprocessing.popen_fork
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from tests.process import NEEDS_POSIX

MODULES = ["termios", "fcntl", "resource", "pwd", "grp", "tty", "pty"]
FUNCTIONS = ["mkfifo", "fork", "killpg", "setsid", "getpgid", "getloadavg", "sysconf", "sched_getaffinity", "pread",
             "pwrite", "mknod", "wait", "WIFSIGNALED"]  # fmt: skip
SIGNALS = ["SIGKILL", "SIGHUP", "SIGSTOP", "SIGCONT", "SIGUSR1", "SIGUSR2", "SIGALRM", "SIGPIPE", "SIGQUIT", "SIGWINCH",
           "SIGTSTP", "SIGCHLD", "SIGXCPU", "SIGXFSZ", "alarm", "setitimer", "pthread_kill"]  # fmt: skip
FOLDERS = "/proc/", "/dev/"
SENT = signal.SIGTERM  # the signal of POSIX that Windows can send to a process


class Absent(importlib.abc.MetaPathFinder):
    """An import finder that finds none of the modules."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:  # noqa: ARG002
        if name in MODULES:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)


def without_folders(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps a function to fail for POSIX's system folders."""

    def called(path: Any = ".", *arguments: Any, **options: Any) -> Any:
        if isinstance(path, str | os.PathLike) and os.fspath(path) != os.devnull:
            text = os.fspath(path)
            if isinstance(text, str) and f"{text}/".startswith(FOLDERS):
                raise FileNotFoundError(2, "No such file or directory", text)
        return function(path, *arguments, **options)

    return called


def take_away() -> None:
    """Removes the modules and functions of POSIX from this process."""
    whole = SimpleNamespace(**vars(signal))  # code that starts and ends processes continues to use it
    subprocess.signal = multiprocessing.popen_fork.signal = whole  # type: ignore[attr-defined]
    for name in MODULES:
        sys.modules.pop(name, None)
    sys.meta_path.insert(0, Absent())
    for module, names in ((os, FUNCTIONS), (signal, SIGNALS)):
        for name in names:
            if hasattr(module, name):
                delattr(module, name)
    for name in ("stat", "listdir", "open", "scandir"):
        setattr(os, name, without_folders(getattr(os, name)))
    found, send, start = shutil.which, subprocess.Popen.send_signal, subprocess.Popen.__init__

    def which(name: str, *arguments: Any, **options: Any) -> str | None:
        return None if name == "tmux" else found(name, *arguments, **options)

    def sent(process: Any, number: int) -> None:
        if number not in (SENT, 9):  # Popen.kill is TerminateProcess there
            raise ValueError(f"Unsupported signal: {number}")
        send(process, number)

    def started(process: Any, args: Any, *arguments: Any, **options: Any) -> None:
        program = os.fspath(args if isinstance(args, str | os.PathLike) else args[0])
        if os.path.isfile(program):
            with open(program, "rb") as file:
                if file.read(2) == b"#!":
                    raise OSError(193, "%1 is not a valid Win32 application")
        start(process, args, *arguments, **options)

    shutil.which = which
    subprocess.Popen.send_signal = sent  # type: ignore[method-assign]
    subprocess.Popen.__init__ = started  # type: ignore[method-assign]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips tests for POSIX only."""
    for item in items:
        if any(mark.kwargs.get("reason") == NEEDS_POSIX for mark in item.iter_markers("skipif")):
            item.add_marker(pytest.mark.skip(reason=NEEDS_POSIX))


take_away()
