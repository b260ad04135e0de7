"""Records a terminal as an animated SVG: `python packaging/recording.py OUT.svg COMMAND ...`. Needs tmux.

Each COMMAND is typed into a shell in an 80-column terminal and runs to its end. What the terminal shows is captured as
it changes; nothing is invented. Waits of more than a second are shortened to one.
"""

import os
import re
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass
from html import escape
from pathlib import Path

from rich.color import Color
from rich.terminal_theme import MONOKAI
from rich.text import Text

COLUMNS, ROWS = 80, 22
LONGEST, LAST = 1.0, 4.0  # seconds that a frame is shown, and the last one
LETTER, LINE, MARGIN, SIZE = 8.4, 18, 14, 14  # sizes in pixels
PROMPT = "$ "
TYPED = 4  # letters of a command that appear together


@dataclass(frozen=True)
class Frame:
    """What the terminal shows from a time on, with the escape codes of colours."""

    start: float
    lines: tuple[str, ...]


class Terminal:
    """A shell in tmux."""

    def __init__(self) -> None:
        self._name = f"recording-{os.getpid()}"
        shell = f"env PS1='{PROMPT}' PROMPT_COMMAND= TERM=screen-256color sh -i"
        size = ["-x", str(COLUMNS), "-y", str(ROWS)]
        self._tmux("new-session", "-d", "-s", self._name, *size, shell)
        self.frames: list[Frame] = []
        self._now, self._seen = 0.0, time.monotonic()

    def _tmux(self, *arguments: str) -> str:
        return subprocess.run(["tmux", "-L", self._name, *arguments], capture_output=True, text=True, check=True).stdout

    def _capture(self) -> None:
        """Adds a frame if the screen changed."""
        lines = tuple(self._tmux("capture-pane", "-e", "-p", "-t", self._name).rstrip("\n").split("\n"))
        now = time.monotonic()
        if not self.frames or lines != self.frames[-1].lines:
            self._now += min(now - self._seen, LONGEST)
            self.frames.append(Frame(self._now, lines))
            self._seen = now

    def run(self, command: str) -> None:
        """Types a command and waits until the prompt is back."""
        for begin in range(0, len(command), TYPED):
            self._tmux("send-keys", "-t", self._name, "-l", "--", command[begin : begin + TYPED])
            time.sleep(0.15)
            self._capture()
        self._tmux("send-keys", "-t", self._name, "Enter")
        time.sleep(0.3)
        while not self._idle():
            self._capture()
            time.sleep(0.05)
        self._capture()

    def _idle(self) -> bool:
        """True if the shell waits for a command."""
        return self._tmux("display-message", "-p", "-t", self._name, "#{pane_current_command}").strip() == "sh" and (
            _plain(self._tmux("capture-pane", "-p", "-t", self._name).rstrip()).endswith(PROMPT.strip())
        )

    def close(self) -> None:
        """Ends the shell."""
        self._tmux("kill-server")


def _plain(text: str) -> str:
    return re.sub(r"\x1b\[[\d;]*m", "", text)


def svg(frames: list[Frame]) -> str:
    """The frames as a drawing that repeats."""
    total = frames[-1].start + LAST
    width, height = COLUMNS * LETTER + 2 * MARGIN, ROWS * LINE + 2 * MARGIN
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img" '
        'aria-label="A recording of rwkv-gpu in a terminal">',
        '<rect width="100%" height="100%" rx="8" fill="#0c0c0c"/>',
        f'<g font-family="Menlo,Consolas,monospace" font-size="{SIZE}" fill="#d9d9d9" xml:space="preserve">',
    ]
    for at, frame in enumerate(frames):
        end = frames[at + 1].start if at + 1 < len(frames) else total
        times = f"0;{frame.start / total:.5f};{end / total:.5f}"
        last = at + 1 == len(frames)
        states = "hidden;visible;visible" if last else "hidden;visible;hidden"
        shown = "".join(_line(*row) for row in enumerate(frame.lines))
        parts.append(f'<g visibility="{"visible" if last else "hidden"}">{shown}')
        parts.append(
            f'<animate attributeName="visibility" calcMode="discrete" repeatCount="indefinite" dur="{total:.2f}s" '
            f'keyTimes="{times}" values="{states}"/></g>'
        )
    return "\n".join([*parts, "</g></svg>\n"])


def _line(row: int, line: str) -> str:
    """A line of text with its colours."""
    text = Text.from_ansi(line)
    if not text.plain.strip():
        return ""
    spans = []
    for piece in text.divide(sorted({edge for span in text.spans for edge in (span.start, span.end)})):
        style = piece.spans[0].style if piece.spans else None
        color = getattr(style, "color", None)
        fill = f' fill="{_hex(color)}"' if color is not None and not color.is_default else ""
        weight = ' font-weight="bold"' if getattr(style, "bold", False) else ""
        faint = ' opacity="0.6"' if getattr(style, "dim", False) else ""
        spans.append(f"<tspan{fill}{weight}{faint}>{escape(piece.plain)}</tspan>" if piece.plain else "")
    return f'<text x="{MARGIN}" y="{MARGIN + SIZE + row * LINE}">{"".join(spans)}</text>'


def _hex(color: Color) -> str:
    return str(color.get_truecolor(MONOKAI).hex)


def main(target: str, *commands: str) -> None:
    """Records the commands to a file."""
    if shutil.which("tmux") is None:
        raise SystemExit("the recording needs tmux: apt install tmux")
    terminal = Terminal()
    try:
        for command in commands:
            terminal.run(command)
    finally:
        terminal.close()
    Path(target).write_text(svg(terminal.frames), encoding="utf-8")


if __name__ == "__main__":
    if len(sys.argv) < 3:
        raise SystemExit(__doc__)
    main(*sys.argv[1:])
