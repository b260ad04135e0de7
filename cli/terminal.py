"""Reads keyboard input also between two prompts, and recognises pastes.

Lines that arrive together are a paste, which is one message. Terminals mark pastes with brackets on request. Without
them, lines that follow each other faster than typing count as a paste.
"""

import contextlib
import os
import re
import select
import signal
import sys
import threading
from collections.abc import Callable, Iterator

BRACKETS_ON, BRACKETS_OFF = "\x1b[?2004h", "\x1b[?2004l"
PASTE, PASTE_END = "\x1b[200~", "\x1b[201~"
TOGETHER = 0.01  # maximum seconds between lines of a paste
GOES_ON = 0.1  # the same after many characters at once, which must be a paste
MANY = 64
PAUSE = 0.1  # seconds between two checks for a signal
REPORT = re.compile(r"\x1b\[\d+;\d+R")
INTERRUPT = "\x03"  # Ctrl-C as a key, if the terminal sends no signal for it
FIRST = re.compile(r"(/[a-zA-Z]+!?( [^\r\n]*)?)?[\r\n]")


class Bursts:
    """Collects input that arrives together, and adds paste brackets around several lines if missing."""

    def __init__(self, fd: int, read: Callable[[], str]) -> None:
        self._fd = fd
        self._read = read
        self._inside = False  # whether the input is within a bracketed paste
        self._tail = ""  # the end of earlier input, which may be half a bracket
        self._lock = threading.Lock()
        self._drops = 0

    def next(self, interrupt: Callable[[], None] | None = None) -> str:
        """Returns the next input, with missing brackets added. Empty if `drop` was called meanwhile.

        A Ctrl-C in the input drops the text typed before it. With `interrupt`, it calls that function, and otherwise it
        is returned as a key. Later text is kept, even if it follows at once.
        """
        data, drops = self._gathered()
        *dropped, data = data.split(INTERRUPT)
        for _ in dropped:
            self.drop()
            if interrupt is not None:
                interrupt()
            drops = self._drops
        keys = "" if interrupt is not None else INTERRUPT * len(dropped)
        with self._lock:
            return keys + self._marked(data) if self._drops == drops else keys

    def wait(self, stopped: Callable[[], bool]) -> None:
        """Waits for input. Raises KeyboardInterrupt if `stopped` returns true first."""
        with contextlib.suppress(OSError):  # on Windows, `select` works for sockets only; a signal ends reading there
            while not select.select([self._fd], [], [], PAUSE)[0]:
                if stopped():
                    raise KeyboardInterrupt

    def drop(self) -> None:
        """Drops input that is being read: on Ctrl-C, the terminal drops its unread input as well."""
        with self._lock:
            self._drops += 1
            self._inside, self._tail = False, ""

    def _gathered(self) -> tuple[str, int]:
        """Reads all input that arrives together since the last drop; returns it with the number of drops until then."""
        data, drops = "", self._drops
        while True:
            more = self._read()
            data += more
            if not (more and self._may_go_on(data) and self._ready(GOES_ON if len(data) > MANY else TOGETHER)):
                return data, drops
            if self._drops != drops:
                data, drops = "", self._drops

    def _may_go_on(self, data: str) -> bool:
        """True if more input could change how this input is read.

        Without brackets, the end of a multi-line paste is unknown.
        """
        lines = "\r" in data or "\n" in data or len(data) > MANY
        return lines and not self._inside and PASTE not in self._tail + data

    def _ready(self, seconds: float) -> bool:
        try:
            return bool(select.select([self._fd], [], [], seconds)[0])
        except OSError:  # on Windows, `select` works for sockets only
            return False

    def _marked(self, data: str) -> str:
        seen = self._tail + data
        bracketed = self._inside or PASTE in seen
        if bracketed:
            self._inside = seen.rfind(PASTE) > seen.rfind(PASTE_END) or (self._inside and PASTE_END not in seen)
        self._tail = seen[-len(PASTE) + 1 :]
        return data if bracketed else marked(data)


def marked(data: str) -> str:
    """Adds brackets around several lines.

    Line ends at the start and at the end stand for the Enter key. Commands before the text stay separate.
    """
    if reports := REPORT.findall(data):  # cursor position reports, which the prompt has requested
        return "".join(reports) + marked(REPORT.sub("", data))
    if "\x1b" in data:  # keys such as Up
        return data
    if first := FIRST.match(data):
        return first[0] + marked(data[first.end() :])
    text = data.rstrip("\r\n")
    if not ("\r" in text or "\n" in text):
        return data
    return PASTE + text + PASTE_END + ("\r" if len(data) > len(text) else "")


class Background:
    """Lets a function read the terminal on a thread, from `start` to `stop`, whenever input is available.

    So pasted text does not fill the terminal's buffer of a few kilobytes, and a Ctrl-C after it is noticed.
    """

    def __init__(self, fd: int, read: Callable[[], bool]) -> None:
        self._fd = fd
        self._read = read  # returns whether there may be more
        self._thread: threading.Thread | None = None
        self._wake: tuple[int, int] | None = None

    def start(self) -> None:
        """Starts reading."""
        self._wake = os.pipe()
        self._thread = threading.Thread(target=self._run, args=self._wake[:1], name="rwkv-gpu-keys", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """Stops reading; does nothing if it is not reading."""
        if self._thread is None or self._wake is None:
            return
        os.write(self._wake[1], b"x")
        self._thread.join()
        for handle in self._wake:
            os.close(handle)
        self._thread = self._wake = None

    def _run(self, wake: int) -> None:
        with contextlib.suppress(OSError):
            while True:
                ready, _, _ = select.select([self._fd, wake], [], [])
                if wake in ready or not self._read():
                    return


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Disables echo and line mode, keeps Enter and Ctrl-C as keys, and requests paste brackets.

    If Ctrl-C were a signal, its position among the keys would be unknown, and the terminal would drop some keys.
    While Ctrl-Z suspends the program, the shell has the terminal as it was before.
    """
    import termios

    before, suspending = termios.tcgetattr(0), signal.getsignal(signal.SIGTSTP)
    settings = termios.tcgetattr(0)
    settings[0] &= ~termios.ICRNL
    settings[3] &= ~(termios.ECHO | termios.ICANON)
    settings[6][termios.VINTR] = bytes([os.fpathconf(0, "PC_VDISABLE") & 0xFF])

    def begin() -> None:
        signal.signal(signal.SIGTSTP, suspend)
        termios.tcsetattr(0, termios.TCSANOW, settings)
        ask_for_brackets()

    def end() -> None:
        signal.signal(signal.SIGTSTP, suspending)
        sys.stdout.write(BRACKETS_OFF)
        sys.stdout.flush()
        termios.tcsetattr(0, termios.TCSANOW, before)

    def suspend(number: int, _: object) -> None:
        end()
        os.kill(os.getpid(), number)  # returns when the shell continues the program
        begin()

    begin()
    try:
        yield
    finally:
        end()


def ask_for_brackets() -> None:
    """Requests brackets around pastes from the terminal."""
    sys.stdout.write(BRACKETS_ON)
    sys.stdout.flush()
