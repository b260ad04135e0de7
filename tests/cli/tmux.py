"""A tmux terminal, in which tests can type and read the screen."""

import contextlib
import os
import shutil
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from tests.process import PATIENCE

ROOT = Path(__file__).resolve().parents[2]
PYTHON = f"{sys.executable} -X faulthandler"


class Terminal:
    """A tmux window with a command in a shell. The exit code is visible when it ends."""

    def __init__(self, command: str, folder: Path, *, width: int = 80, height: int = 24, **environment: str) -> None:
        if shutil.which("tmux") is None:
            pytest.skip("no tmux: .ci/apt tmux installs it")
        self._socket = f"rwkv-gpu-{uuid.uuid4().hex[:8]}"
        script = folder / "run.sh"
        env = {"XDG_STATE_HOME": str(folder), "PYTHONPATH": os.pathsep.join(p for p in sys.path if p), **environment}
        lines = [f"export {name}='{value}'" for name, value in env.items()]
        script.write_text(
            "\n".join(
                [
                    *lines,
                    "trap : INT",
                    "stty -a > before",
                    command,
                    "code=$?; echo; echo left $code",
                    "stty -a > after",
                    "exec cat",
                ]
            )
        )
        window = ["-x", str(width), "-y", str(height), "-c", str(folder)]
        copies = ["set-option", "-s", "set-clipboard", "on"]
        self._tmux("-f", "/dev/null", "new-session", "-d", *window, f"exec sh {script}", ";", *copies)
        self.folder = folder

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-L", self._socket, "-u", *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=PATIENCE).stdout

    def close(self) -> None:
        with contextlib.suppress(subprocess.CalledProcessError):
            self._tmux("kill-server")

    def type(self, text: str, *, enter: bool = True) -> None:
        """Types text, and Enter."""
        self._tmux("send-keys", "-l", text)
        if enter:
            self.key("Enter")

    def key(self, *names: str) -> None:
        """Presses keys by their tmux names: Enter, C-c, Up."""
        self._tmux("send-keys", *names)

    def paste(self, text: str, *, brackets: bool = True) -> None:
        """Pastes text as a terminal does, with or without bracketed paste."""
        path = self.folder / "paste"
        path.write_text(text, encoding="utf-8")
        self._tmux("load-buffer", str(path))
        self._tmux("paste-buffer", *(["-p"] if brackets else []))

    def clipboard(self) -> str:
        """Returns the text that the program copied last."""
        return self._tmux("show-buffer")

    def resize(self, width: int, height: int) -> None:
        self._tmux("resize-window", "-x", str(width), "-y", str(height))

    def screen(self, *, history: bool = False, joined: bool = False) -> str:
        """Returns the visible screen and its history. `joined` removes the line ends added by the terminal."""
        return self._tmux("capture-pane", "-p", *(["-S", "-"] if history else []), *(["-J"] if joined else []))

    def pid(self) -> int:
        """Returns the process of the command."""
        shell = self._tmux("display-message", "-p", "#{pane_pid}").strip()
        children = Path(f"/proc/{shell}/task/{shell}/children")
        if children.exists():
            return int(children.read_text().split()[0])
        return int(subprocess.check_output(["pgrep", "-P", shell]).split()[0])  # macOS

    def wait(self, text: str, *, history: bool = False, gone: bool = False) -> str:
        """Waits until the screen shows a text, or no longer shows it. Returns the screen."""
        end = time.monotonic() + PATIENCE
        while True:
            screen = self.screen(history=history)
            if (text in screen) != gone:
                return screen
            assert time.monotonic() < end, (
                f"{text!r} is {'still' if gone else 'not'} there after {PATIENCE} s:\n{screen}"
            )
            time.sleep(0.05)

    def left(self) -> int:
        """Returns the exit code of the command. The state of its terminal must be unchanged."""
        self.wait("\nleft ", history=True)
        code = self.screen(history=True).rpartition("\nleft ")[2].split()[0]
        end = time.monotonic() + PATIENCE
        while not (self.folder / "after").exists() or not (self.folder / "after").stat().st_size:
            assert time.monotonic() < end
            time.sleep(0.02)
        assert (self.folder / "after").read_text() == (self.folder / "before").read_text()
        cursor = self._tmux("display-message", "-p", "#{cursor_flag}").strip()
        assert cursor == "1", "the cursor is hidden"
        return int(code)
