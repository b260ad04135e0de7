"""The text of a file that is sent with a message: text, source code, or a PDF."""

import os
import re
from pathlib import Path

from rwkv_gpu.errors import BadInput
from rwkv_gpu.text.pdf import BEGINNING, pages_of

from .session_file import expanded
from .texts import as_text

MAX_BYTES = 64 << 20
MEDIA = ".png", ".jpg", ".jpeg", ".webp", ".gif", ".bmp", ".tif", ".tiff", ".ppm", ".wav", ".flac", ".mp3", ".ogg"
WORD = re.compile(r"""(?<!\S)(?:'(?:[^']|'\\'')+'|"[^"]+"|(?:\\.|[^\s\\'"])+)(?!\S)""")  # as a shell would read it


def dropped_media(message: str) -> tuple[str, list[str]]:
    """A message without the full paths of images and audio in it, and these, as terminals write dropped files."""
    found: list[str] = []

    def take(word: re.Match[str]) -> str:
        if not _is_media(word[0]):
            return word[0]
        found.append(word[0])
        return ""

    if _is_media(message.strip()):  # some terminals write spaces as they are
        return "", [message.strip()]
    rest = WORD.sub(take, message)
    return (rest.strip() if found else message), found


def _is_media(text: str) -> bool:
    """True for the full path of an image or audio file."""
    if not text.rstrip("'\"").lower().endswith(MEDIA):
        return False
    path = expanded(text)
    return path.is_absolute() and os.path.isfile(path)  # False for a name that is too long


def message_part(name: str, text: str) -> str:
    """A file as a part of a message: its name, then its text in a code block. The fence does not occur in the text."""
    fence = "```"
    while fence in text:
        fence += "`"
    return f"{name}:\n{fence}\n{text.strip()}\n{fence}\n\n"


def file_text(path: Path) -> str:
    """The text of a file. Raises BadInput with the reason if it has none."""
    try:
        if not path.is_file():
            raise BadInput(
                f"{path} is {'a folder' if path.is_dir() else 'not a file'}; give a text, source code or PDF"
            )
        if (size := os.path.getsize(path)) > MAX_BYTES:
            raise BadInput(f"{path} has {size:,} bytes; a message can have files of up to {MAX_BYTES:,}")
        data = path.read_bytes()
    except OSError as error:
        raise BadInput(f"cannot read {path}: {error.strerror}") from None
    if not data.startswith(BEGINNING) and b"\0" in data:
        raise BadInput(f"{path} is not text; give a text, source code or PDF")
    if data.startswith(BEGINNING):
        text = "\n\n".join(pages_of(data, str(path)).pages)
    else:
        text = as_text(data, str(path)).removeprefix("\ufeff")
    if not text.strip():
        raise BadInput(f"{path} has no text{'; are its pages scanned?' if data.startswith(BEGINNING) else ''}")
    return text
