"""The clipboard: through a desktop program if available, else through the terminal."""

import base64
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence

from rwkv_gpu.errors import BadInput

Programs = Sequence[tuple[str, str | None]]
# Programs that copy their standard input, and the variable that shows that their desktop is running.
PROGRAMS: Programs = (
    ("pbcopy", None),
    ("clip.exe", None),
    ("wl-copy", "WAYLAND_DISPLAY"),
    ("xclip -selection clipboard", "DISPLAY"),
    ("xsel --clipboard --input", "DISPLAY"),
)
# Programs that print the image in the clipboard as PNG.
IMAGE_PROGRAMS: Programs = (
    ("pngpaste -", None),
    ("wl-paste --type image/png", "WAYLAND_DISPLAY"),
    ("xclip -selection clipboard -target image/png -out", "DISPLAY"),
)


def copy(text: str) -> str:
    """Copies a text. Returns a note if success cannot be confirmed."""
    for command in _installed(PROGRAMS):
        if _output(command, text.encode("utf-8", "replace"), subprocess.DEVNULL) is not None:
            return ""
    # OSC 52: the terminal sets the clipboard of the machine on which it runs, also through SSH.
    coded = base64.b64encode(text.encode("utf-8", "replace")).decode()
    terminal = sys.stdout if sys.stdout.isatty() else sys.stderr
    terminal.write(f"\x1b]52;c;{coded}\x07")
    terminal.flush()
    return ", if this terminal lets programs set the clipboard"


def clipboard_image() -> bytes:
    """The image in the clipboard, as PNG. Raises BadInput if there is none."""
    why = "no program that reads images from the clipboard is installed (wl-paste, xclip or pngpaste)"
    for command in _installed(IMAGE_PROGRAMS):
        if image := _output(command, b"", subprocess.PIPE):
            return image
        why = "the clipboard has no image"
    raise BadInput(f"{why}; give a file: /image photo.jpg")


def _installed(programs: Programs) -> Iterator[list[str]]:
    """The commands of the programs that are installed and whose desktop is running."""
    for command, variable in programs:
        name, *options = command.split()
        program = shutil.which(name) if variable is None or os.environ.get(variable) else None
        if program is not None:
            yield [program, *options]


def _output(command: list[str], data: bytes, output: int) -> bytes | None:
    """What a program prints, given `data`; None if it fails."""
    try:
        done = subprocess.run(
            command, input=data, timeout=5, check=False, stdout=output, stderr=subprocess.DEVNULL
        )  # fmt: skip
    except (OSError, subprocess.SubprocessError):
        return None
    return None if done.returncode else done.stdout or b""
