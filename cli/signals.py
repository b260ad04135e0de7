"""Handles Ctrl-C and kill on a separate thread, so that long native calls do not delay them."""

import contextlib
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

TAKEN = tuple(getattr(signal, name) for name in ("SIGINT", "SIGTERM", "SIGHUP", "SIGBREAK") if hasattr(signal, name))
SHOW_CURSOR, NO_PASTE_MARKS, PLAIN = "\x1b[?25h", "\x1b[?2004l", "\x1b[0m"


class Signals:
    """Handles signals: they end the process at once, unless `on_signal` is set to another function."""

    def __init__(self) -> None:
        self.on_signal: Callable[[int], None] = self.leave
        self._terminal: list[Any] | None = None

    def start(self) -> "Signals":
        """Starts handling signals. Call it first, on the main thread: threads started later inherit the mask."""
        self._terminal = _terminal_state()
        for each in TAKEN:  # run on the main thread: on Windows, or if a thread without the mask receives it
            signal.signal(each, lambda number, _: self.on_signal(number))
        if hasattr(signal, "SIGTSTP") and signal.getsignal(signal.SIGTSTP) == signal.SIG_DFL:
            signal.signal(signal.SIGTSTP, suspend)
        if hasattr(signal, "sigwait"):
            signal.pthread_sigmask(signal.SIG_BLOCK, TAKEN)
            _start_children_unblocked()
            threading.Thread(target=self._wait, name="rwkv-gpu-signals", daemon=True).start()
        return self

    def interrupt(self) -> None:
        """Handles Ctrl-C that was received as a key."""
        self.on_signal(signal.SIGINT)

    def leave(self, number: int) -> None:
        """Cleans up, and ends the process with the exit code of that signal.

        Ends tool servers, restores the terminal, and removes unfinished files.
        """
        if tools := sys.modules.get("rwkv_gpu.mcp.client"):
            tools.close_all()
        self.restore_terminal()
        if writing := sys.modules.get("rwkv_gpu.writer_lock"):  # a command that writes no file has not imported it
            writing.remove_hidden_files()
        os._exit(128 + number)

    def restore_terminal(self) -> None:
        """Restores echo, line editing and the cursor.

        Does nothing in the background, as a change would stop the process.
        """
        if not _foreground():
            return
        for fd in (sys.__stdout__, sys.__stderr__):
            with contextlib.suppress(AttributeError, OSError, ValueError):
                if fd is not None and os.isatty(fd.fileno()) and os.environ.get("TERM") != "dumb":
                    os.write(fd.fileno(), (PLAIN + SHOW_CURSOR + NO_PASTE_MARKS + "\r\n").encode())
                    break
        if self._terminal is not None:
            import termios

            with contextlib.suppress(termios.error):
                termios.tcsetattr(0, termios.TCSANOW, self._terminal)

    def _wait(self) -> None:
        while True:
            number = signal.sigwait(TAKEN)
            self.on_signal(number)


def suspend(number: int, _: object) -> None:
    """Suspends the process, as Ctrl-Z asks. The time until the shell continues it does not count in speeds."""
    driver = sys.modules.get("rwkv_gpu.llm.driver")  # a command without a model has not imported it
    with contextlib.nullcontext() if driver is None else driver.RUNNING_TIME.stopped():
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)  # returns when the process is continued
        signal.signal(number, suspend)


def _start_children_unblocked() -> None:
    """Has programs start with the usual mask: they inherit ours, and could not be ended by SIGTERM."""
    start = subprocess.Popen.__init__

    def unblocked(self: "subprocess.Popen[Any]", *arguments: Any, **options: Any) -> None:
        mask = signal.pthread_sigmask(signal.SIG_UNBLOCK, TAKEN)
        try:
            start(self, *arguments, **options)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    subprocess.Popen.__init__ = unblocked  # type: ignore[method-assign]  # also for programs that libraries start


def _foreground() -> bool:
    """True unless the terminal on standard input belongs to other processes, as after `&` or under `timeout`."""
    try:
        return os.tcgetpgrp(0) == os.getpgrp()
    except (AttributeError, OSError):  # Windows, or no terminal
        return True


def _terminal_state() -> list[Any] | None:
    """The modes of the terminal on standard input, if any."""
    try:
        import termios

        return termios.tcgetattr(0)
    except Exception:  # noqa: BLE001 - no terminal, no standard input, or no termios: nothing to restore
        return None
